"""Reads topics with confluent-kafka: where partitions end, all records up to there, and what comes after.

This is the only place that handles the end of a partition. Nothing is committed: the caller keeps its own place.
"""

import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import islice
from typing import NamedTuple, cast

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from precede.ingest.kafka import clients, topics
from precede.ingest.kafka.access import Address
from precede.ingest.kafka.clients import retry
from precede.udfs.errors import PrecedeError, Unreachable
from precede.udfs.records.messages import LogRecord

REQUEST_S = 10.0  # how long one request to the broker may take
RETRY_S = 0.1
LOOK_S = 0.5  # how often a reader to the end looks whether it is to stop
BATCH_RECORDS = 1000
NOTICED_MAX = 10


def never_stop() -> None:
    """Used where a reader reads to the end, however long that takes."""


class End(NamedTuple):
    """The end of a partition at the moment it was read."""

    partition: int
    offset: int


SHOWS_ENDS = {"enable.partition.eof": True}
"""A consumer with this setting says where each partition ends: see `end_of`."""


def end_of(message: Message) -> End | None:
    """The end of a partition, if a consumer says it by this message; None for a record and for an error."""
    error = message.error()
    if error is None or error.code() != KafkaError._PARTITION_EOF:
        return None
    return End(cast(int, message.partition()), cast(int, message.offset()))


def ends_by(consumer: Consumer, topic: str, partitions: Iterable[int], timeout_s: float) -> dict[int, tuple[int, int]]:
    """The first and the next offset of each of these partitions, as this consumer sees them."""
    return {at: consumer.get_watermark_offsets(TopicPartition(topic, at), timeout=timeout_s) for at in partitions}


FEW = {"queued.min.messages": 1, "fetch.message.max.bytes": 16 * 1024}
"""For a reader of single records."""


class TopicReader:
    """Reads partitions of one topic, and knows which of them it has read to their end.

    With `patient`, the client retries if a broker does not answer; otherwise its error is raised.
    `wait_ms` is how long the broker may wait for more records, and so how late the end of a partition is seen.
    """

    never_passes = frozenset({KafkaError.TOPIC_AUTHORIZATION_FAILED})
    """Errors that are raised even by a patient reader."""

    def __init__(
        self,
        bootstrap: Address | str,
        request_s: float = REQUEST_S,
        *,
        committed: bool = True,
        patient: bool = True,
        wait_ms: int = 100,
        consumer_group: str = "precede-reads",  # the client requires one; without `subscribe` it has no effect
        fetches: Mapping[str, int] | None = None,
    ) -> None:
        self._bootstrap = bootstrap
        self._request_s = request_s
        self._patient = patient
        self._noticed: list[KafkaError] = []
        self._consumer = Consumer(
            clients.settings(bootstrap)
            | {
                "error_cb": self._notice,
                "group.id": consumer_group,
                "enable.auto.commit": False,
                "isolation.level": "read_committed" if committed else "read_uncommitted",
                "auto.offset.reset": "earliest",
                "fetch.wait.max.ms": wait_ms,
                "fetch.queue.backoff.ms": 10,  # the default of a second shows as pauses where there is much to read
                **SHOWS_ENDS,
                **(fetches or {}),
            }
        )
        self._topic = ""
        self._assigned: set[int] = set()
        self._ended: set[int] = set()

    def _notice(self, error: KafkaError) -> None:
        """Keep why no broker can be reached, as the client says it."""
        self._noticed = [*self._noticed[-NOTICED_MAX:], error]

    def partitions(self, topic: str, timeout_s: float) -> list[int]:
        """The numbers of the partitions; none if the topic does not exist."""
        found = self._consumer.list_topics(topic, timeout=timeout_s).topics[topic]
        if found.error is not None and found.error.code() in clients.NOT_ALLOWED:
            raise KafkaException(found.error)
        return [] if found.error is not None else list(found.partitions)

    def ends(self, topic: str, partitions: Iterable[int], timeout_s: float) -> dict[int, tuple[int, int]]:
        """The first and the next offset of each of these partitions."""
        return ends_by(self._consumer, topic, partitions, timeout_s)

    def offsets_at(
        self, topic: str, partitions: Iterable[int], time_ms: int, timeout_s: float
    ) -> dict[int, int | None]:
        """In each of these partitions the first offset that the log took at this time or later, if there is one."""
        asked = [TopicPartition(topic, partition, time_ms) for partition in partitions]
        found = self._consumer.offsets_for_times(asked, timeout=timeout_s)
        return {place.partition: place.offset if place.offset >= 0 else None for place in found}

    def arrivals(self, topic: str, offsets: Mapping[int, int], timeout_s: float) -> dict[int, int]:
        """In each of these partitions, when the first record at this offset or later arrived, if that is known now."""
        found: dict[int, int] = {}
        self.assign(topic, offsets)
        deadline = time.monotonic() + timeout_s
        while len(found) < len(offsets) and time.monotonic() < deadline and not self.at_end():
            for record in self.read(max(0.0, deadline - time.monotonic())):
                found.setdefault(record.partition, record.timestamp_ms)
        self.assign(topic, {})
        return found

    def all_ends(self, topic: str) -> dict[int, tuple[int, int]]:
        """The same for all partitions; waits for one that is new."""
        reach_s = min(self._request_s, topics.REACH_S_MAX)
        try:
            found = retry(
                lambda: self.ends(topic, self.partitions(topic, reach_s), self._request_s),
                passes=clients.lacks_leader,
                for_s=self._request_s,
                pause_s=RETRY_S,
            )
        except KafkaException as error:
            self._consumer.poll(0)  # calls `_notice` for what came up while this waited
            raise clients.unreadable(self._bootstrap, topic, error.args[0], self._noticed) from error
        return found or {}

    def starts(self, topic: str, *, at_end: bool, timeout_s: float) -> dict[int, int]:
        """The first, or the next, offset of each partition; empty, after this time, if the topic does not exist yet."""
        found = self.all_ends(topic)
        if not found:
            time.sleep(timeout_s)
        return {partition: offsets[at_end] for partition, offsets in found.items()}

    def topic_id(self, topic: str) -> str | None:
        """What tells the topic from a deleted one of the same name; None if it does not exist."""
        return topics.id_of(self._bootstrap, topic)

    def assign(self, topic: str, offsets: Mapping[int, int]) -> None:
        """Read these partitions from these offsets on."""
        self._consumer.assign([TopicPartition(topic, partition, offset) for partition, offset in offsets.items()])
        self._topic, self._assigned, self._ended = topic, set(offsets), set()

    def poll(self, timeout_s: float) -> list[LogRecord | End]:
        """Records and ends of partitions that have come; waits up to this time for the first one."""
        first = self._consumer.poll(timeout_s)
        if first is None:
            return []
        messages = [first, *self._consumer.consume(BATCH_RECORDS, timeout=0)]
        return [found for message in messages if (found := self._take(message)) is not None]

    def _take(self, message: Message) -> LogRecord | End | None:
        error = message.error()
        partition, offset = cast(int, message.partition()), cast(int, message.offset())
        if error is None:
            self._ended.discard(partition)
            return LogRecord(message.value(), message.key(), partition, offset, message.timestamp()[1])
        end = end_of(message)
        if end is not None:
            self._ended.add(partition)
            return end
        if not self._patient or error.code() in self.never_passes:
            raise KafkaException(error)
        return None

    def read(self, timeout_s: float) -> list[LogRecord]:
        """The records that have come; waits up to this time for the first one."""
        deadline = time.monotonic() + timeout_s
        try:
            while True:
                found = self.poll(max(0.0, deadline - time.monotonic()))
                records = [one for one in found if isinstance(one, LogRecord)]
                if records or time.monotonic() >= deadline:
                    return records
        except KafkaException as error:
            raise clients.unreadable(self._bootstrap, self._topic, error.args[0]) from error

    def at_end(self) -> bool:
        """Whether everything has been read, as far as the last reads showed."""
        return self._ended >= self._assigned

    def to_end(
        self,
        topic: str,
        offsets: Mapping[int, int],
        *,
        upto: Mapping[int, int] | None = None,
        quiet_s: float = REQUEST_S,
        deadline: float = math.inf,
        check_stop: Callable[[], object] = never_stop,
    ) -> Iterator[LogRecord]:
        """The records from these offsets up to the end of each partition, and at least up to `upto`.

        Raises TimeoutError if nothing came for `quiet_s` seconds, or after `deadline`. `check_stop` is called again and
        again, and raises where the reader is to stop.
        """
        self.assign(topic, offsets)
        left = set(offsets)
        quiet_at = time.monotonic() + quiet_s
        while left:
            check_stop()
            # Counting offsets would wait for ever, because the mark of a transaction also has an offset.
            now = time.monotonic()
            if now >= min(quiet_at, deadline):
                raise TimeoutError
            found = self.poll(min(min(quiet_at, deadline) - now, LOOK_S))
            for one in found:
                if isinstance(one, LogRecord):
                    yield one
                elif upto is None or one.offset >= upto[one.partition]:
                    left.discard(one.partition)
            if found:
                quiet_at = time.monotonic() + quiet_s

    def close(self) -> None:
        """Close the connection to the broker."""
        self._consumer.close()


def ends(bootstrap: Address | str, topic: str, partitions: int, *, committed: bool = True) -> list[tuple[int, int]]:
    """The first and the next offset of each partition; with `committed`, up to the first open transaction."""
    return list(ends_of(bootstrap, topic, range(partitions), committed=committed).values())


def ends_of(
    bootstrap: Address | str, topic: str, partitions: Collection[int], *, committed: bool = True
) -> dict[int, tuple[int, int]]:
    """The same of some partitions."""
    reader = TopicReader(bootstrap, committed=committed)
    try:
        # A topic created a moment ago has no leader yet, and the client says so in several ways.
        found = retry(
            lambda: reader.ends(topic, partitions, REQUEST_S),
            passes=lambda error: isinstance(error, KafkaException),
            for_s=REQUEST_S,
            pause_s=RETRY_S,
        )
        return found or {}
    except KafkaException as error:
        raise Unreachable(f"Cannot read the ends of {topic} from Kafka at {bootstrap}.") from error
    finally:
        reader.close()


def read_to_end(
    bootstrap: Address | str, topic: str, partitions: int, *, settled: bool = False
) -> Iterator[tuple[bytes | None, bytes | None]]:
    """Every committed (key, value), in log order per partition; see `records_to_end`."""
    for record in records_to_end(bootstrap, topic, partitions, settled=settled):
        yield record.key, record.value


def records_to_end(
    bootstrap: Address | str, topic: str, partitions: int, *, settled: bool = False
) -> Iterator[LogRecord]:
    """Every committed record, in log order per partition.

    A reader of committed records sees nothing behind an open transaction. With `settled`, this waits until the
    transaction has ended, and also reads what is committed behind it.
    """
    upto = [end for _, end in ends(bootstrap, topic, partitions, committed=False)] if settled else [0] * partitions
    reader = TopicReader(bootstrap, patient=False, wait_ms=10)
    offsets = dict.fromkeys(range(partitions), 0)
    yield from _to_end(reader, bootstrap, topic, offsets, dict(enumerate(upto)), settled=settled)


def records_from(bootstrap: Address | str, topic: str, offsets: Mapping[int, int]) -> Iterator[LogRecord]:
    """Every committed record from these offsets on, in log order per partition."""
    reader = TopicReader(bootstrap, patient=False, wait_ms=10)
    yield from _to_end(reader, bootstrap, topic, dict(offsets), dict.fromkeys(offsets, 0), settled=False)


def offsets_since(bootstrap: Address | str, topic: str, partitions: int, time_ms: int) -> dict[int, int | None]:
    """In each partition the offset of the first record that is dated at this time or later, if there is one."""
    reader = TopicReader(bootstrap)
    try:
        return reader.offsets_at(topic, range(partitions), time_ms, REQUEST_S)
    except KafkaException as error:
        raise Unreachable(f"Cannot read the ends of {topic} from Kafka at {bootstrap}.") from error
    finally:
        reader.close()


def _to_end(
    reader: TopicReader,
    bootstrap: Address | str,
    topic: str,
    offsets: Mapping[int, int],
    upto: Mapping[int, int],
    *,
    settled: bool,
) -> Iterator[LogRecord]:
    try:
        yield from reader.to_end(topic, offsets, upto=upto)
    except TimeoutError as error:
        hides = settled and reader.at_end()
        why = " to its end: a transaction is open in it" if hides else ""
        raise Unreachable(f"Cannot read the topic {topic} from Kafka at {bootstrap}{why}.") from error
    except KafkaException as error:
        why = error.args[0].str()
        raise Unreachable(f"Cannot read the topic {topic} from Kafka at {bootstrap}: {why}.") from error
    finally:
        reader.close()


def has_records(bootstrap: Address | str, topic: str, partition: int, first: int, end: int) -> bool:
    """Whether a partition has committed records at these offsets; the marks of transactions are none."""
    reader = TopicReader(bootstrap, patient=False, wait_ms=10)
    try:
        return any(record.offset < end for record in islice(reader.to_end(topic, {partition: first}), 1))
    except (TimeoutError, KafkaException) as error:
        raise Unreachable(f"Cannot read the topic {topic} from Kafka at {bootstrap}.") from error
    finally:
        reader.close()


def why_unreadable(bootstrap: Address | str, topic: str, error: Unreachable) -> PrecedeError:
    """Why a topic could not be read, as a sentence for a person."""
    cause = error.__cause__
    return clients.unreadable(bootstrap, topic, cause.args[0]) if isinstance(cause, KafkaException) else error
