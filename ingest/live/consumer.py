"""The consumers of a live reader: one of the ordered topic, and where the kernel runs one of the raw topic and of the
owners in the progress topic.

They are two because what is delivered must not wait for what is only compared: a job commits thousands of ordered
records at once, and in one consumer's queue the newest raw records would be behind them.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from confluent_kafka import Message

from precede.ingest.gc_paused import gc_paused
from precede.ingest.kafka import reading
from precede.ingest.kafka.access import Address
from precede.ingest.kafka.assigned_consumer import AT_ONCE, AssignedConsumer
from precede.ingest.live.kernel import RawRow
from precede.udfs.records.messages import LogRecord

BATCH_RECORDS = 500
COMPARED_RECORDS = 100
"""So many ordered records are taken between two looks for raw ones."""
LOOK_S = 0.05
"""How long to wait for raw records at most before ordered ones are looked for."""


class Batch(NamedTuple):
    """What has come, of each topic in the order of its partitions."""

    raw: list[RawRow]
    raw_ends: dict[int, int]
    ordered: list[LogRecord]
    progress: list[tuple[bytes | None, bytes | None]]


class LiveConsumer:
    """Reads committed records of these topics."""

    def __init__(self, bootstrap: Address | str, ordered_topic: str, progress_topic: str) -> None:
        self._bootstrap = bootstrap
        self._ordered_topic = ordered_topic
        self._progress_topic = progress_topic
        self._raw_topic = ""
        self._ordered = AssignedConsumer(bootstrap, AT_ONCE)
        self._raw: AssignedConsumer | None = None
        self._has_more_ordered = False

    # ── where to read ─────────────────────────────────────────────────────────────────────────────────────────────

    def read_ordered(self, offsets: Mapping[int, int]) -> None:
        """Read the ordered topic alone, from these offsets on."""
        self._close_raw()
        self._assign_ordered(offsets)

    def read_all(self, ordered_offsets: Mapping[int, int], raw_topic: str, raw_offsets: Mapping[int, int]) -> None:
        """Read the raw topic, too, and what comes into the progress topic; the ordered topic pauses at first."""
        if self._raw is None:
            self._raw = AssignedConsumer(self._bootstrap, AT_ONCE)
            self._raw.look_up(raw_topic)
            self._raw.look_up(self._progress_topic)
        self._raw_topic = raw_topic
        progress_end = reading.ends(self._bootstrap, self._progress_topic, 1)[0][1]
        self._raw.assign({raw_topic: raw_offsets, self._progress_topic: {0: progress_end}})
        self._assign_ordered(ordered_offsets)
        self.pause_ordered(set(ordered_offsets))

    def _assign_ordered(self, offsets: Mapping[int, int]) -> None:
        if not self.ordered_offsets:
            self._ordered.look_up(self._ordered_topic)
        self._ordered.assign({self._ordered_topic: offsets})

    def _close_raw(self) -> None:
        """Read the raw topic no more."""
        raw, self._raw = self._raw, None
        if raw is not None:
            raw.close()

    def pause_ordered(self, partitions: set[int]) -> None:
        """Read these partitions of the ordered topic no further for now, and all others."""
        self._ordered.pause(self._ordered_topic, partitions)

    @property
    def ordered_offsets(self) -> dict[int, int]:
        """Per partition of the ordered topic, the next offset to read."""
        return self._ordered.offsets(self._ordered_topic)

    @property
    def ordered_at_end(self) -> bool:
        """Whether the ordered topic was read to its end."""
        return self._ordered.at_end(self._ordered_topic)

    @property
    def raw_at_end(self) -> bool:
        """Whether the raw topic was read to its end."""
        return self._raw is not None and self._raw.at_end(self._raw_topic)

    # ── what comes ────────────────────────────────────────────────────────────────────────────────────────────────

    def read(self, timeout_s: float) -> Batch | None:
        """What has come; waits up to this time for the first of it."""
        batch = Batch([], {}, [], [])
        raw: list[Message] = []
        with gc_paused():  # messages hold no cycles
            if self._raw is None:
                ordered = self._ordered.poll(timeout_s, BATCH_RECORDS)
            else:
                raw = self._raw.poll(0.0 if self._has_more_ordered else min(timeout_s, LOOK_S), BATCH_RECORDS)
                ordered = self._ordered.come(COMPARED_RECORDS)
                self._has_more_ordered = len(ordered) == COMPARED_RECORDS
                self._take_raw(raw, batch, self._raw)
            self._take_ordered(ordered, batch)
        return batch if raw or ordered else None

    def _take_raw(self, messages: list[Message], batch: Batch, consumer: AssignedConsumer) -> None:
        raw_topic, add = self._raw_topic, batch.raw.append
        for message in messages:
            if message.error() is not None:
                end = consumer.note(message)
                if end is not None and message.topic() == raw_topic:
                    batch.raw_ends[end.partition] = end.offset
            elif message.topic() == raw_topic:
                row: Any = (
                    message.value(),
                    message.key(),
                    message.partition(),
                    message.offset(),
                    message.timestamp()[1],
                )
                add(row)
            else:
                batch.progress.append((message.key(), message.value()))
        consumer.advance(raw_topic, {row[2]: row[3] for row in batch.raw})

    def _take_ordered(self, messages: list[Message], batch: Batch) -> None:
        for message in messages:
            if message.error() is not None:
                self._ordered.note(message)
            else:
                row: Any = (
                    message.value(),
                    message.key(),
                    message.partition(),
                    message.offset(),
                    message.timestamp()[1],
                )
                batch.ordered.append(LogRecord(*row))
        self._ordered.advance(self._ordered_topic, {row.partition: row.offset for row in batch.ordered})

    def close(self) -> None:
        """Close the connection to the broker."""
        self._close_raw()
        self._ordered.close()
