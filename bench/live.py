"""Live reading: from send to delivered beside the committed way, catching up beside the kernel alone, and a start."""

import gc
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import msgspec
from confluent_kafka import Consumer, TopicPartition

from bench import looking
from bench.figures import Figure, Report
from bench.load import Times
from bench.small_job import SmallJob
from bench.stage import PARTITIONS, Stage
from bench.traffic import Pair, whole
from precede.ingest.kafka.topics import describe
from precede.ingest.live.reader import LiveReader
from precede.streaming.order.sink import Sink
from precede.streaming.settings import Settings
from precede.streaming.spark import query as order_query
from precede.udfs.holdback import Holdback
from precede.udfs.records.wire import encode_message

HOME = Path(__file__).resolve().parent.parent
WARM_S = 30
LINGER_MS = 1
"""As a gateway publishes. Without it the broker's cores would go into thousands of requests a second."""
P50_MS_MAX, P99_MS_MAX, TIMES_FASTER = 5.0, 30.0, 20.0
CATCH_UP = 0.7
START_S_MAX = 3.0
FILE_START_S_MAX = 1.0


def run(stage: Stage, quick: bool) -> Report:
    """All of it; a job with Spark is only needed for the latency."""
    figures = [
        *_catch_up(stage, quick),
        *_start(stage, quick),
        *looking.figures(stage, quick),
        *_latency(stage, quick),
    ]
    return Report(
        "live",
        "latency over 1,000 groups, the job beside it on the same cores; catching up on 1,000 groups, 30 % late; "
        "start of a reader of 100,000 groups with state in the state topic; looking at as many",
        figures,
    )


# ── latency ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _latency(stage: Stage, quick: bool) -> Iterator[Figure]:
    warm_s, seconds, repeats = (2, 3, 1) if quick else (WARM_S, 15, 3)
    for per_s in (200,) if quick else (1_000, 5_000):
        found = [_both(stage, per_s, warm_s, seconds) for _ in range(repeats)]
        for quantile, most in (("p50", P50_MS_MAX), ("p99", P99_MS_MAX)):
            live, committed = ([getattr(one[at], quantile) for one in found] for at in (0, 1))
            sides = {"live": round(median(live), 1), "committed": round(median(committed), 1)}
            yield Figure(
                what=f"{quantile} at {per_s:,} messages/s, live",
                value=round(median(live), 1),
                unit="ms",
                target=most,
                more_is_better=False,
                sides=sides,
                sides_unit="ms",
            )
            if quantile == "p50":
                yield Figure(
                    what=f"{quantile} at {per_s:,} messages/s, committed to live",
                    value=round(median(b / a for a, b in zip(live, committed, strict=True)), 1),
                    target=TIMES_FASTER,
                    sides=sides,
                    sides_unit="ms",
                )


def _both(stage: Stage, per_s: int, warm_s: int, seconds: int) -> tuple[Times, Times]:
    """The times of a live reader and of a committed one, of the same messages."""
    settings = stage.settings()
    topics = describe(settings.bootstrap, [settings.raw_topic, settings.progress_topic])
    sink = Sink(settings, topics[settings.raw_topic], topics[settings.progress_topic])
    sink.open()
    query = order_query.start(
        stage.spark, settings, lambda batch, _: sink.publish(batch), partitions=PARTITIONS, state=sink.state
    )
    try:
        live = _process("bench.live_load", settings, settings.progress_topic, per_s, warm_s, seconds)
        committed = _process("bench.load", settings, None, per_s, warm_s, seconds)
        said = [one.communicate(timeout=60 + 4 * (warm_s + seconds))[0] for one in (live, committed)]
        times = msgspec.json.decode(said[0], type=Times), msgspec.json.decode(said[1], type=Times)
    finally:
        query.stop()
        sink.close()
    print(f"  {per_s:,}/s: live {times[0]}, committed {times[1]}", file=sys.stderr, flush=True)
    return times


def _process(
    module: str, settings: Settings, progress_topic: str | None, per_s: int, warm_s: int, seconds: int
) -> "subprocess.Popen[bytes]":
    topics = (
        [settings.raw_topic, settings.ordered_topic]
        if progress_topic is None
        else [settings.ordered_topic, progress_topic]
    )
    numbers = [str(per_s), str(warm_s), str(seconds), str(LINGER_MS)]
    command = [sys.executable, "-m", module, str(settings.bootstrap), *topics, *numbers]
    return subprocess.Popen(command, stdout=subprocess.PIPE, cwd=HOME)


# ── catching up ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _catch_up(stage: Stage, quick: bool) -> Iterator[Figure]:
    count, repeats = (20_000, 1) if quick else (1_000_000, 3)
    settings = stage.settings()
    stage.send(settings, whole(1_000, count))
    SmallJob(settings).close()  # it says what the stream is, and orders nothing
    found = [(catching_up_rate(settings, count), _kernel_rate(settings, count)) for _ in range(repeats)]
    yield Figure(
        what="catching up live, to the kernel alone",
        value=round(median(live / kernel for live, kernel in found), 2),
        target=CATCH_UP,
        sides={"live": round(median(one[0] for one in found)), "kernel": round(median(one[1] for one in found))},
    )


def catching_up_rate(settings: Settings, count: int) -> float:
    """Messages per second of a live reader that begins with the log; a job must have named the stream."""
    reader = _reader(settings)
    delivered = 0
    while not reader.is_live:  # the call that begins it may deliver something already
        delivered += len(reader.poll_all(0.01))
    began, before = time.perf_counter(), delivered
    while delivered < count:
        outputs = reader.poll_all(5.0)
        assert outputs, f"only {delivered:,} of {count:,} records came"
        delivered += len(outputs)
    took_s = time.perf_counter() - began
    reader.close()
    return (count - before) / took_s


def _kernel_rate(settings: Settings, count: int) -> float:
    """The kernel alone on the same records, from bytes to bytes."""
    rows = _rows(settings, count)
    kernel = Holdback(order=settings.order, partitions=PARTITIONS)
    gc.collect()
    gc.disable()
    began = time.perf_counter()
    receive, ordered = kernel.receive, 0
    for start in range(0, count, 2_000):
        for value, key, partition, offset, timestamp_ms in rows[start : start + 2_000]:
            receive(value, key, partition, offset, timestamp_ms)
        ordered += len(kernel.ordered)
        kernel.clear()
    took_s = time.perf_counter() - began
    gc.enable()
    assert ordered == count, f"the kernel delivered {ordered:,} of {count:,}"
    return count / took_s


def _rows(settings: Settings, count: int) -> list[tuple[bytes | None, bytes | None, int, int, int]]:
    consumer = Consumer(
        {"bootstrap.servers": str(settings.bootstrap), "group.id": "bench", "fetch.queue.backoff.ms": 10}
    )
    consumer.assign([TopicPartition(settings.raw_topic, at, 0) for at in range(PARTITIONS)])
    rows: list[tuple[bytes | None, bytes | None, int, int, int]] = []
    while len(rows) < count:
        for one in consumer.consume(10_000, 1.0):
            assert one.error() is None, one.error()
            rows.append((one.value(), one.key(), one.partition() or 0, one.offset() or 0, one.timestamp()[1]))
    consumer.close()
    return rows


# ── start ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _start(stage: Stage, quick: bool) -> Iterator[Figure]:
    groups, repeats = (1_000, 1) if quick else (100_000, 3)
    settings = stage.settings()
    stage.send(settings, three_each(groups))
    job = SmallJob(settings, state_every_ms=600_000)
    job.drain()
    job.write_states()
    job.close()
    took = [start_s(settings, None) for _ in range(repeats)]
    yield _within(f"start of a reader of {groups:,} groups", median(took), START_S_MAX)
    file = stage.folder / "live.state"
    start_s(settings, file)
    took = [start_s(settings, file) for _ in range(repeats)]
    yield _within("the same with its state in a file", median(took), FILE_START_S_MAX)


def _within(what: str, seconds: float, most: float) -> Figure:
    return Figure(what=what, value=round(seconds, 2), unit="s", target=most, more_is_better=False)


def three_each(groups: int) -> Iterator[Pair]:
    """Three messages of each group; the last one is held."""
    for seq, after in ((1, []), (2, [("ann", 0, 1)]), (4, [("ann", 0, 3)])):
        for number in range(groups):
            group = f"room-{number}"
            yield group.encode(), encode_message(group, "ann", 0, seq, after=after)


def start_s(settings: Settings, file: Path | None) -> float:
    """How long it takes until the reader is live."""
    began = time.perf_counter()
    reader = LiveReader(
        settings.bootstrap,
        ordered_topic=settings.ordered_topic,
        progress_topic=settings.progress_topic,
        start="end",
        state_file=file,
    )
    while not (reader.is_live and reader.at_end):
        reader.poll_all(0.01)
    took_s = time.perf_counter() - began
    reader.close()
    return took_s


def _reader(settings: Settings) -> LiveReader:
    return LiveReader(settings.bootstrap, ordered_topic=settings.ordered_topic, progress_topic=settings.progress_topic)
