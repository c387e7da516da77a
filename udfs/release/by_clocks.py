"""What the orders by clocks share (`lamport`, `two_clock`): members, their floors, and who waits for whom.

A sender's messages enter in the order of their seqs; one that has entered raises its sender's floor, below which
nothing of that sender can come any more. An order says which of the entered ones the floors let go. Who falls silent
holds everybody back: heartbeats raise a floor without a message, and `held` names whose floor is too low.

A floor ends when all has entered that still counts of its sender and epoch: after a leave, an eviction, a new epoch.
"""

from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heappush, nlargest
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar

from msgspec import UNSET

from precede.udfs import codes
from precede.udfs.codes import Refusal
from precede.udfs.engine.held import QUEUED, HeldMessage, Watch
from precede.udfs.engine.senders import Sender, SenderKey, sender_key
from precede.udfs.orders.order import Order
from precede.udfs.records.messages import SEQ_MAX, Heartbeat, Id, Join, Message, Who
from precede.udfs.release.floors import Floors
from precede.udfs.ticks.repair_timers import hear

if TYPE_CHECKING:
    from precede.udfs.engine.group import Group

Key = tuple[int, str, int, int]
"""(time, sender, epoch, seq): how messages rank."""

UNKNOWN = -(2**62)
"""The physical clock of somebody who did not show it yet."""

PROMISES_MAX = 100
"""How many heartbeats of one sender and epoch may be kept that came before what they cover. Of more the last but one is
forgotten: the first ones count first, and the last one, which says how far the sender has got, promises for both."""

BEGINNING: Key = (0, "", 0, 0)


class Clocked(Order):
    """Floors, heartbeats and the queue of what has entered."""

    __slots__ = ("entered", "floors", "just_entered", "last", "promises", "queue", "time_max")

    in_turn = True
    by_clocks = True
    total: ClassVar[bool] = True
    """Whether everything is delivered by its key, so that nothing below the last one can follow."""

    def __init__(self, group: "Group") -> None:
        super().__init__(group)
        self.floors = Floors()
        """Of each member and epoch the least time that its next message can have."""
        self.entered: dict[SenderKey, int] = {}
        """The last seq that entered, of senders whose entered ones are not all settled."""
        self.just_entered: list[Id] = []
        """What entered since the engine last asked: their senders' next ones may enter too."""
        self.queue: list[tuple[Key, HeldMessage]] = []
        self.promises: dict[Who, dict[int, tuple[int, int]]] = {}
        """Heartbeats that came before what they cover: next seq -> (time, clock_ms)."""
        self.time_max = 0
        """The largest `time` of the group."""
        self.last = BEGINNING
        """The largest key that was delivered."""

    # ── judging ───────────────────────────────────────────────────────────────────────────────────────────────────

    def fault(self, message: Message) -> Refusal | None:
        if message.time is UNSET:
            return Refusal(codes.MISSING_STAMP, f"The order {self.name} needs the field `time`: the linear clock.")
        if message.time < 0:
            return Refusal(codes.BAD_STAMP, f"`time` {message.time} is below 0, where no linear clock begins.")
        return None

    def poison(self, id_: Id, message: Message) -> Refusal | None:
        return self._too_far(message.time)  # type: ignore[arg-type]  # judged by `fault` before

    def _too_far(self, time: int) -> Refusal | None:
        if time > SEQ_MAX:  # whatever window a group chose, what is kept of a clock must fit a snapshot
            return Refusal(codes.CLOCK_POISON, f"`time` {time} is more than {SEQ_MAX}, which no clock comes to.")
        if time > self.time_max + self.group.window:
            past = f"more than {self.group.window} past {self.time_max}, the highest of the group"
            return Refusal(codes.CLOCK_POISON, f"`time` {time} is {past}.")
        return None

    def wait(self, id_: Id, message: Message) -> Watch | Refusal | None:
        name, epoch, seq = id_
        if seq != self.entered_up_to(name, epoch) + 1:
            return name, epoch, seq - 1
        time: int = message.time  # type: ignore[assignment]
        floor = self.floors.get((name, epoch))
        if floor is not None and time < floor:
            return Refusal(codes.CLOCK_REGRESSION, f"`time` {time} is below {floor}, the least {name!r} may still say.")
        behind = (time, *id_) < self.last and (self.total or floor is None)
        if behind or (floor is None and time < self._floor_of_joiner(name, epoch)):
            return Refusal(codes.LATE, f"`time` {time} of a newcomer is not above what is delivered ({self.last[0]}).")
        return self.too_late(id_, message) or QUEUED

    def too_late(self, id_: Id, message: Message) -> Refusal | None:
        """Whether something was delivered that this one precedes, by more than its key."""
        return None

    def entered_up_to(self, name: str, epoch: int) -> int:
        """The seq up to which everything of this sender is here."""
        key = (name, epoch) if epoch else name
        sender = self.group.senders.get(key)
        settled = 0 if sender is None else sender.prefix
        return max(self.entered[key], settled) if key in self.entered else settled

    def _floor_of_joiner(self, name: str, epoch: int) -> int:
        """Where the floor of a larger epoch begins; a name never heard of begins where it speaks, which 0 may be."""
        known = self.group.membership.members.get(name)
        return self.last[0] + 1 if known is not None and known[0] < epoch and self.last != BEGINNING else 0

    # ── members and floors ────────────────────────────────────────────────────────────────────────────────────────

    def on_create(self, members: list[str]) -> None:
        for name in members:
            self.begin(name, 0, 1)

    def on_join(self, record: Join) -> None:
        time = 0 if record.time is UNSET else record.time
        delivered = 1 if self.last == BEGINNING else self.last[0] + 1
        self.time_max = max(self.time_max, time)
        self.begin(record.sender, record.epoch, max(time, delivered))

    def judge_join(self, record: Join) -> Refusal | None:
        return None if record.time is UNSET else self._too_far(record.time)

    def on_fence(self, name: str, epoch: int) -> None:
        """Nothing above the fence counts any more: where all below has entered, nobody waits for this floor."""
        sender = self.group.senders.get(sender_key(name, epoch))
        if sender is not None and self.entered_up_to(name, epoch) >= sender.fence:
            self.end(name, epoch)

    def begin(self, name: str, epoch: int, floor: int) -> None:
        self.floors.begin((name, epoch), floor)

    def end(self, name: str, epoch: int) -> None:
        self.floors.pop((name, epoch), None)
        self.promises.pop((name, epoch), None)

    def _speaks(self, name: str, epoch: int, first_floor: int) -> None:
        """The first sign of somebody in a group that is open: a member from here on, and its older epochs are over."""
        first_floor = max(first_floor, self._floor_of_joiner(name, epoch))
        self.group.membership.speaks(name, epoch)
        self.begin(name, epoch, first_floor)

    def end_unheard(self, name: str) -> None:
        """An older epoch that never sent a message has no seq at which it could be fenced, so it ends here."""
        known = self.group.membership.members.get(name)
        if known is not None and sender_key(name, known[0]) not in self.group.senders:
            self.end(name, known[0])

    # ── entering ──────────────────────────────────────────────────────────────────────────────────────────────────

    def on_hold(self, held: HeldMessage) -> None:
        name, epoch, seq = held.id
        message = held.message
        if message is None:  # a stand-in has no time; it enters behind its sender's previous one
            if self.entered_up_to(name, epoch) == seq - 1:
                self._enter(name, epoch, seq)
            return
        time: int = message.time  # type: ignore[assignment]
        self.time_max = max(self.time_max, time)
        entering = held.watch == QUEUED
        if (name, epoch) not in self.floors:
            self._speaks(name, epoch, time if entering else 1)
        hear(self.group, name, epoch, held.arrived_ms)
        if entering:
            self.floors[name, epoch] = time + 1
            self.queued(held, (time, name, epoch, seq))
            self._enter(name, epoch, seq)

    def queued(self, held: HeldMessage, key: Key) -> None:
        """A message waits for nothing but the clocks now."""
        heappush(self.queue, (key, held))

    def withdraw(self, held: HeldMessage) -> None:
        """A held message was given up on; whoever looks at the queue passes over what is no longer held."""

    def _enter(self, name: str, epoch: int, seq: int) -> None:
        self.entered[sender_key(name, epoch)] = seq
        self.just_entered.append((name, epoch, seq))
        self._follow_up(name, epoch, seq)

    def _follow_up(self, name: str, epoch: int, seq: int) -> None:
        """What hangs on the entry of a seq: a promise that covers it, the end of a sender whose last one it is."""
        promises = self.promises.get((name, epoch))
        if promises is not None and seq + 1 in promises:
            self.keep_promise(name, epoch, *promises.pop(seq + 1))
            if not promises:
                del self.promises[name, epoch]
        self.on_fence(name, epoch)

    def keep_promise(self, name: str, epoch: int, time: int, clock_ms: int) -> None:
        """A heartbeat counts, now that all it covers is there."""
        if (name, epoch) in self.floors:
            self.floors[name, epoch] = max(self.floors[name, epoch], time)

    def is_over(self, sender: Sender) -> bool:
        """Whether all has entered that still counts of this sender and epoch."""
        return self.entered_up_to(sender.name, sender.epoch) >= sender.fence

    def fault_of_heartbeat(self, record: Heartbeat) -> Refusal | None:
        if record.time is UNSET:
            return Refusal(codes.MISSING_STAMP, f"In {self.name} a heartbeat needs the field `time`: what it promises.")
        if record.time < 0:
            return Refusal(codes.BAD_STAMP, f"`time` {record.time} is below 0, where no linear clock begins.")
        if record.clock_ms is not UNSET and abs(record.clock_ms) > SEQ_MAX:
            return Refusal(codes.BAD_STAMP, f"`clock_ms` {record.clock_ms} is no time.")
        return None

    def tells_more(self, record: Heartbeat) -> bool:
        """Whether a heartbeat says more than its sender is known to have said, by its seq or by a clock.

        Who offers an old one again, perhaps not its sender, must not pass for the sign of somebody's life.
        """
        who: Who = (record.sender, record.epoch)
        sender = self.group.senders.get(sender_key(*who))
        if sender is None or who not in self.floors:
            return True
        promises = self.promises.get(who, {})
        following = max(sender.highest + 1, *promises) if promises else sender.highest + 1
        time = max([self.floors[who], *(time for time, _ in promises.values())])
        return record.seq > following or record.time > time  # type: ignore[operator]

    def heartbeat(self, record: Heartbeat) -> Refusal | None:
        """Raise a floor without a message, now or when what the heartbeat covers is there."""
        name: str = record.sender
        epoch: int = record.epoch
        following: int = record.seq
        time: int = record.time  # type: ignore[assignment]
        refusal = self._too_far(time)
        if refusal is not None:
            return refusal
        if self.group.closed and not self.group.membership.has(name, epoch):
            return Refusal(codes.NOT_MEMBER, f"{name!r} is not a member, so nobody waits for its clock.")
        if (name, epoch) not in self.floors:
            self._speaks(name, epoch, time if following == 1 else 1)
        self.time_max = max(self.time_max, time)
        clock_ms: int = UNKNOWN if record.clock_ms is UNSET else record.clock_ms
        if self.entered_up_to(name, epoch) >= following - 1:
            self.keep_promise(name, epoch, time, clock_ms)
        else:
            promises = self.promises.setdefault((name, epoch), {})
            _add(promises, following, time, clock_ms)
            if len(promises) > PROMISES_MAX:
                last, forgotten = nlargest(2, promises)
                _add(promises, last, *promises.pop(forgotten))
        return None

    # ── leaving ───────────────────────────────────────────────────────────────────────────────────────────────────

    def saw(self, now_ms: int) -> None:
        """A record of the group counted that the log took at this time; the log's clock never runs back."""

    def deadline_ms(self) -> int | None:
        """From which time of the log on a tick may let something go; None where no tick can."""
        return None

    def next_ready(self, now_ms: int) -> HeldMessage | None:
        """The next message that the clocks let go at this time of the log; it stays queued until it is `delivered`."""
        raise NotImplementedError

    def delivered(self, one: HeldMessage) -> None:
        """A message of the queue was delivered."""
        assert one.message is not None
        self.last = max(self.last, (one.message.time, *one.id))  # type: ignore[assignment]
        self._leaves(*one.id)

    def stood_in(self, id_: Id) -> None:
        """A stand-in was delivered; one whose turn had come already did so without entering first."""
        self._leaves(*id_)
        self._follow_up(*id_)

    def _leaves(self, name: str, epoch: int, seq: int) -> None:
        if self.entered.get(sender_key(name, epoch)) == seq:
            del self.entered[sender_key(name, epoch)]

    def lets_go(self, one: HeldMessage, now_ms: int) -> bool:
        """Whether a message that may enter lets one go at once: then there is room for it, however full the group."""
        top = self.top()
        least = _key(one) if top is None else min(_key(one), top[0])
        others = (floor for floor in self.floors.items() if floor[0] != one.id[:2])
        return all((floor, *who) > least[:3] for who, floor in others)

    def top(self) -> tuple[Key, HeldMessage] | None:
        """The least of the queue that is still held."""
        queue = self.queue
        while queue and self.group.held.get(queue[0][1].id) is not queue[0][1]:
            heappop(queue)
        return queue[0] if queue else None

    def relink(self, held: Iterable[HeldMessage]) -> None:
        self.queue = [(_key(one), one) for one in held if one.watch == QUEUED]
        heapify(self.queue)

    # ── looking and keeping ───────────────────────────────────────────────────────────────────────────────────────

    def blocks(self, one: HeldMessage, name: str, epoch: int) -> bool:
        """Whether this member's floor holds the message back."""
        return (self.floors[name, epoch], name, epoch) <= _key(one)[:3]

    def missing(self, held: HeldMessage, at_most: int) -> list[Id]:
        if held.watch != QUEUED:
            return self.group.missing_before(held.id, at_most)
        found: list[Id] = []
        for name, epoch in sorted(self.floors):
            if len(found) == at_most:
                break
            if self.blocks(held, name, epoch):
                found += self._gap(name, epoch, at_most - len(found))
        return found

    def silent(self, held: HeldMessage, at_most: int) -> list[str]:
        if held.watch != QUEUED:
            return []
        return [name for name, _ in islice(self.awaited(held), at_most)]

    def awaited(self, held: HeldMessage) -> Iterator[Who]:
        """Whose word a queued message waits for: members that hold it back and of whom nothing known is missing."""
        return (who for who in sorted(self.floors) if self.blocks(held, *who) and not self._gap(*who, 1))

    def _gap(self, name: str, epoch: int, at_most: int) -> list[Id]:
        """What is known to be on its way from this member, and is not here."""
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
        self.floors = Floors()
        for name, epoch, floor in floors:
            self.begin(name, epoch, floor)
        self.entered = {sender_key(name, epoch): seq for name, epoch, seq in entered}
        self.promises = {}
        for name, epoch, seq, time, clock_ms in promises:
            self.promises.setdefault((name, epoch), {})[seq] = (time, clock_ms)
        self.just_entered = []


def _add(promises: dict[int, tuple[int, int]], following: int, time: int, clock_ms: int) -> None:
    """Whoever may not say less than two promises of one seq allow may not say less than the larger."""
    before = promises.get(following, (time, clock_ms))
    promises[following] = max(before[0], time), max(before[1], clock_ms)


def _key(one: HeldMessage) -> Key:
    assert one.message is not None
    return (one.message.time, *one.id)  # type: ignore[return-value]
