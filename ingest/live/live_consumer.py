"""One consumer for the topics of a live reader: the ordered topic, and where the kernel runs also the raw topic and the
owners in the progress topic. It knows how far each partition was read, and whether it was read to its end.
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
        self._consumer = Consumer(clients.settings(bootstrap) | SETTINGS)
        self._next: dict[str, dict[int, int]] = {}
        """Per topic and partition, the next offset."""
        self._ended: dict[str, set[int]] = {}
        self._paused: set[int] = set()

    # ── where to read ─────────────────────────────────────────────────────────────────────────────────────────────

    def read_ordered(self, offsets: Mapping[int, int]) -> None:
        """Read the ordered topic alone, from these offsets on."""
        self._raw_topic = None
        self._paused = set()
        self._assign({self._ordered_topic: dict(offsets)})

    def read_all(self, ordered_offsets: Mapping[int, int], raw_topic: str, raw_offsets: Mapping[int, int]) -> None:
        """Read the raw topic, too, and what comes into the progress topic; the ordered topic pauses at first."""
        self._raw_topic = raw_topic
        progress_end = reading.ends(self._bootstrap, self._progress_topic, 1)[0][1]
        self._assign(
            {
                self._ordered_topic: dict(ordered_offsets),
                raw_topic: dict(raw_offsets),
                self._progress_topic: {0: progress_end},
            }
        )
        self._paused = set()
        self.pause_ordered(set(ordered_offsets))

    def _assign(self, offsets: dict[str, dict[int, int]]) -> None:
        for topic in offsets.keys() - self._next.keys():  # otherwise the client looks for its leaders once a second
            self._consumer.list_topics(topic, timeout=reading.REQUEST_S)
        self._next = offsets
        self._ended = {topic: set() for topic in offsets}
        self._consumer.assign(
            [TopicPartition(topic, at, offset) for topic, found in offsets.items() for at, offset in found.items()]
        )

    def pause_ordered(self, partitions: set[int]) -> None:
        """Read these partitions of the ordered topic no further for now, and all others."""
        if pause := partitions - self._paused:
            self._consumer.pause([TopicPartition(self._ordered_topic, at) for at in pause])
        if resume := self._paused - partitions:
            self._consumer.resume([TopicPartition(self._ordered_topic, at) for at in resume])
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
        first = self._consumer.poll(timeout_s)
        if first is None:
            return None
        batch = Batch([], {}, [], [])
        with without_collection():  # messages hold no cycles
            self._take([first, *self._consumer.consume(BATCH_RECORDS, timeout=0)], batch)
        self._advance(self._raw_topic or "", batch.raw)
        self._advance(self._ordered_topic, batch.ordered)
        return batch

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
        self._consumer.close()
