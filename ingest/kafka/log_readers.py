"""Reads a topic for `precede.follow`: with either Kafka client, or as one of a consumer group.

All read only committed transactions. Without a consumer group nothing is committed: the caller keeps its own place. In
one, Kafka shares the partitions, a place is committed when the caller says so, and partitions move only while `read` or
`close` runs. kafka-python cannot do that: it cannot wait for a commit while a partition moves.
"""

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from precede.ingest.extras import need
from precede.ingest.kafka import clients, topics
from precede.ingest.kafka.access import PASSWORDS, TLS, Access, Address, access_to
from precede.ingest.kafka.reading import BATCH_RECORDS, REQUEST_S, TopicReader
from precede.udfs.errors import PrecedeError, Refused
from precede.udfs.records.messages import LogRecord

if TYPE_CHECKING:
    from ssl import SSLContext

QUIET_S = 1.0


class LogReader(Protocol):
    """What both adapters can do."""

    def starts(self, topic: str, *, at_end: bool, timeout_s: float) -> dict[int, int]:
        """The first, or the next, offset of each partition; empty if the topic does not exist yet."""

    def topic_id(self, topic: str) -> str | None:
        """What tells the topic from a deleted one of the same name; None if it does not exist."""

    def assign(self, topic: str, offsets: dict[int, int]) -> None:
        """Read these partitions from these offsets."""

    def read(self, timeout_s: float) -> list[LogRecord]:
        """The records that have come; waits up to this time for the first one."""

    def at_end(self) -> bool:
        """Whether everything has been read, as far as the last reads showed."""

    def close(self) -> None:
        """Close the connection to the broker."""


def open_reader(client: str, bootstrap: Address | str, *, request_s: float = REQUEST_S) -> LogReader:
    """A reader with the client of this name."""
    readers: dict[str, Callable[[Address | str, float], LogReader]] = {
        "confluent": TopicReader,
        "kafka-python": KafkaPythonReader,
    }
    if client not in readers:
        raise ValueError(f"client must be one of {', '.join(readers)}, not {client!r}")
    return readers[client](bootstrap, request_s)


def access_of_kafka_python(bootstrap: Address | str) -> dict[str, Any]:
    """The settings for kafka-python."""
    access = access_to(bootstrap)
    if access.mechanism not in (None, *PASSWORDS):
        raise Refused(
            f'client="kafka-python" logs in with a name and a password only, not by {access.mechanism}: use the other '
            "client."
        )
    return {
        "security_protocol": access.protocol,
        "ssl_context": _tls(access) if access.protocol in TLS else None,
        "sasl_mechanism": access.mechanism,
        "sasl_plain_username": access.username,
        "sasl_plain_password": access.password,
    }


def _tls(access: Access) -> "SSLContext":
    """The authority to trust, and the own certificate."""
    from ssl import create_default_context

    context = create_default_context(cadata=access.ca)
    if access.certificate is not None:
        # Python reads its own certificate only from a file; only this user can read this one, which is deleted at once.
        with NamedTemporaryFile("w", suffix=".pem") as file:
            file.write(f"{access.private_key}\n{access.certificate}")
            file.flush()
            context.load_cert_chain(file.name)
    return context


class KafkaPythonReader:
    """A reader with kafka-python, which is pure Python."""

    def __init__(self, bootstrap: Address | str, request_s: float = REQUEST_S) -> None:
        need("kafka-python", 'client="kafka-python"')
        from kafka import KafkaConsumer
        from kafka.errors import KafkaError

        try:
            self._consumer: Any = KafkaConsumer(
                bootstrap_servers=str(bootstrap),
                **access_of_kafka_python(bootstrap),
                enable_auto_commit=False,
                isolation_level="read_committed",
                auto_offset_reset="earliest",
                fetch_max_wait_ms=100,
                bootstrap_timeout_ms=int(request_s * 1000),
                allow_auto_create_topics=False,
            )
        except KafkaError as error:
            raise clients.unreachable(bootstrap) from error
        self._bootstrap = bootstrap
        self._topic = ""
        self._looked_for: set[str] = set()
        self._quiet_since = time.monotonic()

    def starts(self, topic: str, *, at_end: bool, timeout_s: float) -> dict[int, int]:
        from kafka import TopicPartition

        partitions = [TopicPartition(topic, number) for number in self._consumer.partitions_for_topic(topic) or ()]
        if not partitions:
            if topic not in self._looked_for:
                # This client cannot tell a hidden topic from an absent one.
                clients.check_visible(self._bootstrap, topic)
            self._looked_for.add(topic)
            time.sleep(timeout_s)
            return {}
        offsets = self._consumer.end_offsets(partitions) if at_end else self._consumer.beginning_offsets(partitions)
        return {partition.partition: offset for partition, offset in offsets.items()}

    def topic_id(self, topic: str) -> str | None:
        return topics.id_of(self._bootstrap, topic)

    def assign(self, topic: str, offsets: dict[int, int]) -> None:
        from kafka import TopicPartition

        self._topic = topic
        self._consumer.assign([TopicPartition(topic, partition) for partition in offsets])
        for partition, offset in offsets.items():
            self._consumer.seek(TopicPartition(topic, partition), offset)
        self._quiet_since = time.monotonic()

    def read(self, timeout_s: float) -> list[LogRecord]:
        from confluent_kafka import KafkaError
        from kafka.errors import TopicAuthorizationFailedError

        try:
            found = self._consumer.poll(timeout_ms=int(timeout_s * 1000), max_records=BATCH_RECORDS)
        except TopicAuthorizationFailedError as error:
            code = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)
            raise clients.unreadable(self._bootstrap, self._topic, code) from error
        if found:
            self._quiet_since = time.monotonic()
        return [
            LogRecord(record.value, record.key, record.partition, record.offset, record.timestamp)
            for records in found.values()
            for record in records
        ]

    def at_end(self) -> bool:
        # This client does not see the end of a partition with transactions, so a time without records means the end.
        return time.monotonic() - self._quiet_since > QUIET_S

    def close(self) -> None:
        self._consumer.close()


Start = Literal["beginning", "end"]


class GroupPlace(NamedTuple):
    """Where the group goes on in a partition."""

    offset: int
    is_first: bool
    """Whether the group has not committed a place here before."""


Assigned = Callable[[dict[int, GroupPlace]], None]
Revoked = Callable[[set[int]], None]


def place_in(
    topic: str, partition: int, consumer_group: str, committed: int | None, ends: tuple[int, int], start: Start
) -> GroupPlace:
    """Where to begin; raises Refused if what comes behind the committed offset is gone."""
    first, end = ends
    if committed is None:
        return GroupPlace(end if start == "end" else first, is_first=True)
    if first <= committed <= end:
        return GroupPlace(committed, is_first=False)
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
