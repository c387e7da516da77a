"""Opens a member: reads what its group's log tells, carries out the plan of how to resume, and joins where needed.

The ordered topic is read to its end once, from where the member stopped or, for a newcomer, from the beginning. Only
the records of its group are looked into. The member also learns from the records that it does not want to be handed,
so that it may answer them and its stamps are right. Every decision is made by `resume_plan.py`.
"""

import logging
import warnings
from collections.abc import Callable, Iterator
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple

from precede.ingest import epochs
from precede.ingest.follower_token import FollowerToken, read_token
from precede.ingest.kafka.access import Address
from precede.ingest.kafka.log_readers import LogReader
from precede.ingest.kafka.reading import why_unreadable
from precede.ingest.kafka.topics import describe
from precede.ingest.progress import read_progress
from precede.member.publishing import MemberPublisher
from precede.member.resume_plan import (
    Found,
    History,
    Reading,
    StartPlan,
    awaits_admission,
    needs_new_epoch,
    plan_join,
    plan_reading,
)
from precede.reading.delivery import Delivery, as_delivery
from precede.reading.from_delta import DeltaHistory
from precede.reading.ordered_topic import partitions_of
from precede.udfs.errors import Refused, Unreachable
from precede.udfs.member.knowledge import read_without_data
from precede.udfs.records.identifiers import id_text
from precede.udfs.records.messages import Id

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

_LOGGER = logging.getLogger("precede")

LOOK_S = 0.2
PATIENCE_S = 60.0
ADMISSION_S = 5.0


class MemberStart(NamedTuple):
    """Where a member that was opened stands."""

    token: FollowerToken
    """What its follower resumes from."""
    position: int
    """The last position that is not handed over."""
    kept_from: int | None
    """The first position that the topic still has, if it has deleted some that this member lacks; 0 if it has none."""
    older: Iterator[Delivery]
    """What is handed over from Delta before the topic is read on."""


class Log(NamedTuple):
    """The Kafka cluster, and the topics in it that a member reads when it is opened."""

    bootstrap: Address | str
    raw: str
    ordered: str
    progress: str
    partitioner: str
    """The job's setting, by which the raw topic has its groups."""


class Startup:
    """What one member reads to be opened; `start_member` uses it."""

    def __init__(
        self,
        publisher: MemberPublisher,
        reader: LogReader,
        log: Log,
        past: Callable[[], DeltaHistory | None],
        *,
        is_live: bool = False,
    ) -> None:
        self._publisher = publisher
        self._reader = reader
        self._log = log
        self._is_live = is_live
        self._past = past  # it depends on the group's order, which is only known after reading
        self._offsets: dict[int, int] = {}
        """How far the ordered topic was read."""
        self._seq_in_log = 0

    def find_place(self, *, history: History, since: int | None) -> MemberStart:
        """Read the group's records in the ordered topic, and decide where to begin."""
        known = self._publisher.known
        starts = self._reader.starts(self._log.ordered, at_end=False, timeout_s=0.0)
        begins = self._offsets = partitions_of(known.group, starts)
        reading = plan_reading(self._offsets, None if since is not None else self._kept(), since, known.sender)
        self._offsets = dict(reading.offsets)
        plan = self._read_into_plan(reading, history)
        if plan.lacks_beginning:
            self._learn_members()
        past = self._past()
        delta_last = 0 if past is None or plan.topic_has_records else past.last()
        has_deleted = any(first > (reading.offsets[at] if reading.resumes else 0) for at, first in begins.items())
        if since is not None and not self._is_live and (plan.topic_has_records or past is not None or not has_deleted):
            self._check_since(since, max(plan.end, delta_last))
        start = plan.start(has_delta=past is not None, delta_last=delta_last)
        older = iter(()) if past is None or start.from_delta is None else past.between(*start.from_delta)
        kept_from = (plan.first or 0) if has_deleted else None
        token = start.token(self._log.ordered, known.group, known.sender)
        return MemberStart(token, start.position, kept_from, older)

    def _check_since(self, since: int, end: int) -> None:
        """Raise Refused if what comes next would be passed over as old: the position is of another log, or of a job
        that has not caught up."""
        if since > end:
            raise Refused(
                f"since={since} is past the end of {self._publisher.known.group}, which has {end} positions in"
                f" {self._log.ordered}: if the topics were made again, begin with since=0; if the job is behind, wait"
                " until it has caught up."
            )

    def _kept(self) -> FollowerToken | None:
        """Where this member stopped; of another ordered topic only its position counts, and not its offsets."""
        text = self._publisher.known.token
        kept = None if text is None else read_token(text)
        if kept is not None and not kept.belongs_to(self._log.ordered, self._reader.topic_id(self._log.ordered)):
            kept.offsets = {}
        return kept

    def _read_into_plan(self, reading: Reading, history: History) -> StartPlan:
        plan = StartPlan(reading, history, self._publisher.known.sender)
        for found in self._records():
            for _, fields in plan.add(found):
                self._publisher.observe(fields)
        return plan

    def _records(self) -> Iterator[Found]:
        """The records of the group up to the end of the topic; the member learns from each of them."""
        publisher, known = self._publisher, self._publisher.known
        for record, fields in records_of(self._reader, self._log.ordered, known.group, self._offsets):
            publisher.speaker.knowledge.learn(fields)
            publisher.speaker.adopt_order(fields["order"])
            if fields.get("sender") == known.sender and fields.get("epoch", 0) == known.epoch:
                self._seq_in_log = max(self._seq_in_log, fields.get("seq", 0))
            yield record, fields

    def _learn_more(self) -> None:
        """Read on to the end of the topic; one that has come since the start is read from its beginning."""
        if not self._offsets:
            starts = self._reader.starts(self._log.ordered, at_end=False, timeout_s=LOOK_S)
            self._offsets = partitions_of(self._publisher.known.group, starts)
        for _ in self._records():
            pass

    def _learn_members(self) -> None:
        """Learn from Delta who joined and left before the topic begins."""
        past = self._past()
        for delivery in [] if past is None else past.views():
            fields = read_without_data(delivery.record)
            self._publisher.speaker.knowledge.learn(fields)
            self._publisher.speaker.adopt_order(fields["order"])

    # ── epoch and membership ──────────────────────────────────────────────────────────────────────────────────────

    def settle_epoch(self, key: "Ed25519PrivateKey | None", *, is_new: bool) -> None:
        """Go on under the kept epoch, or begin a new one."""
        publisher, known, knowledge = self._publisher, self._publisher.known, self._publisher.speaker.knowledge
        where, by = (self._log.bootstrap, self._log.raw, known.group), self._log.partitioner
        if knowledge.order is None:
            default = self._default_order()
            created = epochs.created_as(*where, partitioner=by)
            publisher.speaker.adopt_order(default if created is None else knowledge.apply_create(created, default))
        deadline = monotonic() + ADMISSION_S  # the service may have admitted it a moment ago
        while awaits_admission(knowledge, known.sender) and monotonic() < deadline:
            self._learn_more()
        if needs_new_epoch(known, knowledge, is_new=is_new, seq_in_log=self._seq_in_log):
            above = max(knowledge.last_ended_epoch(known.sender), known.epoch if known.doubled else -1)
            free = epochs.free_epoch(*where, known.sender, key, above=above, partitioner=by)
            if free != known.epoch:
                if known.pending is not None:
                    lost = id_text((known.sender, known.epoch, known.seq))
                    _LOGGER.warning(
                        "%s in %s was never confirmed, and is not sent again, because its epoch has ended: say it again"
                        " if the group does not have it.",
                        lost,
                        known.group,
                    )
                publisher.begin_epoch(free)

    def _default_order(self) -> str:
        """The order of groups without a `create` record, as the job stored it; without a job, s_b."""
        try:
            topic = describe(self._log.bootstrap, [self._log.progress]).get(self._log.progress)
            # The order never changes, so what open transactions hide is not needed here.
            known = topic and read_progress(self._log.bootstrap, topic, self._log.ordered, settled=False)
        except Unreachable as error:
            raise why_unreadable(self._log.bootstrap, self._log.progress, error) from error
        owner = known.any_owner if known else None
        return "s_b" if owner is None else owner.order

    def join(self) -> None:
        """Publish a `join` if the plan says so; by clocks, wait until it is delivered.

        Only then the member knows which times are over, and it must not come in below them.
        """
        publisher, known, knowledge = self._publisher, self._publisher.known, self._publisher.speaker.knowledge
        by_clocks = publisher.speaker.order.waits_for_members
        if by_clocks:
            publisher.speaker.hear_time(knowledge.time)
        why = publisher.speaker.why_forged()
        plan = plan_join(known, knowledge, by_clocks=by_clocks, public_key=publisher.speaker.public_key, why_forged=why)
        if plan.action == "refuse":
            raise Refused(str(why))
        if plan.action == "only listen":
            warnings.warn(f"{why} Until then {known.sender} can only listen.", stacklevel=5)
        if plan.action != "join":
            return
        publisher.join(brings_key=plan.brings_key)
        known.joined = True
        if by_clocks:
            self._await_own_join()

    def _await_own_join(self) -> None:
        known, knowledge = self._publisher.known, self._publisher.speaker.knowledge
        deadline = monotonic() + PATIENCE_S
        while not knowledge.is_in(known.sender, known.epoch):
            if monotonic() > deadline:
                raise Refused(
                    f"The join of {known.sender} was not delivered in {known.group} within {PATIENCE_S:.0f} s: check"
                    " that `precede run` is running, and what `precede tail --dead-letters` shows."
                )
            self._learn_more()


def start_member(
    startup: Startup, *, history: History, since: int | None, key: "Ed25519PrivateKey | None", is_new: bool
) -> MemberStart:
    """Open the member: the epoch depends on what was read, and the join on the epoch."""
    place = startup.find_place(history=history, since=since)
    startup.settle_epoch(key, is_new=is_new)
    startup.join()
    return place


def records_of(reader: LogReader, topic: str, group: str, offsets: dict[int, int]) -> Iterator[Found]:
    """The records of a group from these offsets to the end of the topic; they move with what is read."""
    if not offsets:
        return
    key = group.encode()
    reader.assign(topic, offsets)
    deadline = monotonic() + PATIENCE_S
    while True:
        records = reader.read(LOOK_S)
        for record in records:
            offsets[record.partition] = record.offset + 1
            if record.key == key and record.value is not None:
                yield record, read_without_data(record.value)
        if records:
            deadline = monotonic() + PATIENCE_S
        elif reader.at_end():
            return
        elif monotonic() > deadline:
            raise Refused(
                f"The topic {topic} could not be read to its end: Kafka did not answer for {PATIENCE_S:.0f} s."
            )


def search(reader: LogReader, topic: str, group: str, destination: str | None, id_: Id) -> Delivery | None:
    """The message of this id, if the topic still has it."""
    starts = partitions_of(group, reader.starts(topic, at_end=False, timeout_s=0.0))
    for record, fields in records_of(reader, topic, group, starts):
        is_it = (fields.get("sender"), fields.get("epoch", 0), fields.get("seq")) == id_
        if is_it and fields.get("destination") == destination:
            return as_delivery(record.value or b"", topic)
    return None
