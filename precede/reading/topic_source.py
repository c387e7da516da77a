"""What the sources of deliveries that read the ordered topic share."""

from time import monotonic
from typing import Protocol

from precede.reading.delivery import Delivery, as_delivery
from precede.udfs.errors import Hole
from precede.udfs.records.messages import LogRecord


class Reader(Protocol):
    """What a source needs of a Kafka client."""

    def starts(self, topic: str, *, at_end: bool, timeout_s: float) -> dict[int, int]:
        """The first, or the next, offset of each partition; empty if the topic does not exist yet."""

    def read(self, timeout_s: float) -> list[LogRecord]:
        """The records that have come; waits up to this time for the first one."""

    def at_end(self) -> bool:
        """Whether everything has been read, as far as the last reads showed."""

    def close(self) -> None:
        """Close the connection to the broker."""


class TopicSource:
    """Reads records, and hands over those of the followed group that the consumer's rule admits."""

    def __init__(self, reader: Reader, *, topic: str, group: str | None) -> None:
        self._reader = reader
        self._topic = topic
        self._key = None if group is None else group.encode()
        self._waiting: list[LogRecord] = []  # read from Kafka but not yet handled, newest first
        self._partition = -1  # of the record that is looked at
        self._has_begun = False
        self._was_at_end = False
        self._came_lately = False

    @property
    def at_end(self) -> bool:
        """Whether everything was delivered, according to the last reads."""
        return self._has_begun and not self._waiting and self._reader.at_end()

    @property
    def has_begun(self) -> bool:
        """Whether the topic was there, and is read."""
        return self._has_begun

    @property
    def is_catching_up(self) -> bool:
        """Whether records came lately, and the end of the topic has not been seen yet."""
        return self._came_lately and not self._was_at_end

    def poll(self, timeout_s: float) -> Delivery | None:
        """The next message, or None if none came in this time. Raises Hole once if positions are missing."""
        if not self.begin(timeout_s):
            return None
        deadline = monotonic() + timeout_s
        while True:
            delivery = self._next()
            if delivery is not None:
                return delivery
            self._waiting = self._mine(self._reader.read(max(0.0, deadline - monotonic())))[::-1]
            self._came_lately = bool(self._waiting)
            if not self._was_at_end and self.at_end:
                self._note_end()
                self._was_at_end = True
            if not self._waiting and monotonic() >= deadline:
                return None

    @property
    def waits_for(self) -> str | None:
        """What must be there before anything can be read; None if it is."""
        return None if self._has_begun else f"the topic {self._topic}"

    def is_at_cut(self, hole: Hole) -> bool:
        """Whether this hole is where the reading began, and the topic had lost its beginning by then."""
        raise NotImplementedError

    def begin(self, timeout_s: float) -> bool:
        """Start reading, if that has not happened; False, after this time, if the topic does not exist yet."""
        self._has_begun = self._has_begun or self._begin(timeout_s)
        return self._has_begun

    def close(self) -> None:
        """Close the connection to the broker."""
        self._reader.close()

    def _next(self) -> Delivery | None:
        """The next message among the records that were read."""
        while self._waiting:
            record = self._waiting[-1]
            self._partition = record.partition
            delivery = self._delivery_in(record)  # after a hole the record stays here, to be delivered next
            self._waiting.pop()
            if delivery is not None:
                self._hand_over(record.offset + 1)
                return delivery
            self._pass_over(record.offset + 1)
        return None

    def _delivery_in(self, record: LogRecord) -> Delivery | None:
        if record.value is None or (self._key is not None and record.key != self._key):
            return None
        delivery = as_delivery(record.value, f"{self._topic}, offset {record.offset},")
        return delivery if self._admits(delivery) else None

    def _note_end(self) -> None:
        """The end was seen, for the first time. Raises Refused if what was asked for lies behind it."""

    def _mine(self, records: list[LogRecord]) -> list[LogRecord]:
        """Those of the records that were read which this source should hand over."""
        return records

    def _begin(self, timeout_s: float) -> bool:
        """Start reading; False, after this time, if the topic does not exist yet."""
        raise NotImplementedError

    def _admits(self, delivery: Delivery) -> bool:
        """Whether to hand it over. Raises Hole once if positions are missing."""
        raise NotImplementedError

    def _hand_over(self, next_offset: int) -> None:
        """What lies before this offset of `_partition` is handed over."""
        raise NotImplementedError

    def _pass_over(self, next_offset: int) -> None:
        """The same, where the last record was not for this follower."""
        raise NotImplementedError
