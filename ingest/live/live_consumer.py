"""The consumers of a live reader: one of the ordered topic, and where the kernel runs one of the raw topic and of the
owners in the progress topic. They know how far each partition was read, and whether it was read to its end.

They are two because what is delivered must not wait for what is only compared: a job commits thousands of ordered
records at once, and in one consumer's queue the newest raw records would be behind them.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from precede.ingest.kafka import clients, reading
from precede.ingest.kafka.access import Address
from precede.ingest.live.collection import without_collection
from precede.ingest.live.live_kernel import RawRow
from precede.udfs.errors import Refused
from precede.udfs.records.messages import LogRecord

BATCH_RECORDS = 500
COMPARED_RECORDS = 100
"""So many ordered records are taken between two looks for raw ones."""
LOOK_S = 0.05
"""How long to wait for raw records at most before ordered ones are looked for."""
SETTINGS = {
    "group.id": "precede-live",  # the client requires it; without subscribe and commit it has no effect
    "enable.auto.commit": False,
    "isolation.level": "read_committed",
    "auto.offset.reset": "error",
    "fetch.wait.max.ms": 100,  # the broker answers at once where there is something
    "fetch.queue.backoff.ms": 10,  # the client's default of a second would show as pauses
    "socket.nagle.disable": True,
    **reading.SHOWS_ENDS,
}


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
        self._raw_topic: str | None = None
        self._ordered = self._consumer()
        self._raw: Consumer | None = None
        self._has_more_ordered = False
        self._next: dict[str, dict[int, int]] = {}
        """Per topic and partition, the next offset."""
        self._ended: dict[str, set[int]] = {}
        self._paused: set[int] = set()

    # ── where to read ─────────────────────────────────────────────────────────────────────────────────────────────

    def read_ordered(self, offsets: Mapping[int, int]) -> None:
        """Read the ordered topic alone, from these offsets on."""
        self._close_raw()
        self._paused = set()
        self._assign(self._ordered, {self._ordered_topic: offsets})

    def read_all(self, ordered_offsets: Mapping[int, int], raw_topic: str, raw_offsets: Mapping[int, int]) -> None:
        """Read the raw topic, too, and what comes into the progress topic; the ordered topic pauses at first."""
        self._raw_topic = raw_topic
        if self._raw is None:
            self._raw = self._consumer()
        progress_end = reading.ends(self._bootstrap, self._progress_topic, 1)[0][1]
        self._assign(self._raw, {raw_topic: raw_offsets, self._progress_topic: {0: progress_end}})
        self._assign(self._ordered, {self._ordered_topic: ordered_offsets})
        self._paused = set()
        self.pause_ordered(set(ordered_offsets))

    def _consumer(self) -> Consumer:
        return Consumer(clients.settings(self._bootstrap) | SETTINGS)

    def _assign(self, consumer: Consumer, offsets: Mapping[str, Mapping[int, int]]) -> None:
        for topic, found in offsets.items():
            if topic not in self._next:  # otherwise the client looks for its leaders once a second
                consumer.list_topics(topic, timeout=reading.REQUEST_S)
            self._next[topic], self._ended[topic] = dict(found), set()
        consumer.assign(
            [TopicPartition(topic, at, offset) for topic, found in offsets.items() for at, offset in found.items()]
        )

    def _close_raw(self) -> None:
        """Read the raw topic no more."""
        raw, self._raw = self._raw, None
        self._raw_topic = None
        for topic in self._next.keys() - {self._ordered_topic}:
            del self._next[topic], self._ended[topic]
        if raw is not None:
            raw.close()

    def pause_ordered(self, partitions: set[int]) -> None:
        """Read these partitions of the ordered topic no further for now, and all others."""
        if pause := partitions - self._paused:
            self._ordered.pause([TopicPartition(self._ordered_topic, at) for at in pause])
        if resume := self._paused - partitions:
            self._ordered.resume([TopicPartition(self._ordered_topic, at) for at in resume])
        self._paused = partitions

    @property
    def ordered_offsets(self) -> dict[int, int]:
        """Per partition of the ordered topic, the next offset to read."""
        return self._next.get(self._ordered_topic, {})

    @property
    def ordered_at_end(self) -> bool:
        """Whether the ordered topic was read to its end."""
        return self._at_end(self._ordered_topic)

    @property
    def raw_at_end(self) -> bool:
        """Whether the raw topic was read to its end."""
        return self._raw_topic is not None and self._at_end(self._raw_topic)

    def _at_end(self, topic: str) -> bool:
        return topic in self._next and self._ended[topic] >= self._next[topic].keys()

    # ── what comes ────────────────────────────────────────────────────────────────────────────────────────────────

    def read(self, timeout_s: float) -> Batch | None:
        """What has come; waits up to this time for the first of it."""
        batch = Batch([], {}, [], [])
        with without_collection():  # messages hold no cycles
            messages = self._come(self._ordered, timeout_s) if self._raw is None else self._come_live(timeout_s)
            self._take(messages, batch)
        self._advance(self._raw_topic or "", batch.raw)
        self._advance(self._ordered_topic, batch.ordered)
        return batch if messages else None

    def _come(self, consumer: Consumer, timeout_s: float) -> list[Message]:
        first = consumer.poll(timeout_s)
        return [] if first is None else [first, *consumer.consume(BATCH_RECORDS, timeout=0)]

    def _come_live(self, timeout_s: float) -> list[Message]:
        """What is in the raw topic now, and a little of the ordered topic."""
        assert self._raw is not None
        raw = self._come(self._raw, 0.0 if self._has_more_ordered else min(timeout_s, LOOK_S))
        ordered = self._ordered.consume(COMPARED_RECORDS, timeout=0)
        self._has_more_ordered = len(ordered) == COMPARED_RECORDS
        return raw + ordered

    def _take(self, messages: list[Message], batch: Batch) -> None:
        raw_topic, ordered_topic = self._raw_topic, self._ordered_topic
        add = batch.raw.append
        for message in messages:
            if message.error() is not None:
                self._take_note(message, batch)
                continue
            topic = message.topic()
            row: Any = (message.value(), message.key(), message.partition(), message.offset(), message.timestamp()[1])
            if topic == raw_topic:
                add(row)
            elif topic == ordered_topic:
                batch.ordered.append(LogRecord(*row))
            else:
                batch.progress.append((row[1], row[0]))

    def _advance(self, topic: str, records: Sequence[RawRow]) -> None:
        """Go on behind these records."""
        at = self._next.get(topic, {})
        for partition, offset in {row[2]: row[3] for row in records}.items():
            if offset >= at[partition]:
                at[partition] = offset + 1
                self._ended[topic].discard(partition)

    def _take_note(self, message: Message, batch: Batch) -> None:
        """The end of a partition, or an error of one."""
        topic, error = message.topic() or "", message.error()
        end = reading.end_of(message)
        if end is not None:
            at = self._next.get(topic, {})
            if end.partition in at and end.offset >= at[end.partition]:
                at[end.partition] = end.offset
                self._ended[topic].add(end.partition)
                if topic == self._raw_topic:
                    batch.raw_ends[end.partition] = end.offset
            return
        assert error is not None
        if error.code() == KafkaError._AUTO_OFFSET_RESET:
            raise Refused(
                f"Partition {message.partition()} of {topic} no longer has the records that come next: a retention "
                "deleted them, or the topic was made again. Start again."
            )
        if error.code() in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC):
            raise Refused(f"The topic {topic} has been deleted.")
        if error.code() in clients.NOT_ALLOWED:
            raise clients.unreadable(self._bootstrap, topic, error)

    def close(self) -> None:
        """Close the connection to the broker."""
        self._close_raw()
        self._ordered.close()
