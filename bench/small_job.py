"""The order query without Spark, as small as it gets: for benchmarks and tests of readers that need a job.

It reads the raw topic, and writes ordered records, states, tokens and horizons in one transaction a step. It makes no
dead letters and no records of its own.
"""

from collections.abc import Iterable

import msgspec
from confluent_kafka import Producer

from precede.ingest.kafka.reading import TopicReader
from precede.ingest.kafka.topics import describe
from precede.ingest.progress import Owner, horizon_record, owner_record, token_record, transactional_id
from precede.streaming.order.transaction import TransactionalProducer
from precede.streaming.settings import Settings
from precede.udfs.holdback import Holdback
from precede.udfs.records.messages import LogRecord
from precede.udfs.rules import RULES
from precede.udfs.state_log import StateLog, StateSettings

READ_WAIT_MS = 5
LATE_MS = 2**60


class SmallJob:
    """Orders one stream; `step` is a batch."""

    def __init__(self, settings: Settings, *, state_every_ms: int = 1_000, rules: int = RULES) -> None:
        self.settings = settings
        topics = describe(
            settings.bootstrap,
            [settings.raw_topic, settings.ordered_topic, settings.dead_letter_topic, settings.state_topic_name],
        )
        self._raw, self._ordered, dead, state = topics.values()
        own_id = transactional_id(settings.ordered_topic)
        self._owner = Owner(
            since_ms=0,
            job="small",
            transactional_id=own_id,
            ids=[own_id],
            raw_topic=self._raw.name,
            raw_topic_id=self._raw.id,
            partitions=self._raw.partitions,
            order=settings.order,
            limits=settings.limits,
            partitioner=settings.partitioner,
            rules=rules,
            rules_from=0,
            ordered_topic_id=self._ordered.id,
            ordered_partitions=self._ordered.partitions,
            dead_letter_topic_id=dead.id,
            state_topic=state.name,
            state_topic_id=state.id,
        )
        self.token = dict.fromkeys(range(self._raw.partitions), 0)
        self._kernel = Holdback(
            order=settings.order,
            limits=settings.limits,
            partitions=self._raw.partitions,
            partitioner=settings.partitioner,
        )
        self._log = StateLog(StateSettings(state.id, self._ordered.id, state_every_ms))
        self._reader = TopicReader(settings.bootstrap, wait_ms=READ_WAIT_MS)
        self._reader.assign(self._raw.name, self.token)
        self._producer = self._open()
        self.own()

    def own(self) -> None:
        """Write the owner records."""
        self._producer.begin()
        for at in self.token:
            self._write(self.settings.progress_topic, owner_record(self.settings.ordered_topic, at, self._owner))
        self._producer.commit()

    def change_owner(self, **more: object) -> None:
        """Write owner records with other content."""
        self._owner = msgspec.structs.replace(self._owner, **more)
        self.own()

    def step(self, wait_s: float = 0.05) -> int:
        """Order what has come; how many raw records that were."""
        records = self._reader.read(wait_s)
        if records:
            self._producer.begin()
            self._order(records)
            self._producer.commit()
        return len(records)

    def drain(self) -> None:
        """Order everything that is there."""
        while self.step(1.0):
            pass

    def write_states(self) -> None:
        """Write every state that the topic lacks, as a job does that handles what is there and stops."""
        self._producer.begin()
        for at, next_offset in self.token.items():
            self._write_states(at, LATE_MS)
            self._write(self.settings.progress_topic, horizon_record(self.settings.ordered_topic, at, next_offset))
        self._producer.commit()

    def spoil(self, key: bytes, value: bytes) -> None:
        """Write something into the ordered topic that the kernel did not make."""
        self._producer.begin()
        self._producer.produce(self._ordered.name, [value], [key])
        self._producer.commit()

    def close(self) -> None:
        """End without a trace."""
        self._producer.drop()
        self._reader.close()

    def _order(self, records: list[LogRecord]) -> None:
        kernel, settings = self._kernel, self.settings
        last: dict[int, LogRecord] = {}
        for record in records:
            kernel.receive(*record)
            last[record.partition] = record
        self._producer.produce(self._ordered.name, kernel.ordered, kernel.ordered_keys)
        kernel.clear()
        for key, (partition, offset, now_ms) in kernel.changed.items():
            self._log.changed(key, partition, (offset, now_ms))
        for at, record in last.items():
            self.token[at] = record.offset + 1
            self._write_states(at, record.timestamp_ms)
        uncovered = self._log.uncovered()
        for at in last:
            self._write(settings.progress_topic, token_record(settings.ordered_topic, at, self.token[at]))
            horizon = uncovered.get(at, self.token[at])
            self._write(settings.progress_topic, horizon_record(settings.ordered_topic, at, horizon))

    def _write_states(self, partition: int, now_ms: int) -> None:
        due = self._log.take_due(partition, self.token[partition], now_ms, self._state_of, {})
        for key, value in due:
            self._producer.produce(self.settings.state_topic_name, [value], [key], partition)
        for key in {msgspec.json.decode(key)[0].encode() for key, _ in due}:
            self._kernel.note_written(key)

    def _state_of(self, key: bytes) -> bytes:
        return self._kernel.state_of(key) or b""

    def _write(self, topic: str, record: tuple[bytes, bytes]) -> None:
        self._producer.produce(topic, [record[1]], [record[0]])

    def _open(self) -> TransactionalProducer:
        return TransactionalProducer(
            self.settings.bootstrap,
            self._owner.transactional_id,
            batch_bytes_max=1_000_000,
            on_error=lambda _: None,
        )


def send(settings: Settings, pairs: Iterable[tuple[bytes | None, bytes | None]]) -> None:
    """Publish raw records, like a gateway."""
    producer = Producer({"bootstrap.servers": str(settings.bootstrap), "partitioner": "murmur2_random", "linger.ms": 5})
    for key, value in pairs:
        producer.produce(settings.raw_topic, value, key)
        producer.poll(0)
    assert producer.flush(30) == 0
