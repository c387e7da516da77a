"""One group at one peer: what arrives is ordered by the kernel and kept for others; what the peer says is stamped.

a record of the broadcast or of a page   -> `hear`, `take` -> kernel -> events
what the application says                -> `send` -> stamped, signed -> `take`, and out to all
time                                     -> `due` -> heartbeats, questions, pages, records that waited

The life of a group at its peer; a gateway attends, which ends at SYNCED, as it is never a member:

      create                  join, or a start from `dump`         attend
        | `enter`: the join     | `enter`: the join is said          |
        | is said               v                                    v
        |                     CATCHING UP: asks page by page. Its own join, and all joins but the first of
        |                       |          each member, wait for the history (WaitingRecords)
        |                       | no one sends more
        v                       v
      SYNCED: knows all that the others keep. Says now and then what it has, asks for what it lacks
        | the own join is repeated until it counts: in orders by clocks all members that are present have
        | to answer it, in others it counts at once (OwnJoin)
        v
      JOINED: may send; answers those that join
        |  ^
        |  | another `create` stands (`adopt`): all is ordered again under it. Where that refuses own messages,
        |  | a new epoch begins, whose join is said
        +--+
        | `leave`
        v
      LEFT: says nothing, and is kept until the log has what it said and the segment forgets it

A start that goes on from `dump` begins at catching up: joined as before if the end before was clean, and else in a new
epoch, whose join is said.
"""

from collections.abc import Iterable
from functools import partial
from typing import Any

from msgspec import UNSET

from precede.udfs import codes, errors
from precede.udfs.engine.runs import Runs
from precede.udfs.limits import ANY_SIZE, Limits
from precede.udfs.member.knowledge import Knowledge
from precede.udfs.orders import ORDERS, Order
from precede.udfs.peers.directory import DEFAULT_ORDER, GroupInfo
from precede.udfs.peers.events import (
    Accepted,
    Delivered,
    Event,
    Joined,
    JoinHeard,
    MessageHeld,
    RecordRefused,
    Synced,
    ViewChanged,
)
from precede.udfs.peers.frames import ANNOUNCEMENT, DATA, Chance, DropCounts
from precede.udfs.peers.kept_messages import KEPT_BYTES_MAX
from precede.udfs.peers.log_coverage import LogCoverage
from precede.udfs.peers.membership_records import MembershipRecord, MembershipRecords, WaitingRecords
from precede.udfs.peers.notes import JoinAnswer, SyncAnswer, SyncRequest, encode, newest_members, write_data
from precede.udfs.peers.ordering import Ordering, Outcome
from precede.udfs.peers.own_join import OwnJoin
from precede.udfs.peers.speaking import HEARTBEAT_MS, Signer, Speaking
from precede.udfs.peers.streams import OriginStream
from precede.udfs.peers.sync_schedule import SyncSchedule
from precede.udfs.peers.views import IN, members
from precede.udfs.records.messages import Abandon, Create, Evict, Heartbeat, Id, Join, Leave, Message, Record, Who
from precede.udfs.records.strict import Malformed
from precede.udfs.records.wire import SPACE, read

GONE_FOR_GOOD = frozenset({codes.FENCED, codes.LATE, codes.NOT_MEMBER, codes.ORPHAN, codes.CYCLE, codes.SELF_PARENT})
"""What was refused under these codes would be refused again, so it need not come again."""


class PeerGroup:
    """A group that this peer is in, is entering, or has left."""

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
        self.waiting = WaitingRecords()
        """What came too early for the kernel."""

    @property
    def order(self) -> type[Order]:
        return self.ordering.order

    @property
    def members(self) -> dict[str, int]:
        """The members as far as this peer knows, each with its epoch."""
        return members(self.speaking.knowledge.view)

    def take_limits(self, limits: Limits) -> None:
        self.limits = limits
        self.ordering.take_limits(limits)

    @property
    def note(self) -> GroupInfo:
        """What this peer announces of the group."""
        return GroupInfo(self.group, self.records.create, self.speaking.knowledge.view, self.default_order)

    # ── taking records ────────────────────────────────────────────────────────────────────────────────────────────

    def hear(self, values: list[bytes], now_ms: float, *, is_from_log: bool) -> None:
        """Take in what somebody says; by clocks not before it is known who has joined, as all clocks are compared."""
        if self.sync_schedule.knows_joins or not self.order.waits_for_members:
            self.take_all(values, now_ms, is_from_log=is_from_log)
        else:
            self.waiting.hear(values, is_from_log=is_from_log)

    def take_heard(self, now_ms: float) -> None:
        """Take in what was heard before it was known who has joined."""
        if not self.sync_schedule.knows_joins:
            return
        heard, is_full = self.waiting.take_heard()
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
            if not knowledge.is_out(record.sender, record.epoch):
                self.waiting.put_heartbeat(value, record)
        elif self._feed(value, record, now_ms) is None and record.time is not UNSET:
            self.sync_schedule.synchroniser.note_heartbeat(
                record.sender, (record.epoch, record.seq, record.time), value
            )

    def _take_control(self, value: bytes, record: MembershipRecord, now_ms: float, *, is_page: bool) -> bool:
        if self.records.has(record, value):
            if isinstance(record, Join):
                self._join_taken(record, value)
            return False
        if isinstance(record, Create) and self.ordering.has_begun:
            self.counts.add("other_creates")  # the segment decides which one stands (adopt)
            return False
        if isinstance(record, Join | Leave) and self._must_wait(record, is_page=is_page):
            is_put = self.waiting.put(value, record, now_ms)
            if is_put and self.sync_schedule.synced:
                self.sync_schedule.lacks(now_ms)
            return is_put
        return self._take_control_now(value, record, now_ms)

    def _must_wait(self, record: Join | Leave, *, is_page: bool) -> bool:
        """Whether what is on its way should count before this record."""
        name = record.sender
        if isinstance(record, Leave):
            return self.waiting.has_join_before(record)
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
        if self.sync_schedule.synced:
            for value, record in self.waiting.take_due(self.speaking.knowledge.view, now_ms):
                if not self.records.has(record, value):
                    self._take_control_now(value, record, now_ms)

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
            self._join_taken(record, value)
            early = self.waiting.take_heartbeat(record.sender)
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

    def _order_again(self, create: bytes, now_ms: float) -> None:
        """Order everything under another `create` of this group; nothing is delivered twice."""
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

    # ── saying ────────────────────────────────────────────────────────────────────────────────────────────────────

    def send(
        self,
        data: bytes,
        *,
        after: list[Id],
        to: list[str] | None,
        object_: dict[str, Any] | None,
        meta: bytes | None,
        clock_ms: int,
        now_ms: float,
    ) -> tuple[Id, bytes]:
        """Say something; returns its id and its record.

        Raises Refused while this peer may not, and ValueError for what it does not know.
        """
        if self.own_join.left:
            raise errors.Refused(f"{self.name} has left {self.group}: join it again to come back.")
        if not self.own_join.joined:
            raise errors.Refused(f"{self.name} is not in {self.group} yet: wait until its join counts.")
        if to is None and self.order.has_destinations:
            raise ValueError(f"in {self.order.name} a message needs `to`, the members it is for")
        if to is not None and not self.order.takes_to:
            raise ValueError(f"in {self.order.name} every message is for the whole group: leave `to` out")
        if self.ordering.held_count >= self.limits.held_max * 9 // 10:
            raise errors.Congested(f"{self.group} holds {self.ordering.held_count:,} messages: wait until some go.")
        for field, named, most in (("after", after, self.limits.after_max), ("to", to or [], self.limits.to_max)):
            if len(named) > most:
                raise ValueError(f"`{field}` may name {most} at most, not {len(named)}")
        for id_ in after:
            if not self._has(id_):
                raise ValueError(
                    f"{id_} has not been delivered to {self.name}: a message can only answer what its sender knows"
                )
        self.log_coverage.check_room(len(data))
        id_, value = self.speaking.message(data, after, to, object_, meta, clock_ms)
        self.log_coverage.said(id_, len(value))
        self.said.append(value)
        if self.speaking.observes:
            self.take_said(now_ms)  # the next stamp depends on it
        return id_, value

    def take_said(self, now_ms: float) -> None:
        """Take in what this peer has said, as one bundle, and send it to all."""
        values, self.said = self.said, []
        self.out += [(DATA, write_data(self.key, value)) for value in values]
        self.take_all(values, now_ms)

    def _has(self, id_: Id) -> bool:
        """Whether a message was delivered here, or is an own one."""
        own = id_[:2] == (self.name, self.speaking.epoch) and id_[2] <= self.speaking.stamps.seq
        return own or self.speaking.knowledge.has(id_) or self.ordering.is_settled(id_)

    def _say(self, value: bytes, now_ms: float) -> None:
        self.take(value, now_ms)
        self.out.append((DATA, write_data(self.key, value)))

    def begin_epoch(self, epoch: int) -> None:
        """Say everything in a larger epoch from here on."""
        self.speaking.begin_epoch(epoch)
        self.sync_schedule.synchroniser.begin_epoch(epoch)

    def create(self, options: dict[str, Any], now_ms: float) -> None:
        """Begin the group by its `create` record."""
        value = self.speaking.control({"kind": "create", "options": options, "members": []})
        self._say(value, now_ms)

    def enter(self, now_ms: float) -> None:
        """Say that this peer joins; `due` sees to it that the join counts."""
        value = self.speaking.join()
        self.own_join.begin(value, now_ms)
        self._say(value, now_ms)

    def leave(self, now_ms: float) -> None:
        """Say that this peer leaves; what it said so far counts."""
        self._say(self.speaking.leave(), now_ms)
        self.own_join.end()
        self.speaking.heartbeat_ms = None

    def adopt(self, create: bytes, now_ms: float) -> None:
        """Another `create` stands; what this peer said and that one refuses is not waited for: a new epoch begins."""
        self._order_again(create, now_ms)
        name, epoch = self.name, self.speaking.epoch
        said = [(name, epoch, seq) for seq in range(1, self.speaking.stamps.seq + 1)]
        gone = [id_ for id_ in said if not self.sync_schedule.kept.has(id_)]
        self.log_coverage.drop(gone)
        join = self.own_join.record
        if gone and not self.own_join.left:
            self.begin_epoch(epoch + 1)
            self.enter(now_ms)
        elif join is not None and join not in self.records.all():
            self._say(join, now_ms)  # the `create` before may have refused it

    # ── what others lack ──────────────────────────────────────────────────────────────────────────────────────────

    def receive_request(self, request: SyncRequest, asker: OriginStream, peers: int, now_ms: float) -> None:
        """Somebody says what it has. Raises PeerFault."""
        self.sync_schedule.receive_request(request, asker, peers, now_ms)
        if self.own_join.joined and self.order.waits_for_members and request.id.name != self.name:
            self.speaking.tell_soon(now_ms)  # who lacks something may wait for this clock, too

    def receive_answer(
        self, answer: SyncAnswer, size: int, teller: OriginStream, now_ms: float, *, is_from_log: bool
    ) -> None:
        """A page for somebody. Raises PeerFault."""
        take = partial(self.take, now_ms=now_ms, is_from_log=is_from_log, is_page=True)
        self.sync_schedule.receive_answer(answer, size, teller, take, now_ms)
        self.take_heard(now_ms)

    # ── joining ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _join_taken(self, join: Join, value: bytes) -> None:
        if self.is_gateway:
            self.events.append(JoinHeard(self.group, join.sender, join.epoch, value))
            return
        waits = self.order.waits_for_members and self.own_join.is_in
        if waits and join.sender != self.name:
            self._answer_join(join.sender, join.epoch, value)

    def _answer_join(self, joiner: str, epoch: int, join: bytes) -> None:
        """Tell a joiner that its join is taken into account; a gateway does so once the log has it."""
        named = newest_members(self.members, self.group, len(join))
        answer = JoinAnswer(self.group, joiner, epoch, self.name, self.speaking.time, named, join)
        self.out.append((ANNOUNCEMENT, encode(answer)))

    def take_join_of(self, answer: JoinAnswer, now_ms: float) -> None:
        """What the one who answers says from here on counts after this join."""
        try:
            join = read(answer.join, self.limits) if answer.join else None
        except Malformed:
            return
        answered = self.group, answer.joiner, answer.epoch
        if not isinstance(join, Join) or (join.group, join.sender, join.epoch) != answered:
            return
        if not self.records.has(join, answer.join):  # else all would answer each answer
            self.hear([answer.join], now_ms, is_from_log=False)

    def receive_join_answer(self, answer: JoinAnswer, now_ms: float) -> None:
        """A member answers; the own clock goes above its."""
        if not self.own_join.receive_answer(answer, self.speaking.epoch):
            return
        stamps: Any = self.speaking.stamps
        if self.order.waits_for_members and answer.time <= self.speaking.knowledge.time + self.limits.window:
            stamps.catch_up(answer.time)
        self.speaking.tell_soon(now_ms)

    def check_join(self, present: set[str] | None, gateways: set[str], now_ms: float) -> None:
        """Whether the own join counts now; `present` are the names of all who are there, None if not all are known."""
        if self.speaking.knowledge.view.get(self.name, (-1, IN))[0] < self.speaking.epoch:
            return  # it waits for the history
        waits_for: set[str] | None = set()
        if self.order.waits_for_members:
            is_known = present is not None and self.sync_schedule.synced
            waits_for = None
            if present is not None and is_known:
                waits_for = (self.members.keys() | gateways | self.own_join.named) & present
        if self.own_join.counts_now(waits_for):
            self.events.append(Joined(self.group, self.speaking.epoch))
            if self.order.waits_for_members:
                self.speaking.tell_soon(now_ms)
        elif self.own_join.record is not None and self.own_join.is_due(now_ms):
            self.out.append((DATA, write_data(self.key, self.own_join.record)))

    # ── time ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def due(self, clock_ms: int, now_ms: float) -> None:
        speaking = self.speaking
        if speaking.heartbeat_ms is not None and speaking.heartbeat_ms <= now_ms:
            speaking.heartbeat_ms = None
            if self.own_join.joined and self.order.waits_for_members:
                self._say(speaking.heartbeat(clock_ms, now_ms), now_ms)
                if not self.ordering.held_count:
                    speaking.heartbeat_ms = None
        if speaking.heartbeat_ms is None and self.order.waits_for_members and self.own_join.joined:
            speaking.heartbeat_ms = now_ms + HEARTBEAT_MS if self.ordering.held_count else None
        out, became_synced = self.sync_schedule.due(now_ms)
        self.out += out
        if became_synced:
            self.events.append(Synced(self.group))
        self.take_deferred(now_ms)
        self.take_heard(now_ms)
        told = self.sync_schedule.forgotten(self.ordering.waited_for, now_ms)
        if told:
            passed, delivered = self.ordering.pass_over(told, self.sync_schedule.reached_time, now_ms)
            self.sync_schedule.passed(passed)
            self._deliver(delivered)
        self.log_coverage.drop(self.sync_schedule.kept.forget_old(self._may_forget))

    def _may_forget(self, id_: Id) -> bool:
        return not self.ordering.is_held(id_) and not self.log_coverage.keeps(id_)

    def deadline_ms(self) -> float | None:
        times = [
            self.speaking.heartbeat_ms,
            self.sync_schedule.deadline_ms(is_waiting=bool(self.ordering.held_count)),
            self.own_join.again_ms,
            self.waiting.due_ms(self.speaking.knowledge.view) if self.sync_schedule.synced else None,
        ]
        return min((time for time in times if time is not None), default=None)

    # ── keeping ───────────────────────────────────────────────────────────────────────────────────────────────────

    def load_records(self, controls: list[bytes]) -> None:
        """Take the membership records of an earlier start, which the kernel's state covers."""
        for value in controls:
            record = read(value, ANY_SIZE)
            if isinstance(record, Create | Join | Leave | Evict | Abandon):
                self.records.keep(record, value)
        self.sync_schedule.synchroniser.set_controls(self.records.all())

    def dump(self) -> dict[str, Any]:
        """Everything of one group. Of messages only the own ones: what others said comes from others again."""
        kept = self.sync_schedule.kept
        own = [[*id_, value] for id_, value in kept.messages.items() if id_[0] == self.name]
        return {
            "epoch": self.speaking.epoch,
            "default_order": self.default_order,
            "speaking": self.speaking.dump(),
            "ordering": self.ordering.dump(),
            "controls": self.records.all(),
            "have": kept.have(),
            "own": own,
            "number": self.sync_schedule.synchroniser.number,
            "unlogged": self.log_coverage.lacking,
            "has_log": self.log_coverage.is_known,
            "told_before": [(*who, runs.dump()) for who, runs in self.handed_over_before.items()],
            "joined": self.own_join.joined,
            "left": self.own_join.left,
        }

    def load(self, dumped: dict[str, Any], now_ms: float, *, new_epoch: int | None) -> None:
        """Go on where `dump` was; with a new epoch if more may have been said since."""
        self.load_records(dumped["controls"])
        self.ordering.load(dumped["ordering"], now_ms)
        self.speaking.adopt_order(self.ordering.order)
        self.speaking.load(dumped["speaking"])
        kept = self.sync_schedule.kept
        self.sync_schedule.synchroniser.number = dumped["number"]
        unlogged = {tuple(id_) for id_ in dumped["unlogged"]}
        self.log_coverage.is_known = dumped.get("has_log", False)
        for name, epoch, seq, value in dumped["own"]:
            kept.store((name, epoch, seq), value, now_ms=now_ms)
            if (name, epoch, seq) in unlogged:
                self.log_coverage.said((name, epoch, seq), len(value))
        for name, epoch, told in dumped.get("told_before", []):
            self.handed_over_before[name, epoch] = Runs()
            self.handed_over_before[name, epoch].fill(told)
        for name, epoch, dumped_runs in dumped["have"]:
            runs = Runs()
            runs.fill(dumped_runs)
            for low, high in runs.runs():
                kept.note_gone((name, epoch), low, high)
        self.own_join.joined, self.own_join.left = dumped["joined"], dumped["left"]
        if new_epoch is not None:
            self.begin_epoch(new_epoch)
            self.own_join.joined = False


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
