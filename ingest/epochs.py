"""What the log itself tells of a group: which epoch a sender may start with when nothing is remembered of it, and how
the group was created where nothing of it is ordered yet.

The partition of the group is read once; what the sender has in it tells its largest epoch, and the next one is free.
A log too long to read in a few seconds cannot be asked, and then the epoch is the time in seconds, which is larger
than any counted one.
"""

import time
from collections.abc import Iterator

import msgspec
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, TopicPartition

from ingest import clients
from ingest.errors import Refused
from udfs.leniently import lenient_reader
from udfs.messages import Create

READ_S_MAX = 5.0
RETRY_S = 0.1
BATCH_RECORDS = 5000


class _Id(msgspec.Struct):
    """The part of a raw record that tells whose it is."""

    sender: str
    epoch: int = 0


_read_id = lenient_reader(_Id)


class _TooLong(Exception):
    """The log could not be read to its end in time."""


def free_epoch(bootstrap: str, topic: str, group: str, sender: str) -> int:
    """0 for a sender the log has never seen, else one more than its largest epoch there."""
    largest = -1
    try:
        for value in _values(bootstrap, topic, group):
            largest = max(largest, epoch_of(value, sender))
    except _TooLong:
        return int(time.time())
    return largest + 1


def created_as(bootstrap: str, topic: str, group: str) -> Create | None:
    """The record that creates the group, where that is the first the log has of it; a log too long is not asked."""
    try:
        first = next(_values(bootstrap, topic, group), None)
    except _TooLong:
        return None
    return None if first is None else as_create(first)


def as_create(value: bytes) -> Create | None:
    """A raw record that begins a group, None where it is any other; read strictly, for it decides what is sent."""
    try:
        found = msgspec.json.decode(value, type=Create)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return found if found.kind == "create" else None


def _values(bootstrap: str, topic: str, group: str) -> Iterator[bytes]:
    """The raw records of a group, in the order of the log."""
    consumer = Consumer(
        clients.settings(bootstrap)
        | {"group.id": "precede-epochs", "enable.auto.commit": False, "enable.partition.eof": True}
    )
    try:
        yield from _read(consumer, topic, group.encode())
    except KafkaException as error:
        why = clients.reason(bootstrap, error.args[0])
        raise Refused(f"Kafka at {bootstrap} did not let {topic} be read: {why}.") from error
    finally:
        consumer.close()


def _read(consumer: Consumer, topic: str, key: bytes) -> Iterator[bytes]:
    deadline = time.monotonic() + READ_S_MAX
    for partition in consumer.list_topics(topic, timeout=READ_S_MAX).topics[topic].partitions:
        start, end = _ends(consumer, TopicPartition(topic, partition), deadline)
        if start == end:
            continue
        consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING)])
        ended = False
        while not ended:
            if time.monotonic() > deadline:
                raise _TooLong
            for message in consumer.consume(BATCH_RECORDS, timeout=0.5):
                # Asked for by enable.partition.eof; counting offsets would wait for ever behind a transaction's own
                # mark.
                ended = message.error() is not None
                if message.key() == key and not ended:
                    yield message.value() or b""


def _ends(consumer: Consumer, place: TopicPartition, deadline: float) -> tuple[int, int]:
    while True:
        try:
            return consumer.get_watermark_offsets(place, timeout=READ_S_MAX)
        except KafkaException as error:
            if not clients.is_new(error.args[0]) or time.monotonic() > deadline:
                raise
            time.sleep(RETRY_S)


def epoch_of(value: bytes, sender: str) -> int:
    """The epoch of a raw record where it is this sender's, else -1; whoever else has published what may come here."""
    try:
        found = _read_id(value)
    except msgspec.DecodeError:
        return -1
    return found.epoch if found.sender == sender else -1
