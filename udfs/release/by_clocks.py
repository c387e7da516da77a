"""Release by clocks (`lamport`, `two_clock`): a message goes when no member can say anything any more that precedes it.

A sender's messages enter in the order of their seqs. One that has entered is QUEUED and raises its sender's floor,
below which nothing more of that sender can come. The order says, in its rule, which of the entered messages the floors
let go. A silent member holds everything back: heartbeats raise a floor without a message, and `held` names the members
whose floor is too low.

A floor ends when everything has entered that still counts of its sender and epoch: after a leave, an eviction, a new
epoch.

A heartbeat that comes before the messages it covers is a promise, and kept until these are there.
"""

from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heappush, heapreplace, nlargest
from itertools import islice
from typing import Any, ClassVar

from msgspec import UNSET

from precede.udfs import codes
from precede.udfs.codes import Refusal
from precede.udfs.engine.admission import no_room
from precede.udfs.engine.group import Group
from precede.udfs.engine.held import HeldMessage, Watch
from precede.udfs.engine.members import speaks
from precede.udfs.engine.repair_timers import NO_TIMERS
from precede.udfs.engine.search import Look
from precede.udfs.engine.senders import SenderKey, SenderRuns, sender_key
from precede.udfs.engine.state import QUEUED, WHO_PARTS, first_of, waits_for_join
from precede.udfs.records.messages import SEQ_MAX, Heartbeat, Id, Join, Message, Who
from precede.udfs.release.at_once import AtOnce

SPARE = 64
"""How many outdated entries the heap may keep until they come to its top, beside as many as there are members."""


class Floors(dict[Who, int]):
    """Of each member and epoch the least that may still come from it."""

    __slots__ = ("_lowest",)

    def __init__(self) -> None:
        super().__init__()
        self._lowest: list[tuple[int, str, int]] = []
        """The floors as a heap, perhaps as they were earlier: they only rise, so a look at the top is enough."""

    def begin(self, who: Who, floor: int) -> None:
        """A member from here on."""
        self[who] = floor
        heappush(self._lowest, (floor, *who))
        if len(self._lowest) > 2 * len(self) + SPARE:  # more entries are outdated than not
            self._lowest = [(its, *other) for other, its in self.items()]
            heapify(self._lowest)

    def clear(self) -> None:
        """No members."""
        super().clear()
        self._lowest.clear()

    def lowest(self) -> tuple[int, str, int] | None:
        """The floor that holds back most, and its member."""
        heap = self._lowest
        while heap:
            floor, name, epoch = heap[0]
            now = self.get((name, epoch))
            if now == floor:
                return heap[0]
            if now is None:
                heappop(heap)
            else:
                heapreplace(heap, (now, name, epoch))
        return None


PROMISES_MAX = 100
"""How many promises of one sender and epoch are kept. Beyond that the last but one is forgotten: the first ones count
first, and the last one, which says how far the sender has got, promises for both."""

Promise = tuple[int, int]
"""(time, clock_ms): no later message carries less of either."""


class Promises(dict[Who, dict[int, Promise]]):
    """By sender and epoch, and by the seq that follows on what the heartbeat covers: what it promises."""

    __slots__ = ()

    def add(self, who: Who, following: int, promise: Promise) -> None:
        """Keep a promise until everything below `following` is there."""
        promises = self.setdefault(who, {})
        _add_promise(promises, following, promise)
        if len(promises) > PROMISES_MAX:
            last, forgotten = nlargest(2, promises)
            _add_promise(promises, last, promises.pop(forgotten))

    def take(self, who: Who, following: int) -> Promise | None:
        """The promise that counts now that everything below `following` is there."""
        promises = self.get(who)
        if promises is None or following not in promises:
            return None
        promise = promises.pop(following)
        if not promises:
            del self[who]
        return promise


def _add_promise(promises: dict[int, Promise], following: int, promise: Promise) -> None:
    """A sender that may say no less than two promises for one seq may say no less than the larger of each part."""
    before = promises.get(following, promise)
    promises[following] = max(before[0], promise[0]), max(before[1], promise[1])


Key = tuple[int, str, int, int]
"""(time, sender, epoch, seq): how messages rank."""

UNKNOWN = -(2**62)
"""The physical clock of a member that has not shown it yet."""

BEGINNING: Key = (0, "", 0, 0)


class ByClocks(AtOnce):
    """Floors, promises and the queue of what has entered; `next_ready` is the rule that an order adds."""

    __slots__ = ("entered", "floors", "just_entered", "last", "promises", "queue", "time_max")

    total: ClassVar[bool] = True
    """Whether everything is delivered by its key, so that nothing below the last one can follow."""

    def __init__(self, group: Group) -> None:
        super().__init__(group)
        self.floors = Floors()
        """Of each member and epoch the least time that its next message can have."""
        self.entered: dict[SenderKey, int] = {}
        """The last seq that entered, of senders whose entered messages are not all settled."""
        self.just_entered: list[Id] = []
        """What entered since `advance` last looked: the next messages of these senders may enter too."""
        self.queue: list[tuple[Key, HeldMessage]] = []
        """The entered messages as a heap; those that are held no longer stay until they come to its top."""
        self.promises = Promises()
        self.time_max = 0
        """The largest `time` of the group."""
        self.last = BEGINNING
        """The largest key that was delivered."""

    # ── the rule of an order ──────────────────────────────────────────────────────────────────────────────────────

    def next_ready(self, now_ms: int) -> HeldMessage | None:
        """The next message that the clocks let go at this time of the log; it stays queued until it is `delivered`."""
        raise NotImplementedError

    def frees_something(self, one: HeldMessage, now_ms: int) -> bool:
        """Whether a message that may enter lets one go at once: then there is room for it, however full the group."""
        raise NotImplementedError

    def blocks(self, one: HeldMessage, name: str, epoch: int) -> bool:
        """Whether this member's floor holds the message back."""
        raise NotImplementedError

    def too_late(self, id_: Id, message: Message) -> Refusal | None:
        """Whether something was delivered that this one precedes, by more than its key."""
        return None

    # ── judging ───────────────────────────────────────────────────────────────────────────────────────────────────

    def too_far(self, time: int) -> Refusal | None:
        """Whether a linear clock is further ahead than the window allows."""
        if time > SEQ_MAX:  # whatever window a group chose, what is kept of a clock must fit a snapshot
            return Refusal(codes.CLOCK_POISON, f"`time` {time} is more than {SEQ_MAX}, which no clock comes to.")
        if time > self.time_max + self.group.window:
            past = f"more than {self.group.window} past {self.time_max}, the highest of the group"
            return Refusal(codes.CLOCK_POISON, f"`time` {time} is {past}.")
        return None

    def wait(self, id_: Id, message: Message) -> Watch | Refusal | None:
        """A message waits for its sender's previous one to enter, then for the clocks."""
        name, epoch, seq = id_
        if seq != self.entered_up_to(name, epoch) + 1:
            return name, epoch, seq - 1
        time: int = message.time  # type: ignore[assignment]  # the order has judged it
        floor = self.floors.get((name, epoch))
        if floor is not None and time < floor:
            return Refusal(codes.CLOCK_REGRESSION, f"`time` {time} is below {floor}, the least {name!r} may still say.")
        behind = (time, *id_) < self.last and (self.total or floor is None)
        if behind or (floor is None and time < self._floor_of_newcomer(name, epoch)):
            return Refusal(codes.LATE, f"`time` {time} of a newcomer is not above what is delivered ({self.last[0]}).")
        return self.too_late(id_, message) or QUEUED

    def entered_up_to(self, name: str, epoch: int) -> int:
        key = (name, epoch) if epoch else name
        sender = self.group.senders.get(key)
        settled = 0 if sender is None else sender.prefix
        return max(self.entered[key], settled) if key in self.entered else settled

    def _floor_of_newcomer(self, name: str, epoch: int) -> int:
        """Where the floor of a larger epoch begins; that of a new name begins with what it says, which may be 0."""
        known = self.group.members.get(name)
        return self.last[0] + 1 if known is not None and known[0] < epoch and self.last != BEGINNING else 0

    # ── members and floors ────────────────────────────────────────────────────────────────────────────────────────

    def create(self, members: list[str]) -> None:
        for name in members:
            self.begin(name, 0, 1)

    def judge_join(self, record: Join) -> Refusal | None:
        return None if record.time is UNSET else self.too_far(record.time)

    def join(self, record: Join, *, only_signs: bool) -> None:
        known = self.group.members.get(record.sender)
        if only_signs and (known is None or (record.sender, known[0]) not in self.floors):
            return
        time = 0 if record.time is UNSET else record.time
        self.time_max = max(self.time_max, time)
        self.begin(record.sender, record.epoch, max(time, self.least_of_joiner()))

    def least_of_joiner(self) -> int:
        """The least time that who joins now may say first."""
        return 1 if self.last == BEGINNING else self.last[0] + 1

    def joined(self, record: Join, offset: int, now_ms: int) -> None:
        self.group.note_sign_of_life(record.sender, record.epoch, now_ms)
        super().joined(record, offset, now_ms)
        self.advance(offset, now_ms)

    def fence(self, name: str, epoch: int) -> None:
        """Where everything up to the fence has entered, this floor ends: nothing need wait for it."""
        sender = self.group.senders.get(sender_key(name, epoch))
        if sender is not None and self.entered_up_to(name, epoch) >= sender.fence:
            self.end(name, epoch)

    def is_over(self, sender: SenderRuns) -> bool:
        return self.entered_up_to(sender.name, sender.epoch) >= sender.fence

    def begin(self, name: str, epoch: int, floor: int) -> None:
        """A floor from here on."""
        self.floors.begin((name, epoch), floor)

    def end(self, name: str, epoch: int) -> None:
        """No floor any more."""
        self.floors.pop((name, epoch), None)
        self.promises.pop((name, epoch), None)

    def _speaks(self, name: str, epoch: int, first_floor: int) -> None:
        """The first record of a sender in an open group makes it a member, and ends its older epochs."""
        first_floor = max(first_floor, self._floor_of_newcomer(name, epoch))
        speaks(self.group, name, epoch)
        self.begin(name, epoch, first_floor)

    def end_unheard(self, name: str) -> None:
        """An older epoch that never sent a message has no seq at which it could be fenced, so it ends here."""
        known = self.group.members.get(name)
        if known is not None and sender_key(name, known[0]) not in self.group.senders:
            self.end(name, known[0])

    # ── entering ──────────────────────────────────────────────────────────────────────────────────────────────────

    def take(self, sender: SenderRuns, one: HeldMessage, watch: Watch, offset: int, now_ms: int) -> Refusal | None:
        group = self.group
        assert one.value is not None
        refusal = no_room(group, sender, one.id[2], one.value, held=len(group.held))
        if refusal is not None and not (watch == QUEUED and self.frees_something(one, now_ms)):
            return refusal
        group.accept(sender, one.id)
        group.hold(one, watch)
        if len(watch) != WHO_PARTS:
            self._enter_if_next(one)
        self.advance(offset, now_ms)
        return None

    def watch(self, one: HeldMessage, watch: Watch) -> None:
        super().watch(one, watch)
        if len(watch) != WHO_PARTS:
            self._enter_if_next(one)

    def hold_stand_in(self, stand_in: HeldMessage, previous: Id) -> None:
        super().hold_stand_in(stand_in, previous)
        self._enter_if_next(stand_in)

    def _enter_if_next(self, held: HeldMessage) -> None:
        """Take note of a held message that waits for no join, and let it enter if its turn has come."""
        name, epoch, seq = held.id
        message = held.message
        if message is None:  # a stand-in has no time; it enters behind its sender's previous message
            if self.entered_up_to(name, epoch) == seq - 1:
                self._enter(name, epoch, seq)
            return
        time: int = message.time  # type: ignore[assignment]
        self.time_max = max(self.time_max, time)
        entering = held.watch == QUEUED
        if (name, epoch) not in self.floors:
            self._speaks(name, epoch, time if entering else 1)
        self.group.note_sign_of_life(name, epoch, held.arrived_ms)
        if entering:
            self.floors[name, epoch] = time + 1
            self.enqueue(held, (time, name, epoch, seq))
            self._enter(name, epoch, seq)

    def enqueue(self, held: HeldMessage, key: Key) -> None:
        """A message waits for nothing but the clocks now."""
        heappush(self.queue, (key, held))

    def _enter(self, name: str, epoch: int, seq: int) -> None:
        self.entered[sender_key(name, epoch)] = seq
        self.just_entered.append((name, epoch, seq))
        self._follow_up(name, epoch, seq)

    def _follow_up(self, name: str, epoch: int, seq: int) -> None:
        """What the entry of a seq brings about: a promise counts now, or its sender ends with its last seq."""
        promise = self.promises.take((name, epoch), seq + 1) if self.promises else None
        if promise is not None:
            self.keep_promise(name, epoch, *promise)
        self.fence(name, epoch)

    # ── heartbeats ────────────────────────────────────────────────────────────────────────────────────────────────

    def fault_of_heartbeat(self, record: Heartbeat) -> Refusal | None:
        if record.time is UNSET:
            name = self.group.order.name
            return Refusal(codes.MISSING_STAMP, f"In {name} a heartbeat needs the field `time`: what it promises.")
        if record.time < 0:
            return Refusal(codes.BAD_STAMP, f"`time` {record.time} is below 0, where no linear clock begins.")
        if record.clock_ms is not UNSET and abs(record.clock_ms) > SEQ_MAX:
            return Refusal(codes.BAD_STAMP, f"`clock_ms` {record.clock_ms} is no time.")
        return None

    def heartbeat(self, record: Heartbeat, now_ms: int) -> Refusal | None:
        """Raise a floor without a message, now or when everything that the heartbeat covers is there."""
        name: str = record.sender
        epoch: int = record.epoch
        following: int = record.seq
        time: int = record.time  # type: ignore[assignment]
        tells_more = self.tells_more(record)
        refusal = self.too_far(time)
        if refusal is not None:
            return refusal
        if self.group.closed and not self.group.has_member(name, epoch):
            return Refusal(codes.NOT_MEMBER, f"{name!r} is not a member, so nobody waits for its clock.")
        if (name, epoch) not in self.floors:
            self._speaks(name, epoch, time if following == 1 else 1)
        self.time_max = max(self.time_max, time)
        clock_ms: int = UNKNOWN if record.clock_ms is UNSET else record.clock_ms
        if self.entered_up_to(name, epoch) >= following - 1:
            self.keep_promise(name, epoch, time, clock_ms)
        else:
            self.promises.add((name, epoch), following, (time, clock_ms))
        if tells_more:
            self.group.note_sign_of_life(name, epoch, now_ms)
        return None

    def tells_more(self, record: Heartbeat) -> bool:
        """Whether a heartbeat says more than its sender is known to have said, by its seq or by a clock.

        An old heartbeat may be published again, perhaps by another: it must not pass for a sign of life.
        """
        who: Who = (record.sender, record.epoch)
        sender = self.group.senders.get(sender_key(*who))
        if sender is None or who not in self.floors:
            return True
        promises = self.promises.get(who, {})
        following = max(sender.highest + 1, *promises) if promises else sender.highest + 1
        time = max([self.floors[who], *(time for time, _ in promises.values())])
        return record.seq > following or record.time > time  # type: ignore[operator]

    def keep_promise(self, name: str, epoch: int, time: int, clock_ms: int) -> None:
        """A heartbeat counts, now that all it covers is there."""
        if (name, epoch) in self.floors:
            self.floors[name, epoch] = max(self.floors[name, epoch], time)

    # ── leaving ───────────────────────────────────────────────────────────────────────────────────────────────────

    def advance(self, offset: int, now_ms: int) -> None:
        self.release_ready(offset, now_ms)

    def pass_time(self, offset: int, now_ms: int) -> None:
        self.release_ready(offset, now_ms)

    def release_ready(self, offset: int, now_ms: int) -> None:
        """Let messages enter whose turn has come, then deliver what the clocks let go, one by one."""
        group = self.group
        while True:
            for id_ in self.just_entered:  # grows while it is walked
                if id_ in group.waiting:
                    self.happened(id_, offset, now_ms)
            self.just_entered.clear()
            one = self.next_ready(now_ms)
            if one is None:
                if group.repair_timers is not None and not group.held:
                    group.repair_timers.heard.clear()  # nothing waits for any member's word any more
                return
            group.stop_watching(one)
            group.take_out(one)
            self.delivered(one)
            group.settle(one, offset, now_ms)
            if one.id in group.waiting:
                self.happened(one.id, offset, now_ms)

    def delivered(self, one: HeldMessage) -> None:
        """A message of the queue is about to be delivered."""
        assert one.message is not None
        self.last = max(self.last, (one.message.time, *one.id))  # type: ignore[assignment]
        self._leaves(*one.id)

    def stand_in_settled(self, id_: Id) -> None:
        """A stand-in whose turn had come already was delivered without entering first."""
        self._leaves(*id_)
        self._follow_up(*id_)

    def catch_up(self, time: int) -> None:
        self.time_max = max(self.time_max, time)

    @property
    def reached_time(self) -> int:
        return self.time_max

    def _leaves(self, name: str, epoch: int, seq: int) -> None:
        if self.entered.get(sender_key(name, epoch)) == seq:
            del self.entered[sender_key(name, epoch)]

    def abandon(
        self, stand_in: HeldMessage, held: HeldMessage | None, refusal: Refusal, offset: int, now_ms: int
    ) -> None:
        super().abandon(stand_in, held, refusal, offset, now_ms)
        self.advance(offset, now_ms)

    def is_linked(self, one: HeldMessage) -> bool:
        return not waits_for_join(one.watch) or super().is_linked(one)

    def relink(self, held: Iterable[HeldMessage]) -> None:
        self.queue = [(key_of(one), one) for one in held if one.watch == QUEUED]
        heapify(self.queue)

    def top(self) -> tuple[Key, HeldMessage] | None:
        """The least of the queue that is still held."""
        queue = self.queue
        while queue and self.group.held.get(queue[0][1].id) is not queue[0][1]:
            heappop(queue)
        return queue[0] if queue else None

    # ── looking and keeping ───────────────────────────────────────────────────────────────────────────────────────

    def missing(self, one: HeldMessage, look: Look) -> list[Id]:
        if one.watch != QUEUED:
            return look.missing_before(one.id)
        found: list[Id] = []
        for name, epoch in sorted(self.floors):
            if len(found) == look.at_most:
                break
            if self.blocks(one, name, epoch):
                found += self.on_its_way(name, epoch, look.at_most - len(found))
        return found

    def silent(self, one: HeldMessage, at_most: int) -> list[str]:
        if one.watch != QUEUED:
            return []
        return [name for name, _ in islice(self.awaited_by(one), at_most)]

    def queued(self) -> list[HeldMessage]:
        queued = self.group.waiting.get(QUEUED)
        return [] if queued is None else [first_of(queued)]

    def awaited(self) -> Iterator[tuple[Who, int]]:
        heard = (self.group.repair_timers or NO_TIMERS).heard
        for longest in self.queued():
            for who in self.awaited_by(longest):
                yield who, max(heard.get(who, longest.arrived_ms), longest.arrived_ms)

    def awaited_by(self, one: HeldMessage) -> Iterator[Who]:
        """The members whose word a queued message waits for: they hold it back, and nothing of them is on its way."""
        return (who for who in sorted(self.floors) if self.blocks(one, *who) and not self.on_its_way(*who, 1))

    def on_its_way(self, name: str, epoch: int, at_most: int) -> list[Id]:
        """The ids of this member that are known to exist and are not here."""
        following = max(self.promises.get((name, epoch), (1,)))
        last = following - 1
        sender = self.group.senders.get(sender_key(name, epoch))
        if sender is not None:
            last = sender.fence if sender.fence < SEQ_MAX else max(last, sender.highest)
        found: list[Id] = []
        for seq in self.group.missing_of(name, epoch, 1, last):
            if len(found) == at_most:
                break
            if (name, epoch, seq) not in self.group.held:
                found.append((name, epoch, seq))
        return found

    def dump(self) -> Any:
        floors = [[name, epoch, floor] for (name, epoch), floor in self.floors.items()]
        entered = [[*key, seq] if isinstance(key, tuple) else [key, 0, seq] for key, seq in self.entered.items()]
        promises = [
            [name, epoch, seq, *promise] for (name, epoch), of in self.promises.items() for seq, promise in of.items()
        ]
        return [self.time_max, list(self.last), floors, entered, promises]

    def load(self, dumped: Any) -> None:
        self.time_max, last, floors, entered, promises = dumped[:5]
        self.last = tuple(last)
        self.floors.clear()
        for name, epoch, floor in floors:
            self.begin(name, epoch, floor)
        self.entered = {sender_key(name, epoch): seq for name, epoch, seq in entered}
        self.promises.clear()
        for name, epoch, seq, time, clock_ms in promises:
            self.promises.setdefault((name, epoch), {})[seq] = (time, clock_ms)
        self.just_entered.clear()


def key_of(one: HeldMessage) -> Key:
    """How a message ranks."""
    assert one.message is not None
    return (one.message.time, *one.id)  # type: ignore[return-value]
