"""Who may write the ordered topic: for each raw partition one job at a time, and only from the stream it was made from.

A job claims each of its raw partitions by an owner record in the progress topic. It writes these records first. Then
it fences every other transactional id that the topic names for its partitions, and only then it reads how far the
stream is published: no other job can change that any more. A job that crashes between the two has left its id in the
topic, so the next start fences it too. Jobs that share no partition have different ids, and never fence each other.

Of two jobs that start at once, the one whose records stand last in the topic goes on. A job that finds the records of
another one where its own should stand ends with TakenOver. A job that was fenced, but whose records still stand, opens
again: its own transaction was open for too long, or the other job has crashed.
"""

import time
import uuid
from collections.abc import Callable, Collection, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime

import msgspec
from confluent_kafka import KafkaError

from precede.ingest.kafka import reading
from precede.ingest.kafka.reading import TopicReader
from precede.ingest.kafka.topics import Topic, describe
from precede.ingest.progress import (
    Owner,
    Progress,
    StreamTopics,
    horizon_record,
    is_owner_of,
    new_owner,
    owner_record,
    read_progress,
    transactional_id,
)
from precede.ingest.service.monitor import Monitor
from precede.streaming.order.same_stream import (
    check_log_reaches,
    check_rules,
    check_same_source,
    check_same_state_topic,
    check_same_topics,
)
from precede.streaming.order.transaction import FencedError, TransactionalProducer
from precede.streaming.raw_partitions import as_text, owned
from precede.streaming.settings import Settings
from precede.udfs.errors import Refused, TakenOver
from precede.udfs.rules import RULES
from precede.udfs.sizes import batch_bytes_max

CLAIM_S = 5.0
"""How long after it was fenced a job looks for the records of the one that fenced it, which writes them within this."""
LOOK_S = 0.5
SHOWN = 8
"""How many characters of a job's name a sentence shows."""

OnError = Callable[[KafkaError], object]


class Ownership:
    """This job's claim to the ordered topic of its settings."""

    def __init__(self, settings: Settings, raw: Topic, progress: Topic, *, engine: str = "spark") -> None:
        self.job = uuid.uuid4().hex
        self.partitions = owned(settings.raw_partitions, raw.name, raw.partitions)
        """The raw partitions that this job owns."""
        some = as_text(self.partitions) if len(self.partitions) < raw.partitions else None
        self.transactional_id = transactional_id(settings.ordered_topic, some)
        self.settings = settings
        self.progress = progress
        self._raw = raw
        self._engine = engine
        self._since_ms = int(time.time() * 1000)
        self._has_claimed = False
        self._common: Owner | None = None

    def open(self, on_error: OnError) -> tuple[TransactionalProducer, Progress]:
        """Claim the ordered topic; the producer that writes it, and the progress, which only this job can change now.

        Raises Refused where this job may not write the topic; that disturbs no job that runs.
        """
        self._common = None
        earlier = self._read(settled=False)
        self._check(earlier)
        producer = self._new_producer(self.transactional_id, on_error)
        try:
            return producer, self._claim(producer, earlier, on_error)
        except BaseException as error:
            producer.drop()
            if isinstance(error, FencedError):
                self.check_not_taken_over({owner.job for owner in earlier.owners.values()})
            raise

    def check_not_taken_over(self, known: Collection[str] = (), for_s: float | None = None) -> None:
        """Raise TakenOver where another job has claimed a partition of this one; for a job that was fenced.

        The job that fenced this one may not have written its records yet, so this looks for them during `for_s`
        seconds. Records of the jobs in `known` were there before this job was fenced.
        """
        deadline = time.monotonic() + (CLAIM_S if for_s is None else for_s)
        while True:
            self._check_own(self._read(settled=False), known)
            if time.monotonic() >= deadline:
                return
            time.sleep(LOOK_S)

    # ── claiming ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _claim(self, producer: TransactionalProducer, earlier: Progress, on_error: OnError) -> Progress:
        """Write what is not yet in the topic, and fence every id that it names, until nothing new comes up."""
        fenced = {self.transactional_id}
        progress = self._read(settled=self._ids(earlier) <= fenced)
        self._check(progress)
        self._check_log(progress)
        before, written = progress.owners, self._standing(progress)
        while True:
            mine = self._records(before, progress)
            others = self._ids(progress) - fenced
            if mine != written:
                self._write(producer, mine, self._void(before, progress, mine))
                written = mine
            elif others:
                for one in sorted(others):
                    self._new_producer(one, on_error).drop()
                fenced |= others
            else:
                break
            # An id that is not fenced yet may have left a transaction open, which only its fence ends; until then it
            # may hide what this job wrote.
            is_settled = self._ids(progress) <= fenced
            progress = self._read(settled=is_settled)
            self._check_own(progress, known=() if is_settled else {owner.job for owner in before.values()})
            self._check_same(progress)  # a job of other partitions may start at this moment too
            written = self._standing(progress) if is_settled else written
        self._check_log(progress)
        return progress

    def _standing(self, progress: Progress) -> dict[int, Owner]:
        """The owners of this job's partitions."""
        return {at: progress.owners[at] for at in self.partitions if at in progress.owners}

    def _ids(self, progress: Progress) -> set[str]:
        """The transactional ids under which this job's partitions were ever written, as far as the topic shows."""
        return {one for partition in self.partitions for one in progress.ids.get(partition, ())}

    def _records(self, before: dict[int, Owner], progress: Progress) -> dict[int, Owner]:
        """The owner records that this job would write now; `before` are those that stood when it began to claim.

        Under rules that are new to the stream, they hold from the token on.
        """
        common = self._record()
        mine: dict[int, Owner] = {}
        for partition in self.partitions:
            found = before.get(partition)
            is_known = found is not None and found.rules == RULES
            mine[partition] = msgspec.structs.replace(
                common,
                ids=sorted({self.transactional_id} | progress.ids.get(partition, set())),
                rules_from=found.rules_from if found and is_known else progress.token.get(partition, 0),
            )
        return mine

    def _record(self) -> Owner:
        """What the owner records of all partitions have in common; found out once for each `open`."""
        if self._common is None:
            self._common = self._describe()
        return self._common

    def _describe(self) -> Owner:
        settings, raw = self.settings, self._raw
        names = settings.ordered_topic, settings.dead_letter_topic, settings.state_topic_name
        found = describe(settings.bootstrap, list(names))
        for name in names:
            if name not in found:
                raise Refused(f"The topic {name} does not exist any more.")
        return new_owner(
            StreamTopics(raw, *(found[name] for name in names)),
            job=self.job,
            order=settings.order,
            limits=settings.limits,
            partitioner=settings.partitioner,
            engine=self._engine,
            since_ms=self._since_ms,
            own_id=self.transactional_id,
        )

    def _void(self, before: dict[int, Owner], progress: Progress, mine: dict[int, Owner]) -> set[int]:
        """The partitions whose horizon speaks of another state topic than the one of these settings."""
        ids = {partition: owner.state_topic_id for partition, owner in before.items()}
        return {at for at in mine if at in progress.horizon and ids.get(at) != mine[at].state_topic_id}

    def _write(self, producer: TransactionalProducer, owners: dict[int, Owner], void: Collection[int]) -> None:
        """Write owner records, in a transaction of their own, and remove the horizon of the partitions in `void`."""
        topic = self.settings.ordered_topic
        records = [owner_record(topic, at, owner) for at, owner in owners.items()]
        producer.begin()
        producer.produce(self.progress.name, [value for _, value in records], [key for key, _ in records])
        gone = [horizon_record(topic, at, 0)[0] for at in void]
        producer.produce(self.progress.name, [None] * len(gone), gone)
        producer.commit()
        self._has_claimed = True

    def _new_producer(self, one: str, on_error: OnError) -> TransactionalProducer:
        """A producer under a transactional id, which fences every other one."""
        settings = self.settings
        largest = batch_bytes_max(settings.limits)
        return TransactionalProducer(settings.bootstrap, one, batch_bytes_max=largest, on_error=on_error)

    # ── checks ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _read(self, *, settled: bool = True) -> Progress:
        return read_progress(self.settings.bootstrap, self.progress, self.settings.ordered_topic, settled=settled)

    def _check(self, progress: Progress) -> None:
        """Refuse a stream that is not the one of these settings."""
        mine = self._record()
        if not progress.owners:
            self._check_no_output(mine.ordered_partitions)
        if self._has_claimed:
            self._check_own(progress)
        self._check_same(progress)

    def _check_same(self, progress: Progress) -> None:
        """What was written before, and what the jobs of other partitions write, is the same stream."""
        mine = self._record()
        for partition, owner in progress.owners.items():
            check_same_source(self.settings, owner, mine)
            check_same_topics(self.settings, owner, mine)
            if partition in self.partitions:
                check_rules(self.settings.ordered_topic, owner, reads_log_again=False)
            else:
                check_same_state_topic(self.settings, partition, owner, mine)

    def _check_log(self, progress: Progress) -> None:
        ends = reading.ends_of(self.settings.bootstrap, self._raw.name, self.partitions)
        check_log_reaches(self.settings, progress.token, ends)

    def _check_own(self, progress: Progress, known: Collection[str] = ()) -> None:
        """The job that took over keeps the topic: this one must not take it back when it fails and tries again."""
        owners = self._standing(progress)
        taken = {at: owner for at, owner in owners.items() if owner.job != self.job and owner.job not in known}
        if taken:
            raise self._taken_over(taken)
        if self._has_claimed and not owners:
            raise Refused(
                f"The progress topic {self.progress.name} no longer says who writes the ordered topic "
                f"{self.settings.ordered_topic}: its records were removed while this job ran."
            )

    def _taken_over(self, taken: dict[int, Owner]) -> TakenOver:
        """The refusal to go on where these partitions have another owner."""
        other = next(iter(taken.values()))
        where, again = "", "do not start it again while the other one runs"
        if len(taken) < len(self.partitions):
            left = as_text(at for at in self.partitions if at not in taken)
            where, again = f" of raw partition {as_text(taken)}", f"start it again for what it has left: {left}"
        return TakenOver(
            f"Another job took over the ordered topic {self.settings.ordered_topic}{where}: "
            f"{_name(other.job, other.engine, other.since_ms)} writes it now, and this one, "
            f"{_name(self.job, self._engine, self._since_ms)}, stops; {again}."
        )

    def _check_no_output(self, partitions: int) -> None:
        """Without a token it is not known which rows are published, so there must be none."""
        topic = self.settings.ordered_topic
        has_records = any(end > 0 for _, end in reading.ends(self.settings.bootstrap, topic, partitions))
        if has_records and not self._read().owners:  # the job of other partitions may have begun meanwhile
            raise Refused(
                f"The ordered topic {topic} holds records, but the progress topic {self.progress.name} does not know "
                "of them; choose a new ordered_topic, or the progress topic that belongs to it."
            )


def _name(job: str, engine: str, since_ms: int) -> str:
    """A job as a sentence names it."""
    since = datetime.fromtimestamp(since_ms / 1000, UTC)
    return f"job {job[:SHOWN]} (engine {engine}, started {since:%Y-%m-%d %H:%M:%S} UTC)"


# ── another job takes over while this one is idle ─────────────────────────────────────────────────────────────────────

IDLE_LOOK_S = 1.0


class OwnerMonitor:
    """Calls `on_taken_over` once, with the refusal, when another job has claimed what this one owns.

    A job that publishes learns it from its next transaction. An idle one has none, so this reads the progress topic as
    it grows, once a second, and looks at it again as a whole when it shows the owner record of another job.
    """

    def __init__(self, ownership: Ownership, on_taken_over: Callable[[Refused], object]) -> None:
        self._ownership = ownership
        self._on_taken_over = on_taken_over
        self._is_assigned = False
        self._is_due = True
        """Whether the topic is to be looked at as a whole."""
        self._monitor = Monitor(
            "owner-monitor",
            self._look,
            opens=self._open,
            every_s=IDLE_LOOK_S,
            undone="it is not noticed that another job has taken over while nothing is published",
        )

    def start(self) -> None:
        """Begin, once this job has claimed its partitions; one that has begun goes on."""
        self._monitor.start()

    def stop(self) -> None:
        self._monitor.stop()

    @contextmanager
    def _open(self) -> Iterator[TopicReader]:
        self._is_assigned, self._is_due = False, True  # another job may have come before the first look
        with closing(TopicReader(self._ownership.settings.bootstrap, wait_ms=int(IDLE_LOOK_S * 1000))) as reader:
            yield reader

    def _look(self, reader: TopicReader) -> None:
        self._is_assigned = self._is_assigned or self._assign(reader)
        self._is_due = self._names_another(reader) or self._is_due
        if self._is_due:
            self._check()
        self._is_due = False

    def _assign(self, reader: TopicReader) -> bool:
        topic = self._ownership.progress.name
        offsets = reader.starts(topic, at_end=True, timeout_s=0)
        reader.assign(topic, offsets)
        return bool(offsets)

    def _names_another(self, reader: TopicReader) -> bool:
        """Whether what was added to the topic names another owner of this stream."""
        ownership, found = self._ownership, False
        while records := reader.read(0):
            for record in records:
                topic = ownership.settings.ordered_topic
                found = found or is_owner_of(record.key, record.value, topic, unless=ownership.job)
        return found

    def _check(self) -> None:
        try:
            self._ownership.check_not_taken_over(for_s=0)
        except Refused as refusal:
            self._on_taken_over(refusal)
            self._monitor.finish()
