"""The exactly-once sink: one Kafka transaction per batch, with the batch's token inside it.

The token is, for each raw partition, the next raw offset whose output is not yet published. It is written to the
progress topic in the same transaction as the records, and only records at or above it are published. The log gives the
same records in batches of any size, so a batch that runs again, a fresh checkpoint and another number of shards all
publish nothing twice.

Opening fences every other job with the same ordered topic. The token is read after that, so no other job can change it
any more. An error of a commit does not tell whether the commit happened: the producer is dropped, a new one is opened,
the token is read again, and what it leaves to do is done.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import groupby, islice
from operator import itemgetter
from time import perf_counter
from typing import TYPE_CHECKING

import msgspec

from precede.ingest.kafka.topics import Topic, record_bytes_max
from precede.ingest.progress import horizon_record, token_record, transactional_id
from precede.streaming import faults
from precede.streaming.order import counts
from precede.streaming.order.counts import CountsFile, JobCounts, Times
from precede.streaming.order.notices import LagGroup, Notices
from precede.streaming.order.ownership import Ownership
from precede.streaming.order.packed_rows import PackedRow, packed_rows, released_from
from precede.streaming.order.transaction import (
    TRANSACTION_S,
    FencedError,
    OverdueError,
    TransactionalProducer,
    TransactionError,
)
from precede.streaming.places.place import Place
from precede.streaming.raw_partitions import of_partitions
from precede.streaming.settings import Settings
from precede.udfs.errors import Refused
from precede.udfs.records.messages import NAME_BYTES_MAX
from precede.udfs.records.published import JobRecord
from precede.udfs.records.signatures import sign
from precede.udfs.records.state_pieces import PIECE_BYTES_MAX
from precede.udfs.sizes import WRAPPED_BYTES
from precede.udfs.state_log import StateSettings
from precede.udfs.steps import Records, StateRecord

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from pyspark.sql import DataFrame

ATTEMPTS = 3
STATES_AT_ONCE = 1000
STATE_KEY_BYTES_MAX = 6 * NAME_BYTES_MAX + 32 + WRAPPED_BYTES


class Sink:
    """Publishes the packed rows of the order query, each record exactly once across crashes."""

    def __init__(
        self,
        settings: Settings,
        raw: Topic,
        progress: Topic,
        key: "Ed25519PrivateKey | None" = None,
        *,
        engine: str = "spark",
        counts_folder: Place | None = None,
    ) -> None:
        """`key` is the service's; what the job itself writes into the log is signed with it.

        What each shard holds is kept in `counts_folder`, for an engine whose shards do not all report at each start.
        """
        self.settings = settings
        self.key = key
        self.progress = progress
        self.token: dict[int, int] = {}
        self.coverage = Coverage({}, settings.shards, is_fresh=False)
        self.state = StateSettings()
        """How the kernel's states are written; known once the job owns the topics."""
        self.is_token_known = False
        self.counts = JobCounts() if counts_folder is None else counts.load(counts_folder)
        self._counts_file = None if counts_folder is None else CountsFile(counts_folder)
        self.times = Times()
        self.shards: Collection[int] = ()
        """The shards that had input in the batch that was published last."""
        self.refused: Refused | None = None
        self.is_stopping = False
        self.ownership = Ownership(settings, raw, progress, engine=engine)
        self.notices = Notices(settings.bootstrap)
        self._producer: TransactionalProducer | None = None
        self._own_raw: list[tuple[int, JobRecord]] = []
        """What the open transaction will write into the raw topic, by partition."""
        self._lag_group = LagGroup(settings.bootstrap, transactional_id(settings.ordered_topic), raw.name)

    def open(self) -> None:
        """Claim the ordered topic, fence every other job, and read the token."""
        self.close()
        producer, progress = self.ownership.open(self.notices.client_error)
        owner = progress.owners[self.ownership.partitions[0]]
        self.state = StateSettings(
            topic=owner.state_topic_id,
            stream=owner.ordered_topic_id,
            every_ms=int(self.settings.state_every_s * 1000),
            piece_bytes_max=min(
                PIECE_BYTES_MAX,
                record_bytes_max(self.settings.bootstrap, self.settings.state_topic_name) - STATE_KEY_BYTES_MAX,
            ),
            written_from=of_partitions(self.ownership.partitions, progress.horizon),
        )
        self.token = of_partitions(self.ownership.partitions, progress.token)
        self.counts.next = self.token | self.counts.next
        self.is_token_known = True
        self._producer = producer

    def follow_horizon(self, *, is_fresh: bool) -> None:
        """For a query that starts now, with a sink that is open: a fresh one has no state that the topic lacks."""
        self.coverage = Coverage(self.state.written_from, self.settings.shards, is_fresh=is_fresh)
        if is_fresh and not self.state.written_from and any(self.token.values()):
            self.notices.add(
                f"The state topic {self.settings.state_topic_name} has nothing of this stream: the whole raw log is "
                "read again, and nothing is published twice."
            )

    def taken_over(self, refusal: Refused) -> None:
        """Take in that another job writes the ordered topic now; this one publishes nothing more."""
        self.refused = refusal
        self.is_stopping = True

    def end(self) -> None:
        """Close it for good."""
        self.close()
        if self._counts_file is not None and self.counts.batches:
            self._counts_file.save(self.counts)

    def close(self) -> None:
        """Drop the producer, and with it what is not committed."""
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.drop()
        self._lag_group.commit({}, at_once=True)

    def announce(self, say: Callable[..., object]) -> None:
        """Say what the operator should know and was not told yet."""
        producer = self._producer
        if producer is not None:
            producer.poll()
        self._lag_group.commit({})
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
                    self._failed(error)
                    if attempt == ATTEMPTS or self.is_stopping:
                        raise
        except Refused as error:
            self.refused = error
            raise

    def publish_step(self, rows: Iterator[PackedRow]) -> bool:
        """Publish rows that cannot be read again: after an error the caller starts over from what is committed.

        Returns whether there was anything to commit.
        """
        try:
            try:
                return self._publish_once(rows)
            except TransactionError as error:
                self._failed(error)
                raise
        except Refused as error:
            self.refused = error
            raise

    def _failed(self, error: TransactionError) -> None:
        """A transaction failed; raises Refused where it did because another job has taken over."""
        self.close()
        if isinstance(error, OverdueError):
            self.notices.add(self._overdue())
        if isinstance(error, FencedError):
            self.ownership.check_not_taken_over()

    def publish_state(self, records: Iterator[StateRecord], *, is_last: bool = False) -> None:
        """Publish states as of the token, in transactions of bounded size.

        With the last ones, the topic has everything: the horizon moves up to the token.
        """
        try:
            while some := list(islice(records, STATES_AT_ONCE)):
                self._publish_states(some, {})
            if is_last:
                self.coverage.cover_all()
                self._publish_states([], self.coverage.moved(self.token))
        except FencedError:
            self.close()
            self.ownership.check_not_taken_over()
            raise

    def _publish_states(self, records: Sequence[StateRecord], horizon: dict[int, int]) -> None:
        producer = self._producer
        if producer is None or not (records or horizon):
            return
        producer.begin()
        for partition, key, value in records:
            producer.produce(self.settings.state_topic_name, [value], [key], partition)
        self._commit_horizon(producer, horizon)

    def _publish_once(self, rows: Iterator[PackedRow]) -> bool:
        """One transaction; a batch that is published already is read to its end too, so that Spark keeps its state.

        Returns whether there was anything to commit.
        """
        producer = self._producer
        assert producer is not None
        done = JobCounts(batches=1)
        reports: dict[int, dict[int, int]] = {}
        self._own_raw = []
        self.times.begin()
        has_begun = False
        began, producing_s, committing_s = perf_counter(), 0.0, 0.0
        faults.reach("order.begin")
        try:
            for shard, partition, offset, records in rows:
                if not done.held:
                    faults.reach("order.ordered")
                done.add_row(shard, partition, offset, records)
                if records.uncovered is not None:
                    reports[shard] = records.uncovered
                next_offset = self.token.get(partition, 0)
                if offset < next_offset and not records.state:
                    continue
                records = released_from(next_offset, records)
                if not has_begun:
                    producer.begin()
                    has_begun = True
                step = perf_counter()
                self._produce(producer, partition, records)
                if offset >= next_offset:
                    done.add_published(records)
                    self.times.note(records.ordered)
                producing_s += perf_counter() - step
            if has_begun:
                step = perf_counter()
                self._commit(producer, done.next, reports)
                committing_s = perf_counter() - step
                self.times.committed()
            else:  # what a shard says of its state counts, although nothing is published
                for shard, uncovered in reports.items():
                    self.coverage.report(shard, uncovered)
        except BaseException:
            self.close()  # readers would wait for an open transaction
            raise
        ordering_s = perf_counter() - began - producing_s - committing_s
        done.seconds = {"order": ordering_s, "produce": producing_s, "transaction": committing_s}
        self.notices.kafka_answered()
        self.counts.add_batch(done)
        self.shards = done.held.keys()
        if self._counts_file is not None:
            self._counts_file.save_if_due(self.counts)
        faults.reach("order.out")
        return has_begun

    def _produce(self, producer: TransactionalProducer, partition: int, records: Records) -> None:
        """The token filters what is delivered, never state: that is as it is after this batch."""
        if records.state:
            self._produce_states(producer, records.state)
        producer.produce(self.settings.ordered_topic, records.ordered, records.ordered_keys)
        producer.produce(self.settings.dead_letter_topic, records.dead, records.dead_keys)
        for own in records.own:
            self._produce_own(producer, partition, own)

    def _produce_states(self, producer: TransactionalProducer, states: Sequence[StateRecord]) -> None:
        faults.reach("state.before")
        for partition, some in groupby(states, key=itemgetter(0)):
            _, keys, values = zip(*some, strict=True)
            producer.produce(self.settings.state_topic_name, values, keys, partition)
        faults.reach("state.after")

    def _produce_own(self, producer: TransactionalProducer, partition: int, own: JobRecord) -> None:
        """A record of the job itself; one for the log goes into the raw partition of its group, directly before the
        commit: until then it would hold up every reader of committed records in that partition.
        """
        if own.topic == "raw":
            self._own_raw.append((partition, own))
        elif own.topic == "control":
            producer.produce(self.settings.control_topic, [own.value], [own.key])
        else:
            self.notices.add(msgspec.json.decode(own.value, type=str))

    def _overdue(self) -> str:
        if self.settings.runs_without_spark:
            return f"A transaction took longer than {TRANSACTION_S} s, so Kafka aborted it; it is published again."
        return (
            f"A transaction took longer than {TRANSACTION_S} s, so Kafka aborted it, and the batch is published again; "
            f"lower max_offsets_per_trigger, which is {self.settings.max_offsets_per_trigger}, so that batches are "
            "smaller."
        )

    def _commit(
        self, producer: TransactionalProducer, reached: dict[int, int], reports: dict[int, dict[int, int]]
    ) -> None:
        """Commit the transaction together with the token of what the batch has reached, and the horizon."""
        token = {partition: after for partition, after in reached.items() if after > self.token.get(partition, 0)}
        for shard, uncovered in reports.items():
            self.coverage.report(shard, uncovered)
        horizon = self.coverage.moved(reached)
        faults.reach("order.open")
        for partition, after in token.items():
            key, value = token_record(self.settings.ordered_topic, partition, after)
            producer.produce(self.progress.name, [value], [key])
        self._commit_horizon(producer, horizon)
        self.token.update(token)
        self._lag_group.commit(token)

    def _commit_horizon(self, producer: TransactionalProducer, horizon: dict[int, int]) -> None:
        for partition, covered in horizon.items():
            key, value = horizon_record(self.settings.ordered_topic, partition, covered)
            producer.produce(self.progress.name, [value], [key])
        own_raw, self._own_raw = self._own_raw, []
        for partition, own in own_raw:
            value = own.value if self.key is None else sign(own.value, self.key)
            producer.produce(self.settings.raw_topic, [value], [own.key], partition)
        producer.commit()
        self.coverage.commit(horizon)


# ── the horizon ───────────────────────────────────────────────────────────────────────────────────────────────────────


class Coverage:
    """The horizon: per raw partition the offset such that the state topic covers, for every group, all below it.

    Each shard reports the first offset that the topic does not cover of it. A shard without input is silent, and what a
    restarted job has in its state is not known before it speaks; so after a start the horizon stays where it is until
    every shard has reported. A job that starts with no state at all knows all of them.
    """

    def __init__(self, published: Mapping[int, int], shards: int, *, is_fresh: bool) -> None:
        """`published` is the horizon in the progress topic; a fresh job has no state that is not in the topic."""
        self._published = dict(published)
        self._silent = set() if is_fresh else set(range(shards))
        self._uncovered: dict[int, dict[int, int]] = {}

    @property
    def published(self) -> dict[int, int]:
        """The horizon as it is committed."""
        return self._published.copy()

    @property
    def lacks_states(self) -> bool:
        """Whether a shard reported a change that is not in the state topic."""
        return bool(self._uncovered)

    def report(self, shard: int, uncovered: Mapping[int, int]) -> None:
        """Take what a shard says, from the batch that is published next or was published last."""
        self._silent.discard(shard)
        if uncovered:
            self._uncovered[shard] = dict(uncovered)
        else:
            self._uncovered.pop(shard, None)

    def cover_all(self) -> None:
        """All states are in the topic."""
        self._silent.clear()
        self._uncovered.clear()

    def moved(self, reached: Mapping[int, int]) -> dict[int, int]:
        """Where the horizon moves to, of the partitions that are processed up to `reached`; it never goes back."""
        if self._silent:
            return {}
        found: dict[int, int] = {}
        for partition, next_offset in reached.items():
            firsts = [first[partition] for first in self._uncovered.values() if partition in first]
            offset = min(firsts, default=next_offset)
            if min(offset, next_offset) > self._published.get(partition, 0):
                found[partition] = min(offset, next_offset)
        return found

    def commit(self, moved: Mapping[int, int]) -> None:
        """The horizon was published."""
        self._published.update(moved)
