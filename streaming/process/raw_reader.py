"""Reads the raw topic for the kernel: committed records, as soon as they come, of partitions it assigns itself."""

from collections.abc import Callable, Mapping

from confluent_kafka import KafkaError, Message

from precede.ingest.kafka.access import Address
from precede.ingest.kafka.assigned_consumer import AssignedConsumer, Endings
from precede.ingest.kafka.reading import SHOWS_ENDS
from precede.udfs.steps import Row

TAKE_MAX = 5_000
"""So many records are taken at once."""
PREFETCH_KIB = 32 * 1024
ENDINGS = Endings(
    lost=(
        "The raw topic {topic} has lost messages that were not ordered yet: partition {partition} no longer has the "
        "record that comes next ({why})."
    ),
    deleted="The raw topic {topic} has been deleted.",
)


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
        self._left = set(offsets)
        more = {"queued.max.messages.kbytes": PREFETCH_KIB} | (SHOWS_ENDS if until_end else {})
        self._consumer = AssignedConsumer(bootstrap, more, endings=ENDINGS, on_error=on_error)
        self._consumer.assign({topic: offsets})

    @property
    def has_ended(self) -> bool:
        """Whether each partition has been read to where it ended at some moment since the start."""
        return not self._left

    def take(self, timeout_s: float) -> list[Row]:
        """The records that have come, by partition and offset; waits up to this time for the first one."""
        rows = [
            (message.partition(), message.offset(), message.key(), message.value(), message.timestamp()[1])
            for message in self._consumer.poll(timeout_s, TAKE_MAX)
            if message.error() is None or self._note(message)
        ]
        rows.sort()  # no two rows share (partition, offset), so keys and values are never compared
        return rows  # type: ignore[return-value]  # a record that was read has all this

    def _note(self, message: Message) -> bool:
        """Note an end, or raise what does not pass by itself; always False, because there is no record."""
        end = self._consumer.note(message)
        if end is not None:
            self._left.discard(end.partition)
        return False

    def close(self) -> None:
        """Close the connection to the broker."""
        self._consumer.close()
