"""The exactly-once sink: one Kafka transaction per micro-batch, with the batch's token inside it.

The token is, per raw partition, the next raw offset whose output is out. It is written to the progress topic in the
same transaction as the rows, and only rows at or above it are published. The log gives the same rows in any batches, so
a batch that Spark runs again, a fresh checkpoint and another number of shards all publish nothing twice.

`init_transactions` fences every other job with the same ordered topic; the token is read after that, so nobody can
move it any more. An error in a commit says nothing about whether it happened: the producer is dropped, the fence and
the token are taken again, and what the token leaves to do is done.
"""

import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

import msgspec
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from precede.ingest.kafka import clients, reading
from precede.ingest.kafka.topics import Topic, describe
from precede.streaming.job import faults
from precede.streaming.job.settings import Settings
from precede.streaming.monitoring import counts
from precede.streaming.monitoring.counts import Counts
from precede.streaming.order.progress import Owner, Token, read_progress, same_source, same_topics, still_there
from precede.udfs.errors import Refused
from precede.udfs.records.job_records import JobRecord
from precede.udfs.records.signatures import sign
from precede.udfs.shard import Records, unpack
from precede.udfs.sizes import batch_bytes_max

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from pyarrow import Table
    from pyspark.sql import DataFrame

TRANSACTION_S = 120
"""A transaction open longer is aborted by the broker; readers wait no longer than this for a dead job's."""

COMMIT_S = 30.0
ABORT_S = 5.0
ATTEMPTS = 3
SLICE_BYTES_MAX = 64 * 1024 * 1024
SHORT_BYTES_MAX = 64 * 1024  # of a packed row: a shard has about one such for each raw partition
SAID_MAX = 100
"""How many sentences of the kernel's a job says, each once: one a group, and there may be many groups."""
SAID_ENOUGH = "More groups lack the same; their gaps are in `precede held --gaps`, and no more is said of them."
QUEUE_KIB_MAX = 256 * 1024
ANY_PARTITION = -1
"""The one its key says."""

FENCED = {
    KafkaError._FENCED,
    KafkaError.PRODUCER_FENCED,
    KafkaError.INVALID_PRODUCER_EPOCH,
}


class Sink:
    """Publishes the packed rows of the order query, each record once, whatever crashes."""

    def __init__(self, settings: Settings, raw: Topic, progress: Topic, key: "Ed25519PrivateKey | None" = None) -> None:
        """`key` is the service's: what the job itself writes into the log is signed with it."""
        self.settings = settings
        self.key = key
        self.raw = raw
        self.progress = progress
        self.job = uuid.uuid4().hex
        self.token: dict[int, int] = {}
        self.is_token_known = False
        self.counts = counts.recall(Path(settings.checkpoint))
        self.refused: Refused | None = None
        self._was_owner = False
        self.stopping = False
        self.is_away = self._said_away = False
        self._sentences: dict[str, bool] = {}
        """What the kernel had to say to a person, and whether it was said."""
        self._producer: Producer | None = None
        # Only to commit offsets for lag tools; it never subscribes.
        self._group = Consumer(clients.settings(settings.bootstrap) | {"group.id": f"precede.{settings.ordered_topic}"})

    # ── opening ───────────────────────────────────────────────────────────────────────────────────────────────────

    def open(self) -> None:
        """Fence every other job, then read the token and say whose the ordered topic is."""
        self.close()
        settings = self.settings
        producer = Producer(
            clients.settings(settings.bootstrap)
            | {
                "error_cb": self._noticed,
                "transactional.id": f"precede.{settings.ordered_topic}",
                "transaction.timeout.ms": TRANSACTION_S * 1000,
                "partitioner": "murmur2_random",
                "linger.ms": 5,
                "queue.buffering.max.messages": 1_000_000,
                "queue.buffering.max.kbytes": QUEUE_KIB_MAX,
                "message.max.bytes": 2 * 1024 * 1024 + 64 * 1024,
                "batch.size": batch_bytes_max(settings.limits),  # or many small records together are refused
            }
        )
        producer.init_transactions(COMMIT_S)
        owner, self.token = read_progress(settings.bootstrap, self.progress, settings.ordered_topic)
        self.counts.next = self.token | self.counts.next
        self.is_token_known = True
        mine = self._owner()
        if owner is not None:
            if self._was_owner:
                self._still_mine(owner)
            same_source(settings, owner, mine)
            same_topics(settings, owner, mine)
            still_there(settings, self.token, reading.ends(settings.bootstrap, self.raw.name, self.raw.partitions))
        else:
            self._refuse_unknown_output(mine.ordered_partitions or 0)
        producer.begin_transaction()
        producer.produce(self.progress.name, msgspec.json.encode(mine), msgspec.json.encode([settings.ordered_topic]))
        producer.commit_transaction(COMMIT_S)
        self._was_owner = True
        self._producer = producer

    def _owner(self) -> Owner:
        """What the ordered topic would be made of by this job."""
        settings, raw = self.settings, self.raw
        names = settings.ordered_topic, settings.dead_letter_topic
        found = describe(settings.bootstrap, list(names))
        for name in names:
            if name not in found:
                raise Refused(f"The topic {name} does not exist any more.")
        ordered, dead = (found[name] for name in names)
        return Owner(
            raw.name,
            raw.id,
            settings.order,
            settings.limits,
            self.job,
            partitions=raw.partitions,
            ordered_topic_id=ordered.id,
            ordered_partitions=ordered.partitions,
            dead_letter_topic_id=dead.id,
            partitioner=settings.partitioner,
        )

    def _refuse_unknown_output(self, partitions: int) -> None:
        """Without a token nobody can say which rows are out, so there must be none."""
        topic = self.settings.ordered_topic
        if any(end > 0 for _, end in reading.ends(self.settings.bootstrap, topic, partitions)):
            raise Refused(
                f"The ordered topic {topic} holds records, but the progress topic {self.progress.name} does not know "
                "of them; choose a new ordered_topic, or the progress topic that belongs to it."
            )

    def close(self) -> None:
        """Drop the producer; what it had not committed and cannot abort now is aborted by whoever opens next."""
        producer, self._producer = self._producer, None
        if producer is not None:
            with suppress(KafkaException):  # no transaction is open, or another job has fenced this one
                producer.purge()
                producer.abort_transaction(ABORT_S)

    # ── publishing ────────────────────────────────────────────────────────────────────────────────────────────────

    def listen(self, say: Callable[..., object]) -> None:
        """Say what was noticed: once each time that no broker answers any more, and once what the kernel tells."""
        producer = self._producer
        if producer is not None:
            producer.poll(0)
        if self.is_away and not self._said_away:
            bootstrap = self.settings.bootstrap
            sentence = f"Kafka at {bootstrap} does not answer; nothing is lost, and it goes on when it is back."
            say(sentence, level="warning", query="order")
        self._said_away = self.is_away
        for sentence in [sentence for sentence, said in list(self._sentences.items()) if not said]:
            self._sentences[sentence] = True
            say(sentence, level="warning", query="order")

    def _noticed(self, error: KafkaError) -> None:
        if error.code() == KafkaError._ALL_BROKERS_DOWN:
            self.is_away = True

    def publish(self, batch: "DataFrame") -> None:
        """Publish one micro-batch; Spark calls this, and takes a return for `it is out`."""
        from pyspark import StorageLevel

        # Kept, because a batch may be read in several slices, and reading it anew would run the kernel anew.
        batch = batch.persist(StorageLevel.MEMORY_AND_DISK)
        try:
            self._insist(batch)
        except Refused as error:
            self.refused = error
            raise
        finally:
            batch.unpersist()

    def _insist(self, batch: "DataFrame") -> None:
        for attempt in range(1, ATTEMPTS + 1):
            try:
                if self._producer is None:
                    self.open()
                self._publish(batch)
                return
            except KafkaException as error:
                self.close()
                if error.args[0].code() in FENCED:
                    self._check_owner()
                if attempt == ATTEMPTS or self.stopping:
                    raise

    def _check_owner(self) -> None:
        """A fence means that another job took over, or that this one slept longer than a transaction may last."""
        owner, _ = read_progress(self.settings.bootstrap, self.progress, self.settings.ordered_topic)
        self._still_mine(owner)

    def _still_mine(self, owner: Owner | None) -> None:
        """Whoever took over keeps it: a job that fails and tries again must not take it back."""
        if owner is None or owner.job != self.job:
            raise Refused(f"Another job took over the ordered topic {self.settings.ordered_topic}; this one stops.")

    def _publish(self, batch: "DataFrame") -> None:
        """One transaction; also a batch that is out already is read to its end, or Spark's state would not commit."""
        producer = self._producer
        assert producer is not None
        done = Counts(batches=1)
        begun = False
        began, producing_s, committing_s = perf_counter(), 0.0, 0.0
        faults.reach("order.begin")
        try:
            for shard, partition, offset, records in packed_rows(batch):
                if not done.held:
                    faults.reach("order.ordered")
                done.see(shard, partition, offset, records)
                if offset < self.token.get(partition, 0):
                    continue
                records = above(self.token.get(partition, 0), records)
                if not begun:
                    producer.begin_transaction()
                    begun = True
                here = perf_counter()
                self._produce(self.settings.ordered_topic, records.ordered, records.ordered_keys)
                self._produce(self.settings.dead_letter_topic, records.dead, records.dead_keys)
                self._produce_own(records.own, partition)
                done.publish(records)
                producing_s += perf_counter() - here
            if begun:
                here = perf_counter()
                self._commit(producer, done.next)
                committing_s = perf_counter() - here
        except BaseException:
            self.close()  # an open transaction must not linger; the fence of the next opening aborts it
            raise
        ordering_s = perf_counter() - began - producing_s - committing_s
        done.seconds = {"order": ordering_s, "produce": producing_s, "transaction": committing_s}
        self._count(done)
        faults.reach("order.out")

    def _produce(
        self, topic: str, values: list[bytes], keys: "list[bytes] | list[bytes | None]", partition: int = ANY_PARTITION
    ) -> None:
        assert self._producer is not None
        produce, poll = self._producer.produce, self._producer.poll
        for value, key in zip(values, keys, strict=True):
            while True:
                try:
                    produce(topic, value, key, partition)
                    break
                except BufferError:
                    poll(0.05)

    def _produce_own(self, records: list[JobRecord], partition: int) -> None:
        """What the job itself has to say; what it writes into the log goes where the group lives."""
        for one in records:
            if one.topic == "raw":
                value = one.value if self.key is None else sign(one.value, self.key)
                self._produce(self.settings.raw_topic, [value], [one.key], partition)
            elif one.topic == "control":
                self._produce(self.settings.control_topic, [one.value], [one.key])
            else:
                self._note(msgspec.json.decode(one.value, type=str))

    def _note(self, sentence: str) -> None:
        if sentence not in self._sentences:
            self._sentences.setdefault(sentence if len(self._sentences) < SAID_MAX else SAID_ENOUGH, False)

    def _commit(self, producer: Producer, upto: dict[int, int]) -> None:
        token = {partition: after for partition, after in upto.items() if after > self.token.get(partition, 0)}
        faults.reach("order.open")
        for partition, after in token.items():
            key = msgspec.json.encode([self.settings.ordered_topic, partition])
            producer.produce(self.progress.name, msgspec.json.encode(Token(after)), key)
        producer.commit_transaction(COMMIT_S)
        self.token.update(token)
        self._tell_lag_tools(token)

    def _tell_lag_tools(self, token: dict[int, int]) -> None:
        """Commit the token as a consumer group's offsets, for tools that show how far behind a reader is.

        Not inside the transaction: nothing is decided by these offsets, and `send_offsets_to_transaction` costs two
        round trips and, where the broker goes away meanwhile, waits for it without end, whatever its timeout.
        """
        offsets = [TopicPartition(self.raw.name, partition, after) for partition, after in token.items()]
        if offsets:
            with suppress(KafkaException):
                self._group.commit(offsets=offsets, asynchronous=True)
                self._group.poll(0)  # takes the answers to earlier ones, which would pile up

    def _count(self, batch: Counts) -> None:
        self.is_away = False
        self.counts.add(batch)
        counts.keep(Path(self.settings.checkpoint), self.counts)


# ── reading a batch ───────────────────────────────────────────────────────────────────────────────────────────────────


def packed_rows(batch: "DataFrame") -> Iterator[tuple[int, int, int, Records]]:
    """The batch as (shard, raw partition, last raw offset, records), never more than a slice on the driver at once.

    The first packed row of every shard, and all short ones, come with the list of all rows, in one job: a small batch
    needs no other. The rest comes in slices. Each shard's rows keep their order, for a group's records are among them.
    """
    from pyspark.sql import functions as F  # noqa: N812 (the name all of Spark's pages use)

    at_once = (F.col("part") == 0) | (F.col("bytes") <= SHORT_BYTES_MAX)
    listed = batch.select(
        "shard", "part", "partition", "offset", "bytes", F.when(at_once, F.col("records")).alias("records")
    )
    rest: list[tuple[int, int, int]] = []
    following = -1, 0
    for shard, part, size, row in sorted(_rows(listed), key=_place):
        if part == 0 or (row[2] is not _NONE and following == (shard, part)):
            yield shard, *row
            following = shard, part + 1
        else:
            rest.append((shard, part, size))
    for some in _slices(rest):
        # By ranges, for then Spark passes over what is kept of other rows without unpacking it.
        wanted = (f"shard = {shard} AND part BETWEEN {first} AND {last}" for shard, (first, last) in some.items())
        for shard, _, _, row in sorted(_rows(batch.where(" OR ".join(wanted))), key=_place):
            yield shard, *row


def _place(row: tuple[int, int, int, tuple[int, int, Records]]) -> tuple[int, int]:
    return row[:2]


def _rows(batch: "DataFrame") -> Iterator[tuple[int, int, int, tuple[int, int, Records]]]:
    table: Table = batch.toArrow()
    columns = (table.column(name).to_pylist() for name in ("shard", "part", "bytes", "partition", "offset"))
    for shard, part, size, partition, offset, packed in zip(*columns, table.column("records"), strict=True):
        records = unpack(packed.as_buffer()) if packed.is_valid else _NONE
        yield shard, part, size, (partition, offset, records)


_NONE = Records([], [], [], [], [], [], 0, 0, 0)


def _slices(rows: list[tuple[int, int, int]]) -> Iterator[dict[int, tuple[int, int]]]:
    """Of each shard the first and last part of those that fit on the driver together; none between them is left out."""
    some: dict[int, tuple[int, int]] = {}
    size_of_some = 0
    for shard, part, size in rows:
        if some and size_of_some + size > SLICE_BYTES_MAX:
            yield some
            some, size_of_some = {}, 0
        first, _ = some.get(shard, (part, part))
        some[shard] = first, part
        size_of_some += size
    if some:
        yield some


def above(next_offset: int, records: Records) -> Records:
    """Those of the records whose releasing raw offset is at or above the token."""
    offsets = records.ordered_offsets + records.dead_offsets + [one.offset for one in records.own]
    if not offsets or min(offsets) >= next_offset:
        return records
    ordered = [offset >= next_offset for offset in records.ordered_offsets]
    dead = [offset >= next_offset for offset in records.dead_offsets]
    return Records(
        [value for value, new in zip(records.ordered, ordered, strict=True) if new],
        [key for key, new in zip(records.ordered_keys, ordered, strict=True) if new],
        [offset for offset in records.ordered_offsets if offset >= next_offset],
        [value for value, new in zip(records.dead, dead, strict=True) if new],
        [key for key, new in zip(records.dead_keys, dead, strict=True) if new],
        [offset for offset in records.dead_offsets if offset >= next_offset],
        records.read,
        records.duplicates,
        records.held,
        records.waiting,
        records.state_bytes,
        [one for one in records.own if one.offset >= next_offset],
        [code for code, new in zip(records.dead_codes, dead, strict=True) if new],
    )
