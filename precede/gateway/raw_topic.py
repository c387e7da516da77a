"""The consumer of a gateway: the raw topic, and what the job asks for in the control topic."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from time import monotonic
from typing import Any, NamedTuple

import msgspec
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from precede.ingest.kafka import clients, reading
from precede.ingest.kafka.access import Address
from precede.ingest.kafka.topics import describe
from precede.ingest.live.collection import without_collection
from precede.ingest.live.live_consumer import SETTINGS
from precede.ingest.live.live_kernel import RawRow
from precede.udfs.errors import Refused
from precede.udfs.records.job_records import GapRecord
from precede.udfs.records.lenient import lenient_reader

BATCH_RECORDS = 1_000
ENDS_S = 1.0

_read_gap = lenient_reader(GapRecord)


class Heard(NamedTuple):
    """What has come from the log."""

    raw: list[RawRow]
    gaps: list[GapRecord]


class RawTopic:
    """Reads what is committed; while no broker answers, nothing comes."""

    def __init__(
        self,
        bootstrap: Address | str,
        topic: str,
        offsets: Mapping[int, int],
        control_topic: str,
        *,
        on_error: Callable[[KafkaError], object],
    ) -> None:
        """The raw topic is read from these offsets on, the control topic from its end.

        `on_error` gets the client's own errors, such as lost brokers.
        """
        self._bootstrap = bootstrap
        self._topic = topic
        self._next = dict(offsets)
        self._ended: set[int] = set()
        self._control_topic = control_topic
        self.read_at = monotonic()
        """When something was read last."""
        self._consumer = Consumer(clients.settings(bootstrap) | SETTINGS | {"error_cb": on_error})
        places = [TopicPartition(topic, at, offset) for at, offset in offsets.items()]
        places += [TopicPartition(control_topic, at, end) for at, end in enumerate(_ends(bootstrap, control_topic))]
        self._consumer.assign(places)

    def read(self, timeout_s: float) -> Heard:
        """What has come; waits up to this time for the first of it. Raises Refused where the topic is gone."""
        heard = Heard([], [])
        first = self._consumer.poll(timeout_s)
        if first is None:
            return heard
        with without_collection():  # messages hold no cycles
            for message in [first, *self._consumer.consume(BATCH_RECORDS, timeout=0)]:
                self._take(message, heard)
        self.read_at = monotonic()
        return heard

    def ends_of(self, topic: str, partitions: int) -> dict[int, int] | None:
        """Where each partition of a topic ends; None where the broker does not say it at once."""
        try:
            found = reading.ends_by(self._consumer, topic, range(partitions), ENDS_S)
        except KafkaException:
            return None
        return {at: end for at, (_, end) in found.items()}

    @property
    def at_end(self) -> bool:
        """Whether the raw topic was read to its end, according to the last reads."""
        return self._ended >= self._next.keys()

    @property
    def offsets(self) -> dict[int, int]:
        """Per raw partition, the next offset."""
        return dict(self._next)

    def _take(self, message: Message, heard: Heard) -> None:
        if message.error() is not None:
            self._take_note(message)
        elif message.topic() == self._topic:
            partition: Any = message.partition()
            offset: Any = message.offset()
            self._next[partition] = offset + 1
            self._ended.discard(partition)
            heard.raw.append((message.value(), message.key(), partition, offset, message.timestamp()[1]))
        else:
            with suppress(msgspec.DecodeError):  # written by a newer version
                heard.gaps.append(_read_gap(message.value() or b""))

    def _take_note(self, message: Message) -> None:
        end = reading.end_of(message)
        if end is not None:
            if message.topic() == self._topic:
                self._next[end.partition] = max(self._next[end.partition], end.offset)
                self._ended.add(end.partition)
            return
        error = message.error()
        assert error is not None
        topic = message.topic() or ""
        if error.code() == KafkaError._AUTO_OFFSET_RESET:
            raise Refused(
                f"Partition {message.partition()} of {topic} no longer has the records that come next: a retention"
                " deleted them, or the topic was made again. Start the gateway again."
            )
        if error.code() in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC):
            raise Refused(f"The topic {topic} has been deleted: start the gateway again when there is a new one.")
        if error.code() in clients.NOT_ALLOWED:
            raise clients.unreadable(self._bootstrap, topic, error)

    def close(self) -> None:
        """Close the connection to the broker."""
        self._consumer.close()


def _ends(bootstrap: Address | str, topic: str) -> list[int]:
    found = describe(bootstrap, [topic]).get(topic)
    if found is None:
        raise Refused(f"The topic {topic} does not exist: start the job first (precede run), which creates it.")
    return [end for _, end in reading.ends(bootstrap, topic, found.partitions)]
