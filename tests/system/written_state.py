"""Writes what a job would have written, by the kernel alone: for tests of readers that need no Spark."""

import time

from confluent_kafka import Producer

from precede.ingest.kafka.topics import describe
from precede.ingest.progress import StreamTopics, horizon_record, new_owner, owner_record, token_record
from precede.streaming.settings import Settings
from precede.udfs.engine.snapshot import outline
from precede.udfs.holdback import Holdback
from precede.udfs.records.state_pieces import pieces
from precede.udfs.rules import RULES
from tests.records import Row

QUEUE = {"queue.buffering.max.messages": 1_000_000}


def write(
    settings: Settings,
    rows: list[Row],
    partitions: int,
    *,
    horizon: dict[int, int] | None = None,
    rules: int = RULES,
    stream: str | None = None,
) -> Holdback:
    """Order these raw records, which are in the raw topic, and publish all that comes of them; the kernel is returned.

    The state of each group stands at the end of its partition's records; `horizon` may say that less is covered.
    """
    kernel = Holdback(order=settings.order, partitions=partitions, patience=settings.patience())
    producer = Producer({"bootstrap.servers": str(settings.bootstrap), "partitioner": "murmur2_random"} | QUEUE)
    reached = dict.fromkeys(range(partitions), 0)
    for key, value, partition, offset, timestamp_ms in sorted(rows, key=lambda row: row[2:4]):
        kernel.receive(value, key, partition, offset, timestamp_ms)
        reached[partition] = offset + 1
    for key, value in zip(kernel.ordered_keys, kernel.ordered, strict=True):
        producer.produce(settings.ordered_topic, value, key)
        producer.poll(0)
    for raw_key, value in zip(kernel.dead_keys, kernel.dead, strict=True):
        producer.produce(settings.dead_letter_topic, value, raw_key)
    kernel.clear()
    names = (settings.raw_topic, settings.ordered_topic, settings.dead_letter_topic, settings.state_topic_name)
    found = describe(settings.bootstrap, list(names))
    raw, ordered, dead, state = (found[name] for name in names)
    for key, blob in kernel.dump().items():
        partition = outline(key, blob).partition
        waiting = kernel.waiting_of(key) or (0, 0, 0)
        head = {"stream": stream or ordered.id, "rules": rules, "next_offset": reached[partition], "waiting": waiting}
        for name, piece in pieces(key, blob, **head):  # type: ignore[arg-type]
            producer.produce(state.name, piece, name, partition)
    owner = new_owner(
        StreamTopics(raw, ordered, dead, state),
        job="by the kernel",
        order=settings.order,
        limits=settings.limits,
        partitioner=settings.partitioner,
        since_ms=round(time.time() * 1000),
        rules=rules,
    )
    for partition, offset in reached.items():
        covered = (horizon or reached).get(partition, 0)
        for record in (
            owner_record(ordered.name, partition, owner),
            horizon_record(ordered.name, partition, covered),
            token_record(ordered.name, partition, offset),
        ):
            producer.produce(settings.progress_topic, record[1], record[0])
    assert producer.flush(60) == 0
    return kernel
