"""Reads a topic as one of a consumer group: Kafka shares the partitions.

Only committed transactions are read. A place is committed when the caller says so. Partitions move only while `read` or
`close` runs. kafka-python cannot do this: it cannot wait for a commit while a partition moves.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Literal, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from precede.ingest.kafka import clients
from precede.ingest.kafka.access import Address
from precede.ingest.kafka.reading import REQUEST_S, TopicReader
from precede.udfs.errors import PrecedeError, Refused
from precede.udfs.records.messages import LogRecord

Start = Literal["beginning", "end"]


class Place(NamedTuple):
    """Where the group goes on in a partition."""

    offset: int
    is_first: bool
    """Whether the group has not committed a place here before."""


Assigned = Callable[[dict[int, Place]], None]
Revoked = Callable[[set[int]], None]


def place_in(
    topic: str, partition: int, consumer_group: str, committed: int | None, ends: tuple[int, int], start: Start
) -> Place:
    """Where to begin; raises Refused if what comes behind the committed offset is gone."""
    first, end = ends
    if committed is None:
        return Place(end if start == "end" else first, is_first=True)
    if first <= committed <= end:
        return Place(committed, is_first=False)
    why = "the retention has deleted what lies between" if committed < first else "the topic has lost its end"
    raise Refused(
        f"The consumer group {consumer_group} stands at offset {committed} of partition {partition} of {topic}, which "
        f"has offsets {first} to {end}: {why}. Stop the group, and set its place with: kafka-consumer-groups.sh "
        f"--group {consumer_group} --topic {topic} --reset-offsets --to-earliest --execute"
    )


class GroupReader(TopicReader):
    """A member of the consumer group, with confluent-kafka."""

    never_passes = TopicReader.never_passes | {KafkaError.GROUP_AUTHORIZATION_FAILED}

    def __init__(self, bootstrap: Address | str, consumer_group: str, request_s: float = REQUEST_S) -> None:
        super().__init__(bootstrap, request_s, consumer_group=consumer_group)
        self._group = consumer_group
        self._start: Start = "beginning"
        self._fault: PrecedeError | None = None
        self._on_assigned: Assigned = lambda _: None
        self._on_revoked: Revoked = lambda _: None

    def join(self, topic: str, start: Start, assigned: Assigned, revoked: Revoked) -> None:
        """Join the group."""
        self._topic, self._start, self._on_assigned, self._on_revoked = topic, start, assigned, revoked
        self._consumer.subscribe([topic], on_assign=self._assign, on_revoke=self._revoke, on_lost=self._lose)

    def read(self, timeout_s: float) -> list[LogRecord]:
        """The records that have come; raises what went wrong while partitions were assigned."""
        records = super().read(timeout_s)
        if self._fault is not None:
            raise self._fault
        return records

    def commit(self, offsets: Mapping[int, int], *, wait: bool) -> None:
        """Store the next offset of these partitions."""
        places = [TopicPartition(self._topic, partition, offset) for partition, offset in offsets.items()]
        # Without it the group goes on from an earlier place, and what was handled comes again.
        with suppress(KafkaException):
            if places and wait:
                self._consumer.commit(offsets=places, asynchronous=False)
            elif places:
                self._consumer.commit(offsets=places, asynchronous=True)

    def _assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        try:
            committed = {one.partition: one.offset for one in consumer.committed(partitions, timeout=self._request_s)}
            places = {
                partition: place_in(
                    self._topic,
                    partition,
                    self._group,
                    committed[partition] if committed[partition] >= 0 else None,  # negative: none was committed
                    ends,
                    self._start,
                )
                for partition, ends in self.ends(self._topic, committed, self._request_s).items()
            }
        except KafkaException as error:
            self._fault = clients.unreadable(self._bootstrap, self._topic, error.args[0])
        except Refused as refused:
            self._fault = refused
        else:
            self.assign(self._topic, {partition: place.offset for partition, place in places.items()})
            self._on_assigned(places)

    def _revoke(self, _consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._on_revoked({one.partition for one in partitions})
        self._forget()

    def _lose(self, _consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._revoke(_consumer, partitions)

    def _forget(self) -> None:
        self._assigned, self._ended = set(), set()
