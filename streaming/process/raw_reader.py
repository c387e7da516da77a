"""Reads the raw topic for the kernel: committed records, as soon as they come, of partitions it assigns itself."""

from collections.abc import Callable, Mapping

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from precede.ingest.kafka import clients
from precede.ingest.kafka.access import Address
from precede.ingest.kafka.reading import SHOWS_ENDS, end_of
from precede.udfs.errors import Refused
from precede.udfs.steps import Row

TAKE_MAX = 5_000
"""So many records are taken at once."""
PREFETCH_KIB = 32 * 1024

FATAL = {KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.UNKNOWN_TOPIC_ID}
"""Other errors pass by themselves, and the client tries again."""


class RawReader:
    """The rows of the log, in the order of each partition."""

    def __init__(
        self,
        bootstrap: Address | str,
        topic: str,
        offsets: Mapping[int, int],
        *,
        on_error: Callable[[KafkaError], object],
        until_end: bool = False,
    ) -> None:
        """Read these partitions from these offsets on; with `until_end`, it is noted where each ends."""
        self._bootstrap = bootstrap
        self._topic = topic
        self._left = set(offsets)
        self._consumer = Consumer(
            clients.settings(bootstrap)
            | {
                "group.id": "precede-reads",  # the client requires it; without subscribe and commit it has no effect
                "error_cb": on_error,
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "isolation.level": "read_committed",
                "auto.offset.reset": "error",  # records that the log no longer has must not be skipped in silence
                "fetch.queue.backoff.ms": 10,
                "queued.max.messages.kbytes": PREFETCH_KIB,
            }
            | (SHOWS_ENDS if until_end else {})
        )
        self._consumer.assign([TopicPartition(topic, at, offset) for at, offset in offsets.items()])

    @property
    def has_ended(self) -> bool:
        """Whether each partition has been read to where it ended at some moment since the start."""
        return not self._left

    def take(self, timeout_s: float) -> list[Row]:
        """The records that have come, by partition and offset; waits up to this time for the first one."""
        first = self._consumer.poll(timeout_s)
        if first is None:
            return []
        rows = [
            (message.partition(), message.offset(), message.key(), message.value(), message.timestamp()[1])
            for message in (first, *self._consumer.consume(TAKE_MAX, timeout=0))
            if message.error() is None or self._take_error(message)
        ]
        rows.sort()  # no two rows share (partition, offset), so keys and values are never compared
        return rows  # type: ignore[return-value]  # a record that was read has all this

    def close(self) -> None:
        """Close the connection to the broker."""
        self._consumer.close()

    def _take_error(self, message: Message) -> bool:
        """Note an end, or raise what does not pass by itself; always False, because there is no record."""
        error = message.error()
        assert error is not None
        end = end_of(message)
        if end is not None:
            self._left.discard(end.partition)
        elif error.code() == KafkaError._AUTO_OFFSET_RESET:
            raise Refused(
                f"The raw topic {self._topic} has lost messages that were not ordered yet: partition "
                f"{message.partition()} no longer has the record that comes next ({error.str()})."
            )
        elif error.code() in FATAL:
            raise clients.unreadable(self._bootstrap, self._topic, error) from KafkaException(error)
        return False
