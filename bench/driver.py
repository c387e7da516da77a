"""What one driver can publish: from the packed rows of an ordered batch to the committed transaction.

The kernel is left out: the rows wait in Spark's cache, as those of a batch that the executors have ordered.
"""

import gc
import time
from collections.abc import Iterator
from statistics import median

import msgspec
import psutil

from bench.figures import Figure, Report
from bench.stage import PARTITIONS, Stage
from precede.ingest.kafka.topics import describe
from precede.streaming.order.sink import Sink
from precede.udfs.holdback import Holdback
from precede.udfs.partitioner import DEFAULT_PARTITIONER, partition_of
from precede.udfs.records.wire import encode_message
from precede.udfs.shard import ROW_TYPE, shard_number
from precede.udfs.steps import Row, steps

SIZES = (125, 1_000)
GROUPS = 1_000
WARM_BATCHES = 2

PackedColumns = tuple[int, int, int, int, int, bytes]


def run(stage: Stage, quick: bool) -> Report:
    """Batches of small records, and of larger ones."""
    count, batches = (2_000, 1) if quick else (100_000, 7)
    figures: list[Figure] = []
    for size in SIZES:
        found = list(_publish(stage, size, count, batches + WARM_BATCHES))[WARM_BATCHES:]
        for at, what in enumerate(("messages/s", "messages per CPU second")):
            value = round(median(one[at] for one in found))
            figures.append(Figure(what=f"raw records of {size:,} bytes: {what}", value=value, unit=what))
    sizes = f"batches of {count:,} messages of {GROUPS:,} groups, 16 shards, {PARTITIONS} raw partitions"
    return Report("driver", sizes, figures)


def _publish(stage: Stage, size: int, count: int, batches: int) -> Iterator[tuple[float, float]]:
    """Of each batch, the messages per second, and per second of the processor time of driver and JVM."""
    settings = stage.settings()
    topics = describe(settings.bootstrap, [settings.raw_topic, settings.progress_topic])
    sink = Sink(settings, topics[settings.raw_topic], topics[settings.progress_topic])
    sink.open()
    sink.follow_horizon(is_fresh=True)
    jvm = stage.spark._jvm
    assert jvm is not None
    driver = [psutil.Process(), psutil.Process(jvm.java.lang.ProcessHandle.current().pid())]
    try:
        for rows in _batches(settings.shards, size, count, batches):
            batch = stage.spark.createDataFrame(rows, ROW_TYPE).persist()
            batch.count()
            gc.collect()
            began, before_s = time.monotonic(), _cpu_s(driver)
            sink.publish(batch)
            took_s, cpu_s = time.monotonic() - began, _cpu_s(driver) - before_s
            yield count / took_s, count / cpu_s
        assert sink.counts.delivered == count * batches, f"only {sink.counts.delivered:,} messages were published"
    finally:
        sink.close()


def _cpu_s(processes: list[psutil.Process]) -> float:
    return sum(times.user + times.system for times in (one.cpu_times() for one in processes))


def _batches(shards: int, size: int, count: int, batches: int) -> Iterator[list[PackedColumns]]:
    """The rows of each batch as the shards pack them; every message is delivered at once."""
    kernels = [Holdback(partitions=PARTITIONS, home=number == 0) for number in range(shards)]
    offsets = [0] * PARTITIONS
    padding = "x" * (size - len(_message("room-999", 9_999, "")))
    for batch in range(batches):
        arrived: list[list[Row]] = [[] for _ in range(shards)]
        for number in range(batch * count, (batch + 1) * count):
            group, seq = f"room-{number % GROUPS}", number // GROUPS + 1
            key = group.encode()
            partition = partition_of(key, PARTITIONS, DEFAULT_PARTITIONER)
            row = partition, offsets[partition], key, _message(group, seq, padding), 0
            arrived[shard_number(key, shards)].append(row)
            offsets[partition] += 1
        yield [row for shard in range(shards) for row in _packed(kernels[shard], shard, sorted(arrived[shard]))]


def _message(group: str, seq: int, data: str) -> bytes:
    return encode_message(group, "alice", 0, seq, after=[("alice", 0, seq - 1)] if seq > 1 else [], data=data)


def _packed(kernel: Holdback, shard: int, rows: list[Row]) -> Iterator[PackedColumns]:
    for part, (partition, offset, records, _) in enumerate(steps(kernel, rows, 0)):
        packed = msgspec.msgpack.encode(records)
        yield shard, part, partition, offset, len(packed), packed
