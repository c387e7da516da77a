"""What is measured of an engine: a backlog, a steady rate, a kill."""

import subprocess
import sys
import time

import msgspec
from confluent_kafka import Consumer

from bench.load import Times
from bench.peers import engines
from bench.peers.ground import Ground, ends
from bench.peers.process import Running
from bench.peers.reference import Sequences, compared, read
from precede.streaming.settings import Settings

SAMPLE_S = 0.1
SETTLED_S = 2.0
"""All is out once enough records are visible and no more came for this long."""
START_S_MAX = 240.0
"""After this time without a first record an engine has failed. Some wait 45 s for a dead one's session to end."""
SILENT_S_MAX = 45.0
"""The same for one that is at work: what it has lost will not come."""
WARM_SHARE = 0.2
"""The first part of a backlog, in which an engine starts and compiles, does not count."""
KILL_SHARE = 0.4
IDLE_S = 12


class Backlog(msgspec.Struct):
    """A rate counts after the first fifth."""

    per_s: float
    per_cpu_s: float
    rss_mb: float
    sequence: str


class Steady(msgspec.Struct):
    """At a steady rate, after the time to warm up."""

    first_s: float
    """From the start of the process to the first record."""
    p50_ms: float
    p99_ms: float
    cores: float
    idle_cores: float
    """With no message for some seconds."""
    rss_mb: float


class Killed(msgspec.Struct):
    """After kill -9 in the middle of a backlog."""

    first_s: float
    """From the second start to the first new record."""
    sequence: str


class Stuck(Exception):
    """An engine ended, or nothing came out of it."""


def backlog(ground: Ground, name: str, raw: Settings, wanted: Sequences) -> Backlog:
    """Through a raw topic that is full when the engine starts."""
    run = ground.run(raw, wanted.records)
    with ground.reader(run) as consumer, ground.running(name, run) as engine:
        series = _until_all(consumer, run.out, engine, wanted.records)
    with ground.reader(run) as consumer:
        sequence = compared(read(consumer, wanted.records, 10), wanted)
    last_s, last, last_cpu = next(one for one in series if one[1] == series[-1][1])
    from_s, first, from_cpu = next(one for one in series if one[1] >= WARM_SHARE * last)
    if first == last:  # so short a backlog came out in one step
        from_s, first, from_cpu = series[0]
    share = (last - first) / last * wanted.records  # markers of transactions take offsets too
    return Backlog(
        share / max(last_s - from_s, SAMPLE_S), share / max(last_cpu - from_cpu, 0.01), engine.rss_mb, sequence
    )


def steady(
    ground: Ground, name: str, per_s: int, seconds: int, warm_s: int | None = None, idle_s: int = IDLE_S
) -> Steady:
    """Start on one message, then a steady rate in order, then silence."""
    warm_s = engines.ENGINES[name].warm_s if warm_s is None else warm_s
    run = ground.run(ground.probe(), 1)
    with ground.reader(run) as consumer, ground.running(name, run) as engine:
        first_s = until_first(consumer, engine)
        command = [sys.executable, "-m", "bench.load", run.bootstrap, run.raw, run.out]
        with subprocess.Popen(
            [*command, str(per_s), str(warm_s), str(seconds)], stdout=subprocess.PIPE, cwd=engines.HOME
        ) as load:
            time.sleep(1 + warm_s)
            cores = engine.cores(seconds)
            said, _ = load.communicate()
        if load.returncode != 0:
            raise Stuck(f"{name} did not deliver everything at {per_s:,} messages/s: {engine.said_last()}")
        times = msgspec.json.decode(said, type=Times)
        engine.cores(idle_s / 4)
        idle = engine.cores(idle_s)
    return Steady(first_s, times.p50, times.p99, cores, idle, engine.rss_mb)


def killed(ground: Ground, name: str, raw: Settings, wanted: Sequences) -> Killed:
    """Kill -9 with four tenths of a backlog visible; the same command again; is what came out right?"""
    run = ground.run(raw, wanted.records)
    with ground.reader(run) as consumer, ground.running(name, run) as engine:
        until_out(consumer, run.out, engine, int(KILL_SHARE * wanted.records))
        engine.kill()
        if sum(ends(consumer, run.out)) >= wanted.records:
            raise Stuck(f"All {wanted.records:,} messages were out before the kill: more are needed.")
    with ground.reader(run, at_end=True) as consumer, ground.running(name, run) as engine:
        first_s = until_first(consumer, engine)
        consumer.unassign()
        _until_all(consumer, run.out, engine, wanted.records)
    with ground.reader(run) as consumer:
        return Killed(first_s, compared(read(consumer, wanted.records, 10), wanted))


def until_first(consumer: Consumer, engine: Running) -> float:
    """Seconds until the first record that can be read."""
    began = time.monotonic()
    while not [one for one in consumer.consume(1, 0.05) if one.error() is None]:
        engine.sample()
        if engine.ended or time.monotonic() - began > START_S_MAX:
            raise Stuck(f"Nothing came out: {engine.said_last()}")
    return time.monotonic() - began


def until_out(consumer: Consumer, topic: str, engine: Running, records: int) -> None:
    """Wait until so many records can be read."""
    began = time.monotonic()
    while sum(ends(consumer, topic)) < records:
        engine.sample()
        if engine.ended or time.monotonic() - began > 2 * START_S_MAX:
            raise Stuck(f"Not enough came out: {engine.said_last()}")
        time.sleep(0.02)


def _until_all(consumer: Consumer, topic: str, engine: Running, records: int) -> list[tuple[float, int, float]]:
    """Wait until everything is out, or nothing more comes; returns times, visible offsets and processor seconds."""
    series: list[tuple[float, int, float]] = []
    changed, before = time.monotonic(), 0
    while True:
        now, visible = time.monotonic(), sum(ends(consumer, topic))
        series.append((now, visible, engine.sample()))
        if visible != before:
            changed, before = now, visible
        patience_s = SETTLED_S if visible >= records else SILENT_S_MAX if visible else START_S_MAX
        if engine.ended or now - changed > patience_s:
            if not visible:
                raise Stuck(f"Nothing came out: {engine.said_last()}")
            return series
        time.sleep(SAMPLE_S)
