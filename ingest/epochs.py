"""Which epoch a sender may start with when nothing is remembered of it: the log itself is asked.

The partition of the group is read once; what the sender has in it tells its largest epoch, and the next one is free.
A log too long to read in a few seconds cannot be asked, and then the epoch is the time in seconds, which is larger
than any counted one.
"""

import time

import msgspec
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, TopicPartition

from ingest import clients
from ingest.errors import Refused

READ_S_MAX = 5.0
BATCH_RECORDS = 5000


class _Id(msgspec.Struct):
    """The part of a raw record that tells whose it is."""

    sender: str
    epoch: int = 0


_decode = msgspec.json.Decoder(_Id).decode


def free_epoch(bootstrap: str, topic: str, group: str, sender: str) -> int:
    """0 for a sender the log has never seen, else one more than its largest epoch there."""
    consumer = Consumer(
        clients.settings(bootstrap)
        | {"group.id": "precede-epochs", "enable.auto.commit": False, "enable.partition.eof": True}
    )
    try:
        largest = _largest(consumer, topic, group.encode(), sender)
    except KafkaException as error:
        why = clients.reason(bootstrap, error.args[0])
        raise Refused(f"Kafka at {bootstrap} did not let {topic} be read: {why}.") from error
    finally:
        consumer.close()
    return int(time.time()) if largest is None else largest + 1


def _largest(consumer: Consumer, topic: str, key: bytes, sender: str) -> int | None:
    """The largest epoch the sender has in the log, -1 for none, None where there was no time to read it all."""
    deadline = time.monotonic() + READ_S_MAX
    largest = -1
    for partition in consumer.list_topics(topic, timeout=READ_S_MAX).topics[topic].partitions:
        start, end = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=READ_S_MAX)
        if start == end:
            continue
        consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING)])
        ended = False
        while not ended:
            if time.monotonic() > deadline:
                return None
            for message in consumer.consume(BATCH_RECORDS, timeout=0.5):
                # Asked for by enable.partition.eof; counting offsets would wait for ever behind a transaction's own
                # mark.
                ended = message.error() is not None
                if message.key() == key and not ended:
                    largest = max(largest, _epoch(message.value(), sender))
    return largest


def _epoch(value: bytes | None, sender: str) -> int:
    try:
        found = _decode(value or b"")
    except msgspec.DecodeError:
        return -1
    return found.epoch if found.sender == sender else -1
