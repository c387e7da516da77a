"""A consumer of committed records that assigns itself its partitions: of the live reader, the gateway and the engine.

It knows how far each partition was read and whether to its end, and says in one place what an error of a partition
means. A restart waits for no session of a dead consumer, because no one else assigns anything.

Records come as the client's own messages, because its callers are fast: they build what they need in one pass. They
hand a message with an error to `note`, and tell `advance` what they have read.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from precede.ingest.kafka import clients, reading
from precede.ingest.kafka.access import Address
from precede.ingest.kafka.reading import SHOWS_ENDS, End, end_of
from precede.udfs.errors import Refused

SETTINGS = {
    "group.id": "precede-reads",  # the client requires it; without subscribe and commit it has no effect
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "isolation.level": "read_committed",
    "auto.offset.reset": "error",  # records that the log no longer has must not be skipped in silence
    "fetch.queue.backoff.ms": 10,  # the client's default of a second would show as pauses
}
AT_ONCE = {
    "fetch.wait.max.ms": 100,  # the broker answers at once where there is something
    "socket.nagle.disable": True,
    **SHOWS_ENDS,
}
"""For consumers whose records are handed over within milliseconds."""


class Endings(NamedTuple):
    """What to say where a partition cannot be read on: sentences with `topic`, `partition` and `why` in braces."""

    lost: str = (
        "Partition {partition} of {topic} no longer has the records that come next: a retention deleted them, or the "
        "topic was made again. Start again."
    )
    deleted: str = "The topic {topic} has been deleted."


class AssignedConsumer:
    """Reads committed records from the offsets on that it is told; errors that pass by themselves are passed over."""

    def __init__(
        self,
        bootstrap: Address | str,
        more: Mapping[str, Any],
        *,
        endings: Endings = Endings(),  # noqa: B008  # it never changes
        on_error: Callable[[KafkaError], object] | None = None,
    ) -> None:
        """`more` are further settings of the client; `on_error` gets its own errors, such as lost brokers."""
        self._bootstrap = bootstrap
        self._endings = endings
        errors = {} if on_error is None else {"error_cb": on_error}
        self._consumer = Consumer(clients.settings(bootstrap) | SETTINGS | dict(more) | errors)
        self._next: dict[str, dict[int, int]] = {}
        self._ended: dict[str, set[int]] = {}
        self._paused: dict[str, set[int]] = {}

    def look_up(self, topic: str) -> None:
        """Find the leaders of a topic's partitions; raises KafkaException where that cannot be done now.

        Without this the client looks for them once a second when it is to read them.
        """
        self._consumer.list_topics(topic, timeout=reading.REQUEST_S)

    def assign(self, offsets: Mapping[str, Mapping[int, int]]) -> None:
        """Read these partitions of these topics, from these offsets on, and no others."""
        self._next = {topic: dict(found) for topic, found in offsets.items()}
        self._ended = {topic: set() for topic in offsets}
        self._paused = {topic: set() for topic in offsets}
        self._consumer.assign(
            [TopicPartition(topic, at, offset) for topic, found in offsets.items() for at, offset in found.items()]
        )

    def pause(self, topic: str, partitions: set[int]) -> None:
        """Read these partitions of the topic no further for now, and all others of it."""
        paused = self._paused[topic]
        if pause := partitions - paused:
            self._consumer.pause([TopicPartition(topic, at) for at in pause])
        if resume := paused - partitions:
            self._consumer.resume([TopicPartition(topic, at) for at in resume])
        self._paused[topic] = partitions

    def poll(self, timeout_s: float, records_max: int) -> list[Message]:
        """What has come; waits up to this time for the first of it."""
        first = self._consumer.poll(timeout_s)
        return [] if first is None else [first, *self._consumer.consume(records_max, timeout=0)]

    def come(self, records_max: int) -> list[Message]:
        """What has come, at most so much of it."""
        return self._consumer.consume(records_max, timeout=0)

    def offsets(self, topic: str) -> dict[int, int]:
        """Per partition of the topic, the next offset to read; none where it is not read."""
        return self._next.get(topic, {})

    def at_end(self, topic: str) -> bool:
        """Whether the topic is read, and was read to its end, according to the last reads."""
        return topic in self._next and self._ended[topic] >= self._next[topic].keys()

    def advance(self, topic: str, last: Mapping[int, int]) -> None:
        """Records were read, the last ones of these partitions at these offsets."""
        at, ended = self._next.get(topic, {}), self._ended.get(topic, set())
        for partition, offset in last.items():
            if offset >= at[partition]:
                at[partition] = offset + 1
                ended.discard(partition)

    def note(self, message: Message) -> End | None:
        """A message with an error: the end of a partition, if it is one that moved nothing back, or nothing.

        Raises Refused, AccessDenied or Unreachable where the partition cannot be read on.
        """
        topic, error = message.topic() or "", message.error()
        end = end_of(message)
        if end is not None:
            at = self._next.get(topic, {})
            if end.partition not in at or end.offset < at[end.partition]:
                return None
            at[end.partition] = end.offset
            self._ended[topic].add(end.partition)
            return end
        assert error is not None
        said = {"topic": topic, "partition": message.partition(), "why": error.str()}
        if error.code() == KafkaError._AUTO_OFFSET_RESET:
            raise Refused(self._endings.lost.format(**said))
        if error.code() in DELETED:
            raise Refused(self._endings.deleted.format(**said))
        if error.code() in clients.NOT_ALLOWED:
            raise clients.unreadable(self._bootstrap, topic, error) from KafkaException(error)
        return None

    def ends_of(self, topic: str, partitions: int, timeout_s: float) -> dict[int, int] | None:
        """Where each partition of a topic ends; None where the broker does not say it in this time."""
        try:
            found = reading.ends_by(self._consumer, topic, range(partitions), timeout_s)
        except KafkaException:
            return None
        return {at: end for at, (_, end) in found.items()}

    def close(self) -> None:
        """Close the connection to the broker."""
        self._consumer.close()


DELETED = {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError.UNKNOWN_TOPIC_ID}
"""Other errors pass by themselves, and the client tries again."""
