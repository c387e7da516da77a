"""The exactly-once sink: one Kafka transaction per batch, with the batch's token inside it.

The token is, for each raw partition, the next raw offset whose output is not yet published. It is written to the
progress topic in the same transaction as the records, and only records at or above it are published. The log gives the
same records in batches of any size, so a batch that runs again, a fresh checkpoint and another number of shards all
publish nothing twice.

Opening fences every other job with the same ordered topic. The token is read after that, so no other job can change it
any more. An error of a commit does not tell whether the commit happened: the producer is dropped, a new one is opened,
the token is read again, and what it leaves to do is done.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

import msgspec

from precede.ingest.kafka.topics import Topic
from precede.streaming.job import faults
from precede.streaming.job.settings import Settings
from precede.streaming.monitoring import counts
from precede.streaming.monitoring.counts import Counts
from precede.streaming.order.lag_group import LagGroup
from precede.streaming.order.notices import Notices
from precede.streaming.order.ownership import Ownership
from precede.streaming.order.packed_rows import PackedRow, packed_rows, released_from
from precede.streaming.order.progress import token_record
from precede.streaming.order.transaction import FencedError, TransactionalProducer, TransactionError
from precede.udfs.errors import Refused
from precede.udfs.records.job_records import JobRecord
from precede.udfs.records.signatures import sign
from precede.udfs.shard import Records
from precede.udfs.sizes import batch_bytes_max

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from pyspark.sql import DataFrame

ATTEMPTS = 3


class Sink:
    """Publishes the packed rows of the order query, each record exactly once across crashes."""

    def __init__(self, settings: Settings, raw: Topic, progress: Topic, key: "Ed25519PrivateKey | None" = None) -> None:
        """`key` is the service's; what the job itself writes into the log is signed with it."""
        self.settings = settings
        self.key = key
        self.progress = progress
        self.token: dict[int, int] = {}
        self.is_token_known = False
        self.counts = counts.load(Path(settings.checkpoint))
        self.refused: Refused | None = None
        self.is_stopping = False
        self.ownership = Ownership(settings, raw, progress)
        self.notices = Notices(settings.bootstrap)
        self._producer: TransactionalProducer | None = None
        self._id = f"precede.{settings.ordered_topic}"
        self._lag_group = LagGroup(settings.bootstrap, self._id, raw.name)

    def open(self) -> None:
        """Fence every other job, read the token, and claim the ordered topic."""
        self.close()
        producer = TransactionalProducer(
            self.settings.bootstrap,
            self._id,
            batch_bytes_max=batch_bytes_max(self.settings.limits),
            on_error=self.notices.client_error,
        )
        owner, self.token = self.ownership.check()
        self.counts.next = self.token | self.counts.next
        self.is_token_known = True
        self.ownership.claim(producer, owner)
        self._producer = producer

    def close(self) -> None:
        """Drop the producer, and with it what is not committed."""
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.drop()

    def announce(self, say: Callable[..., object]) -> None:
        """Say what the operator should know and was not told yet."""
        producer = self._producer
        if producer is not None:
            producer.poll()
        self.notices.announce(say)

    def publish(self, batch: "DataFrame") -> None:
        """Publish one micro-batch; Spark takes a return for success."""
        from pyspark import StorageLevel

        # A batch may be read in several slices; without the cache each of them would run the kernel again.
        batch = batch.persist(StorageLevel.MEMORY_AND_DISK)
        try:
            self.publish_rows(lambda: packed_rows(batch))
        finally:
            batch.unpersist()

    def publish_rows(self, read_rows: Callable[[], Iterator[PackedRow]]) -> None:
        """Publish the rows of one batch; after an error they are read and published again."""
        try:
            for attempt in range(1, ATTEMPTS + 1):
                try:
                    if self._producer is None:
                        self.open()
                    self._publish_once(read_rows())
                    return
                except TransactionError as error:
                    self.close()
                    if isinstance(error, FencedError):
                        self.ownership.check_not_taken_over()
                    if attempt == ATTEMPTS or self.is_stopping:
                        raise
        except Refused as error:
            self.refused = error
            raise

    def _publish_once(self, rows: Iterator[PackedRow]) -> None:
        """One transaction; a batch that is published already is read to its end too, so that Spark keeps its state."""
        producer = self._producer
        assert producer is not None
        done = Counts(batches=1)
        has_begun = False
        began, producing_s, committing_s = perf_counter(), 0.0, 0.0
        faults.reach("order.begin")
        try:
            for shard, partition, offset, records in rows:
                if not done.held:
                    faults.reach("order.ordered")
                done.add_row(shard, partition, offset, records)
                next_offset = self.token.get(partition, 0)
                if offset < next_offset:
                    continue
                records = released_from(next_offset, records)
                if not has_begun:
                    producer.begin()
                    has_begun = True
                step = perf_counter()
                self._produce(producer, partition, records)
                done.add_published(records)
                producing_s += perf_counter() - step
            if has_begun:
                step = perf_counter()
                self._commit(producer, done.next)
                committing_s = perf_counter() - step
        except BaseException:
            self.close()  # readers would wait for an open transaction
            raise
        ordering_s = perf_counter() - began - producing_s - committing_s
        done.seconds = {"order": ordering_s, "produce": producing_s, "transaction": committing_s}
        self.notices.kafka_answered()
        self.counts.add_batch(done)
        counts.save(Path(self.settings.checkpoint), self.counts)
        faults.reach("order.out")

    def _produce(self, producer: TransactionalProducer, partition: int, records: Records) -> None:
        producer.produce(self.settings.ordered_topic, records.ordered, records.ordered_keys)
        producer.produce(self.settings.dead_letter_topic, records.dead, records.dead_keys)
        for own in records.own:
            self._produce_own(producer, partition, own)

    def _produce_own(self, producer: TransactionalProducer, partition: int, own: JobRecord) -> None:
        """A record of the job itself; one for the log goes into the raw partition of its group."""
        if own.topic == "raw":
            value = own.value if self.key is None else sign(own.value, self.key)
            producer.produce(self.settings.raw_topic, [value], [own.key], partition)
        elif own.topic == "control":
            producer.produce(self.settings.control_topic, [own.value], [own.key])
        else:
            self.notices.add(msgspec.json.decode(own.value, type=str))

    def _commit(self, producer: TransactionalProducer, reached: dict[int, int]) -> None:
        """Commit the transaction together with the token of what the batch has reached."""
        token = {partition: after for partition, after in reached.items() if after > self.token.get(partition, 0)}
        faults.reach("order.open")
        for partition, after in token.items():
            key, value = token_record(self.settings.ordered_topic, partition, after)
            producer.produce(self.progress.name, [value], [key])
        producer.commit()
        self.token.update(token)
        self._lag_group.commit(token)
