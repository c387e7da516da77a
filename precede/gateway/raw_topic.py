"""The consumer of a gateway: the raw topic, and what the job asks for in the control topic."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from time import monotonic
from typing import Any, NamedTuple

import msgspec
from confluent_kafka import KafkaError, Message

from precede.ingest.gc_paused import gc_paused
from precede.ingest.kafka import reading
from precede.ingest.kafka.access import Address
from precede.ingest.kafka.assigned_consumer import AT_ONCE, AssignedConsumer, Endings
from precede.ingest.kafka.topics import describe
from precede.ingest.live.kernel import RawRow
from precede.udfs.errors import Refused
from precede.udfs.records.published import GapRecord, lenient_reader

BATCH_RECORDS = 1_000
ENDS_S = 1.0
ENDINGS = Endings(
    lost=f"{Endings().lost.removesuffix('Start again.')}Start the gateway again.",
    deleted="The topic {topic} has been deleted: start the gateway again when there is a new one.",
)

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
        self._topic = topic
        self.read_at = monotonic()
        """When something was read last."""
        self._consumer = AssignedConsumer(bootstrap, AT_ONCE, endings=ENDINGS, on_error=on_error)
        control = dict(enumerate(_ends(bootstrap, control_topic)))
        self._consumer.assign({topic: offsets, control_topic: control})

    def read(self, timeout_s: float) -> Heard:
        """What has come; waits up to this time for the first of it. Raises Refused where the topic is gone."""
        heard = Heard([], [])
        with gc_paused():  # messages hold no cycles
            messages = self._consumer.poll(timeout_s, BATCH_RECORDS)
            for message in messages:
                self._take(message, heard)
        self._consumer.advance(self._topic, {row[2]: row[3] for row in heard.raw})
        if messages:
            self.read_at = monotonic()
        return heard

    def _take(self, message: Message, heard: Heard) -> None:
        if message.error() is not None:
            self._consumer.note(message)
        elif message.topic() == self._topic:
            at: Any = message.partition(), message.offset()
            heard.raw.append((message.value(), message.key(), *at, message.timestamp()[1]))
        else:
            with suppress(msgspec.DecodeError):  # written by a newer version
                heard.gaps.append(_read_gap(message.value() or b""))

    def ends_of(self, topic: str, partitions: int) -> dict[int, int] | None:
        """Where each partition of a topic ends; None where the broker does not say it at once."""
        return self._consumer.ends_of(topic, partitions, ENDS_S)

    @property
    def at_end(self) -> bool:
        """Whether the raw topic was read to its end, according to the last reads."""
        return self._consumer.at_end(self._topic)

    @property
    def offsets(self) -> dict[int, int]:
        """Per raw partition, the next offset."""
        return dict(self._consumer.offsets(self._topic))

    def close(self) -> None:
        """Close the connection to the broker."""
        self._consumer.close()


def _ends(bootstrap: Address | str, topic: str) -> list[int]:
    found = describe(bootstrap, [topic]).get(topic)
    if found is None:
        raise Refused(f"The topic {topic} does not exist: start the job first (precede run), which creates it.")
    return [end for _, end in reading.ends(bootstrap, topic, found.partitions)]
