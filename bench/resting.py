"""A million groups, of which a thousand talk: what the engine of one process then needs, and how soon it starts."""

import shutil
import time
from collections.abc import Iterator
from statistics import median

from confluent_kafka import Producer

from bench.figures import Figure, Report
from bench.load import GROUPS
from bench.peers.engines import PROCESS, Run
from bench.peers.ground import Ground
from bench.peers.measures import until_first, until_out
from bench.peers.process import Running
from bench.stage import Stage
from bench.traffic import Pair
from precede.udfs.records.wire import encode_message

MEMORY_MB_MAX = 500.0
CACHE_START_S_MAX, START_S_MAX = 2.0, 15.0
PER_S = 1_000


def run(stage: Stage, quick: bool) -> Report:
    """One engine over all of it; then the same command again, with its cache and without."""
    groups, seconds, starts = (2_000, 2, 1) if quick else (1_000_000, 20, 3)
    ground = Ground(stage, print)
    raw = stage.settings()
    stage.send(raw, _one_each(groups))
    run = ground.run(raw, groups)
    with ground.running(PROCESS, run) as engine:
        with ground.reader(run) as consumer:
            until_out(consumer, run.out, engine, groups)
        rounds = _talk(run, engine, seconds)
    with_cache = [_start_s(ground, run, rounds + number + 1) for number in range(starts)]
    without = [_start_s(ground, run, rounds + starts + number + 1, cache=False) for number in range(starts)]
    return Report(
        "resting",
        f"{groups:,} groups with a message each, then {GROUPS:,} of them at {PER_S:,} messages/s for {seconds} s",
        [
            _at_most("most memory, from the first record on", engine.rss_mb, "MB", MEMORY_MB_MAX),
            _at_most("first record after a start, with the cache", median(with_cache), "s", CACHE_START_S_MAX),
            _at_most("first record after a start, without the cache", median(without), "s", START_S_MAX),
        ],
    )


def _at_most(what: str, value: float, unit: str, most: float) -> Figure:
    return Figure(what=what, value=round(value, 2), unit=unit, target=most, more_is_better=False)


def _one_each(groups: int) -> Iterator[Pair]:
    for number in range(groups):
        yield _message(number, 1)


def _message(number: int, seq: int) -> Pair:
    group = f"room-{number}"
    after = [("ann", 0, seq - 1)] if seq > 1 else []
    return group.encode(), encode_message(group, "ann", 0, seq, after=after, data="x" * 60)


def _talk(run: Run, engine: Running, seconds: int) -> int:
    """The groups that are active say something in turn; returns the last sequence number that all have."""
    producer = Producer({"bootstrap.servers": run.bootstrap, "partitioner": "murmur2_random", "linger.ms": 0})
    began, sent = time.monotonic(), 0
    total = PER_S * seconds // GROUPS * GROUPS
    while sent < total:
        due = min(total, int((time.monotonic() - began) * PER_S))
        for one in range(sent, due):
            key, value = _message(one % GROUPS, 2 + one // GROUPS)
            producer.produce(run.raw, value, key)
        sent = due
        producer.poll(0.01)
        engine.sample()
    assert producer.flush(60) == 0
    return 1 + total // GROUPS


def _start_s(ground: Ground, run: Run, seq: int, *, cache: bool = True) -> float:
    """From the start of the process to the first record of a group, which waits already."""
    if not cache:
        shutil.rmtree(run.folder / "cache")
    producer = Producer({"bootstrap.servers": run.bootstrap, "partitioner": "murmur2_random"})
    key, value = _message(0, seq)
    with ground.reader(run, at_end=True) as consumer:
        producer.produce(run.raw, value, key)
        assert producer.flush(60) == 0
        with ground.running(PROCESS, run) as engine:
            return until_first(consumer, engine)
