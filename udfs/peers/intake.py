"""Takes in the records of one group at one peer: ordered by the kernel, kept for others, told to the application.

Joins of a larger epoch wait a little: the kernel fences the older epoch where it was seen last, and what is still on
its way of that should count. A newcomer takes the history in before all joins but the first of each member, its own
included.
"""

from collections.abc import Iterable
from typing import Any

from msgspec import UNSET

from precede.udfs import codes
from precede.udfs.engine.runs import Runs
from precede.udfs.limits import ANY_SIZE, Limits
from precede.udfs.member.knowledge import Knowledge
from precede.udfs.orders import ORDERS, Order
from precede.udfs.peers.events import Accepted, Delivered, Event, MessageHeld, RecordRefused, ViewChanged
from precede.udfs.peers.frames import Chance, DropCounts
from precede.udfs.peers.kept_messages import KEPT_BYTES_MAX
from precede.udfs.peers.log_coverage import LogCoverage
from precede.udfs.peers.membership_records import MembershipRecords
from precede.udfs.peers.ordering import DEFAULT_ORDER, Ordering, Outcome
from precede.udfs.peers.own_join import OwnJoin
from precede.udfs.peers.speaking import Signer, Speaking
from precede.udfs.peers.sync_schedule import SyncSchedule
from precede.udfs.peers.views import members
from precede.udfs.records.messages import Abandon, Create, Evict, Heartbeat, Id, Join, Leave, Message, Record, Who
from precede.udfs.records.strict import Malformed
from precede.udfs.records.wire import SPACE, read

DEFER_MS = 1_500.0
"""How long a join of a larger epoch waits for what is on its way of the older one; meanwhile all say what they have."""
DEFERRED_MAX = 1_000
"""So many joins and leaves may wait; one more comes again when members synchronise."""
EARLY_MAX = 1_000
"""From how many who are no members yet a heartbeat is kept."""
HEARD_BYTES_MAX = 4 * 1024 * 1024
"""So much is kept of what is heard before it is known who has joined; where it is more, this peer asks again."""
GONE_FOR_GOOD = frozenset({codes.FENCED, codes.LATE, codes.NOT_MEMBER, codes.ORPHAN, codes.CYCLE, codes.SELF_PARENT})
"""What was refused under these codes would be refused again, so it need not come again."""


ControlRecord = Create | Join | Leave | Evict | Abandon


class Intake:
    """What arrives of one group."""

    def __init__(
        self,
        group: str,
        name: str,
        epoch: int,
        chance: Chance,
        events: list[Event],
        *,
        order: str = DEFAULT_ORDER,
        signer: Signer | None = None,
        kept_bytes_max: int = KEPT_BYTES_MAX,
    ) -> None:
        """`order` is the one that counts where no `create` record names another."""
        self.group = group
        self.name = name
        self.key = group.encode()
        self.limits = Limits()
        """What a record may have, where it comes from others or is said here."""
        self.records = MembershipRecords()
        self.default_order = order
        self.ordering = Ordering(group, name, order)
        self.speaking = Speaking(group, name, epoch, ORDERS[order], signer)
        self.sync_schedule = SyncSchedule(name, epoch, group, chance, bytes_max=kept_bytes_max)
        self.events = events
        """What to tell the application; all groups of a process share it."""
        self.out: list[tuple[int, bytes]] = []
        """What to broadcast, as kind and payload."""
        self.said: list[bytes] = []
        """Own messages that are neither taken in nor sent yet."""
        self.counts = DropCounts()
        self.is_gateway = False
        """Whether to tell of each record that is new, and to leave answers to joins to the caller."""
        self.own_join = OwnJoin(name)
        self.log_coverage = LogCoverage(name)
        self.handed_over_before: dict[Who, Runs] = {}
        """What an earlier start told the application beyond the state that this one began with."""
        self._deferred: list[tuple[float, int, bytes, Join | Leave]] = []
        """Joins that wait, each with its time and epoch, and the leaves behind them."""
        self._early: dict[str, tuple[bytes, Heartbeat]] = {}
        """The last heartbeat of each who is no member yet."""
        self._heard: list[tuple[list[bytes], bool]] = []
        """What was heard before it was known who has joined, and whether from a gateway."""
        self._heard_bytes = 0

    @property
    def order(self) -> type[Order]:
        return self.ordering.order

    @property
    def members(self) -> dict[str, int]:
        """The members as far as this peer knows, each with its epoch."""
        return members(self.speaking.knowledge.view)

    def take_limits(self, limits: Limits) -> None:
        """Take records by these limits from now on."""
        self.limits = limits
        self.ordering.take_limits(limits)

    # ── taking records ────────────────────────────────────────────────────────────────────────────────────────────

    def hear(self, values: list[bytes], now_ms: float, *, is_from_log: bool) -> None:
        """Take in what somebody says; by clocks not before it is known who has joined, as all clocks are compared."""
        if self.sync_schedule.knows_joins or not self.order.waits_for_members:
            self.take_all(values, now_ms, is_from_log=is_from_log)
        elif self._heard_bytes < HEARD_BYTES_MAX:
            self._heard.append((values, is_from_log))
            self._heard_bytes += sum(map(len, values))

    def take_heard(self, now_ms: float) -> None:
        """Take in what was heard before it was known who has joined."""
        if self._heard and self.sync_schedule.knows_joins:
            is_full = self._heard_bytes >= HEARD_BYTES_MAX
            heard, self._heard, self._heard_bytes = self._heard, [], 0
            for values, is_from_log in heard:
                self.take_all(values, now_ms, is_from_log=is_from_log)
            if is_full:
                self.sync_schedule.begin(now_ms)

    def take(self, value: bytes, now_ms: float, *, is_from_log: bool = False, is_page: bool = False) -> bool:
        """Take in a record of the group, from anyone who has it; returns whether it is new."""
        return self.take_all([value], now_ms, is_from_log=is_from_log, is_page=is_page) > 0

    def take_all(self, values: list[bytes], now_ms: float, *, is_from_log: bool = False, is_page: bool = False) -> int:
        """Take in records that came together, in this order; returns how many are new."""
        news = 0
        texts: list[bytes] = []
        messages: list[Message] = []
        for value in values:
            value = value.strip(SPACE)
            record = self._read(value)
            if messages and not _follows(record, messages[-1]):
                news += self._take_messages(texts, messages, now_ms)
                texts, messages = [], []
            if isinstance(record, Message):
                texts.append(value)
                messages.append(record)
            elif record is not None:
                news += self._take_other(value, record, now_ms, is_from_log=is_from_log, is_page=is_page)
        if messages:
            news += self._take_messages(texts, messages, now_ms)
        return news

    def _read(self, value: bytes) -> Record | None:
        """A record of this group; else it is refused."""
        if len(value) > self.limits.record_bytes_max:
            reason = f"The record has {len(value)} bytes, and {self.limits.record_bytes_max} are allowed."
            self._refuse(None, codes.OVERSIZE, reason)
            return None
        try:
            record = read(value, self.limits)
        except Malformed as error:
            self._refuse(None, codes.MALFORMED, error.reason)
            return None
        if record.group != self.group:
            self._refuse(None, codes.WRONG_KEY, "The record is of another group than its frame says.")
            return None
        return record

    def _take_other(self, value: bytes, record: Record, now_ms: float, *, is_from_log: bool, is_page: bool) -> bool:
        match record:
            case Heartbeat():
                self._take_heartbeat(value, record, now_ms)
                return False
            case Evict() | Abandon() if not is_from_log:
                self.counts.add("not_from_log")
                return False
            case Create() | Join() | Leave() | Evict() | Abandon():
                return self._take_control(value, record, now_ms, is_page=is_page)
        self.counts.add("ticks")
        return False

    def _take_messages(self, values: list[bytes], messages: list[Message], now_ms: float) -> int:
        """Take in messages of one sender that follow each other; returns how many are new."""
        name, epoch, first = messages[0].sender, messages[0].epoch, messages[0].seq
        assert isinstance(epoch, int)  # the reader has set it
        who = name, epoch
        kept = self.sync_schedule.kept
        news = at = 0
        while at < len(values) and kept.is_next(who, first + at):  # the usual case
            delivered, other = self.ordering.feed_messages(values[at:], messages[at:], now_ms)
            if delivered:
                self._deliver_at_once(delivered, now_ms)
                kept.store_next(who, values[at : at + len(delivered)], now_ms)
                at += len(delivered)
                news += len(delivered)
            if other is not None:
                id_ = (*who, first + at)
                refused = self._tell(values[at], messages[at], other, now_ms, id_)
                news += self._keep(id_, values[at], refused, now_ms)
                at += 1
        for value, message in zip(values[at:], messages[at:], strict=True):
            news += self._take_message(value, message, now_ms)
        return news

    def _take_message(self, value: bytes, record: Message, now_ms: float) -> bool:
        id_: Id = (record.sender, record.epoch, record.seq)  # type: ignore[assignment]  # the reader has set the epoch
        kept = self.sync_schedule.kept
        if kept.has(id_) and kept.messages.get(id_) in (None, value):
            self.counts.add("copies")
            return False
        if not kept.has_room_for(id_):
            self._refuse(id_, codes.BACKPRESSURE, "No more senders and gaps of this group can be told to other peers.")
            return False
        return self._keep(id_, value, self._feed(value, record, now_ms, id_), now_ms)

    def _keep(self, id_: Id, value: bytes, refused: str | None, now_ms: float) -> bool:
        """Keep a message for others unless it was refused under this code; returns whether it is new."""
        kept = self.sync_schedule.kept
        if refused is None:
            return kept.store(id_, value, now_ms=now_ms)
        if refused in GONE_FOR_GOOD:
            kept.note_gone(id_[:2], id_[2], id_[2])
        return False

    def _take_heartbeat(self, value: bytes, record: Heartbeat, now_ms: float) -> None:
        """Under clocks only members' heartbeats count; one that comes before its sender's join counts with that."""
        knowledge = self.speaking.knowledge
        if knowledge.closed and not knowledge.is_in(record.sender, record.epoch):
            if len(self._early) < EARLY_MAX and not knowledge.is_out(record.sender, record.epoch):
                self._early[record.sender] = value, record
        elif self._feed(value, record, now_ms) is None and record.time is not UNSET:
            self.sync_schedule.synchroniser.note_heartbeat(record.sender, (record.epoch, record.seq, record.time), value)

    def _take_control(self, value: bytes, record: ControlRecord, now_ms: float, *, is_page: bool) -> bool:
        if self.records.has(record, value):
            if isinstance(record, Join):
                self.join_taken(record, value)
            return False
        if isinstance(record, Create) and self.ordering.has_begun:
            self.counts.add("other_creates")  # the segment decides which one stands (adopt)
            return False
        if isinstance(record, Join | Leave) and self._must_wait(record, is_page=is_page):
            if len(self._deferred) < DEFERRED_MAX and all(other != value for _, _, other, _ in self._deferred):
                self._deferred.append((now_ms, record.epoch, value, record))
                if self.sync_schedule.synced:
                    self.sync_schedule.lacks(now_ms)
                return True
            return False
        return self._take_control_now(value, record, now_ms)

    def _must_wait(self, record: Join | Leave, *, is_page: bool) -> bool:
        """Whether what is on its way should count before this record."""
        name = record.sender
        if isinstance(record, Leave):
            return any(epoch <= record.epoch and one.sender == name for _, epoch, _, one in self._deferred)
        if self._must_not_wait(record):
            return False
        if not self.sync_schedule.synced:
            return not is_page or self.records.has_join_of(name)
        known = self.speaking.knowledge.view.get(name)
        return known is not None and known[0] < record.epoch

    def _must_not_wait(self, join: Join) -> bool:
        """Whether nothing else keeps this peer from delivering, by clocks, what lies above the first word of another.

        The clock of an older epoch does so, as long as anything of that may still come.
        """
        if not self.order.waits_for_members or join.sender == self.name:
            return False
        epoch, is_out = self.speaking.knowledge.view.get(join.sender, (-1, True))
        return is_out and self.ordering.is_over(join.sender, epoch)

    def take_deferred(self, now_ms: float) -> None:
        """Take in the joins that have waited long enough."""
        if not self.sync_schedule.synced:
            return
        for one in sorted(self._deferred, key=lambda one: (one[1], one[0])):
            if self._ready_ms(one) <= now_ms:
                self._deferred.remove(one)
                _, _, value, record = one
                if not self.records.has(record, value):
                    self._take_control_now(value, record, now_ms)

    def deferred_until_ms(self) -> float | None:
        """When to call `take_deferred`."""
        return min(map(self._ready_ms, self._deferred), default=None) if self.sync_schedule.synced else None

    def _ready_ms(self, one: tuple[float, int, bytes, Join | Leave]) -> float:
        """A join waits only where an older epoch of its sender is known."""
        arrived_ms, epoch, _, record = one
        known = self.speaking.knowledge.view.get(record.sender)
        is_older_known = known is not None and known[0] < epoch
        return arrived_ms + DEFER_MS if is_older_known else arrived_ms

    def _take_control_now(self, value: bytes, record: Any, now_ms: float) -> bool:
        code = self._feed(value, record, now_ms)
        if code is not None:
            if code == codes.FENCED and isinstance(record, Join):
                self.records.keep(record, value)  # newcomers may need it to know what was said under it
            return False
        self.records.keep(record, value)
        self.sync_schedule.synchroniser.set_controls(self.records.all())
        if self.speaking.learn(value):
            self.events.append(ViewChanged(self.group, self.members))
        if isinstance(record, Create):
            self._adopt_order()
        if isinstance(record, Join):
            self.join_taken(record, value)
            early = self._early.pop(record.sender, None)
            if early is not None:
                self._take_heartbeat(*early, now_ms)
        return True

    def _feed(self, value: bytes, record: Record, now_ms: float, id_: Id | None = None) -> str | None:
        """Give a record to the kernel; returns the code under which it was refused. `id_` is that of a message."""
        return self._tell(value, record, self.ordering.feed(value, record, now_ms), now_ms, id_)

    def _tell(self, value: bytes, record: Record, outcome: Outcome, now_ms: float, id_: Id | None) -> str | None:
        """Tell what the kernel made of a record; returns the code under which it was refused."""
        before = len(self.events)
        delivered, refused = outcome
        if delivered:
            self._deliver(delivered)
        code = None
        if refused:
            code = next((one.code for one in refused if one.id == id_ or id_ is None), None)
            if code != codes.FENCED or not isinstance(record, Join):  # a join that is outdated harms no one
                self.events += refused
        if code is None:
            self.speaking.accepted(record, now_ms)
            if id_ is not None and self.ordering.took_to_hold(record):
                self.ordering.note_held(id_, now_ms)
                self.events.append(MessageHeld(self.group, id_))
            if self.is_gateway:
                self.events.insert(before, Accepted(self.group, value, record))
        return code

    def join_taken(self, join: Join, value: bytes) -> None:
        """A join is taken into account here, now or before."""

    def _deliver_at_once(self, delivered: list[Delivered], now_ms: float) -> None:
        """These messages were new, and each was delivered as it came."""
        if self.is_gateway:
            self.events += [Accepted(self.group, one.value, one.record) for one in delivered]
        if self.speaking.observes:
            for one in delivered:
                self.speaking.delivered(one)
                self.speaking.accepted(one.record, now_ms)
            self.sync_schedule.synchroniser.time = self.speaking.knowledge.time
        if self.handed_over_before:
            delivered = [one for one in delivered if not _is_in(one.record, self.handed_over_before)]
        self.events += delivered

    def _deliver(self, delivered: Iterable[Delivered]) -> None:
        for one in delivered:
            self.speaking.delivered(one)
            if not self.handed_over_before or not _is_in(one.record, self.handed_over_before):
                self.events.append(one)
        self.sync_schedule.synchroniser.time = self.speaking.knowledge.time

    def _adopt_order(self) -> None:
        """The `create` record says what the order is."""
        knowledge = self.speaking.knowledge
        order = ORDERS[knowledge.order or self.default_order]
        self.ordering.adopt_order(order)
        self.speaking.adopt_order(order)

    def _refuse(self, id_: Id | None, code: str, reason: str) -> None:
        self.counts.add(code)
        self.events.append(RecordRefused(self.group, id_, code, reason))

    def adopt(self, create: bytes, now_ms: float) -> None:
        """Another `create` of this group stands: order everything again under it; nothing is delivered twice."""
        kept, before = self.sync_schedule.kept, self.ordering
        values = [*self.records.all(), *(value for _, value in kept.messages.items())]
        if self.records.create is not None:
            reason = "The group was created elsewhere before, and that counts; it is ordered again under that."
            self._refuse(None, codes.BAD_STAMP, reason)
        self.records = MembershipRecords()
        self.ordering = Ordering(self.group, self.name, self.default_order)
        self.ordering.take_limits(self.limits)
        self.speaking.knowledge = Knowledge()
        first = len(self.events)
        kept.clear()
        for value in [create, *values]:
            record = read(value, ANY_SIZE)
            if not isinstance(record, Create) or value == create:
                self.take(value, now_ms, is_from_log=True, is_page=True)
        again = [one for one in self.events[first:] if isinstance(one, Delivered | MessageHeld | Accepted)]
        told = [one for one in again if isinstance(one, Delivered) and _is_new(one, before)]
        self.events[first:] = [one for one in self.events[first:] if one not in again or one in told]

    def load_records(self, controls: list[bytes]) -> None:
        """Take the membership records of an earlier start, which the kernel's state covers."""
        for value in controls:
            record = read(value, ANY_SIZE)
            if isinstance(record, Create | Join | Leave | Evict | Abandon):
                self.records.keep(record, value)
        self.sync_schedule.synchroniser.set_controls(self.records.all())


def _follows(record: Record | None, last: Message) -> bool:
    """Whether a record is the next message of the same sender."""
    return (
        isinstance(record, Message)
        and record.seq == last.seq + 1
        and record.sender == last.sender
        and record.epoch == last.epoch
    )


def _is_in(record: Record, runs: dict[Who, Runs]) -> bool:
    id_ = _id_of(record)
    return id_ is not None and id_[:2] in runs and id_[2] in runs[id_[:2]]


def _is_new(one: Delivered, before: Ordering) -> bool:
    id_ = _id_of(one.record)
    return id_ is not None and not before.is_settled(id_)


def _id_of(record: Record) -> Id | None:
    return (record.sender, record.epoch, record.seq) if isinstance(record, Message) else None  # type: ignore[return-value]
