"""`two_clock`: what one clock orders and the other allows (linear and physical clocks, sections 3 to 5).

Guarantee: the sequence is a linear extension of a relation that contains causality: of one source by seq; of two, m_i
before m_j if time_i < time_j and clock_j - clock_i >= delay_min - 2 accuracy. Who is unrelated waits for nobody. With
loss or silence a message waits until one of a member's two clocks proves that nothing before it can come; where the
delay is bounded (`delay_max_ms`) the log's own time proves it too, unless something of that member is known
to be missing.
Stamp: `time`, the linear clock, and `clock_ms`, the physical one; `create` gives `accuracy_ms` (without it the physical
clock proves nothing), `delay_min_ms`, `delay_max_ms`. Gain over `lamport` is real only where a least delay is known.

    members A, B; accuracy_ms 1
    arrives A:1 time 5 clock_ms 100         -> held: B may still say something before it
    arrives B:1 time 3 clock_ms 103         -> B:1, for A's next time is above 3; A:1, for B's clock is past 100 + 2,
                                               though nobody knows yet whether B's next time is above 5

Rulings: rule 1(b) is unsound, for with a greatest delay a causal pair may show a difference as small as -2 accuracy,
and it forgets pairs of the same source; rule 1(a) orders pairs against time; the last branch of 1(a) means concurrent;
the printed relation has circles where messages are lost, this one none, for every edge raises `time`; it is not
transitive, so it is never used to sort; `DSEQ := m.seq + 1` blocks everybody at the second message; the receive rule is
max(own, received + 1). The timed release is a watermark: a message goes once the log's time is past its clock by more
than 4 accuracy - delay_min + delay_max. The printed 2 accuracy + delay_max covers true causes only: a message that
precedes by both clocks may come later than that, though its sender's clock and delays are as `create` says.
"""

from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from itertools import accumulate
from operator import neg
from typing import TYPE_CHECKING, Any

from msgspec import UNSET

from precede.udfs import codes
from precede.udfs.analysis.relation import ByTwoClocks, Relation
from precede.udfs.codes import Refusal
from precede.udfs.engine.held import QUEUED, HeldMessage
from precede.udfs.orders.lamport import LamportStamps
from precede.udfs.orders.stamps import Stamps
from precede.udfs.records.messages import SEQ_MAX, Heartbeat, Id, Message, Options, Who
from precede.udfs.release.by_clocks import UNKNOWN, Clocked, Key

if TYPE_CHECKING:
    from precede.udfs.engine.group import Group


Queued = tuple[int, int, HeldMessage]
"""(time, clock, message)"""

BEYOND = SEQ_MAX * 4
"""Above every clock."""

HEADS_GONE_MAX = 64
"""How many clocks of messages that have gone may pile up, beside one for each source."""


class TwoClock(Clocked):
    """Lets a message go when nothing that came precedes it and nothing that may come can."""

    __slots__ = (
        *("clocks", "firsts", "front_of", "frontier", "fronts", "heads"),
        *("log_ms", "margin_ms", "queues", "shown", "timed_ms"),
    )

    name = "two_clock"
    after_seed = "002"
    total = False

    def __init__(self, group: "Group") -> None:
        super().__init__(group)
        self.margin_ms = _margin_ms(group.options)
        """m_i may precede m_j only where clock_i <= clock_j + margin; None: the physical clock proves nothing."""
        self.timed_ms = _timed_ms(group.options)
        """What precedes a message may come until the log's time is so long after its clock, and still in that very
        millisecond; None: for ever."""
        self.log_ms = UNKNOWN
        """The time of the log, as far as this group's own records showed it."""
        self.clocks: dict[Who, int] = {}
        """Of each member and epoch the least `clock_ms` that its next message counts as."""
        self.shown: dict[Id, int] = {}
        """What the `clock_ms` of a queued message counts as, where it stepped back."""
        self.queues: dict[Who, deque[Queued]] = {}
        """Of each source what has entered, by seq: both clocks only rise, so whatever comes next, the first stands for
        all. One that is given up on may stay until it would be the first."""
        self.front_of: dict[Who, tuple[int, int]] = {}
        """Of each source the least (time, clock) that may still be delivered: the first of its queue, or its floors."""
        self.fronts: list[tuple[int, str, int]] = []
        """All fronts by (time, sender, epoch)."""
        self.firsts: list[tuple[int, str, int]] = []
        """Those of the fronts that are messages."""
        self.heads: list[tuple[int, Who]] = []
        """The clocks of the first ones of the queues as a heap, with some that have gone."""
        self.frontier: list[tuple[int, int]] = []
        """(time, clock) of what was delivered, but for those that another one has beyond them in both: times rise,
        clocks fall. At most one of each sender stands here."""

    def fault(self, message: Message) -> Refusal | None:
        fault = super().fault(message)
        if fault is not None:
            return fault
        if message.clock_ms is UNSET:
            return Refusal(codes.MISSING_STAMP, "The order two_clock needs the field `clock_ms`: the physical clock.")
        if abs(message.clock_ms) > SEQ_MAX:
            return Refusal(codes.BAD_STAMP, f"`clock_ms` {message.clock_ms} is no time.")
        return None

    def too_late(self, id_: Id, message: Message) -> Refusal | None:
        time: int = message.time  # type: ignore[assignment]
        clock: int = max(message.clock_ms, self.clocks.get(id_[:2], UNKNOWN))  # type: ignore[type-var, assignment]
        at = bisect_right(self.frontier, (time, SEQ_MAX * 2))
        if at < len(self.frontier) and (self.margin_ms is None or clock <= self.frontier[at][1] + self.margin_ms):
            return Refusal(codes.LATE, "It precedes, by both clocks, a message that is already delivered.")
        return None

    # ── fronts ────────────────────────────────────────────────────────────────────────────────────────────────────

    def begin(self, name: str, epoch: int, floor: int) -> None:
        super().begin(name, epoch, floor)
        self.clocks[name, epoch] = UNKNOWN
        self._move((name, epoch))

    def end(self, name: str, epoch: int) -> None:
        super().end(name, epoch)
        self.clocks.pop((name, epoch), None)
        self._move((name, epoch))

    def keep_promise(self, name: str, epoch: int, time: int, clock_ms: int) -> None:
        super().keep_promise(name, epoch, time, clock_ms)
        who = name, epoch
        if who in self.clocks:
            self.clocks[who] = max(self.clocks[who], clock_ms)
            if who not in self.queues:
                self._move(who)

    def tells_more(self, record: Heartbeat) -> bool:
        if super().tells_more(record):
            return True
        who: Who = (record.sender, record.epoch)
        clocks = [self.clocks[who], *(clock for _, clock in self.promises.get(who, {}).values())]
        return record.clock_ms is not UNSET and record.clock_ms > max(clocks)

    def queued(self, held: HeldMessage, key: Key) -> None:
        assert held.message is not None
        who = held.id[:2]
        clock: int = held.message.clock_ms  # type: ignore[assignment]
        if clock < self.clocks[who]:
            clock = self.shown[held.id] = self.clocks[who]
        self.clocks[who] = clock
        queue = self.queues.get(who)
        if queue is None:
            self.queues[who] = deque([(key[0], clock, held)])
            self._move(who)
        else:
            queue.append((key[0], clock, held))

    def relink(self, held: Iterable[HeldMessage]) -> None:
        self.queues, self.front_of, self.fronts, self.firsts, self.heads = {}, {}, [], [], []
        for one in sorted(held, key=lambda one: one.id):
            if one.watch == QUEUED and one.message is not None:
                entry: Queued = (one.message.time, self._shown(one), one)  # type: ignore[assignment]
                self.queues.setdefault(one.id[:2], deque()).append(entry)
        for who in dict.fromkeys((*self.floors, *self.queues)):
            self._move(who)

    def _move(self, who: Who) -> None:
        """Put the front of a source where it is now."""
        front = self.front_of.pop(who, None)
        if front is not None:
            key = (front[0], *who)
            del self.fronts[bisect_left(self.fronts, key)]
            at = bisect_left(self.firsts, key)
            if at < len(self.firsts) and self.firsts[at] == key:
                del self.firsts[at]
        queue = self.queues.get(who)
        if queue is not None:
            time, clock, _ = queue[0]
            insort(self.firsts, (time, *who))
            heappush(self.heads, (clock, who))
            if len(self.heads) > 2 * len(self.queues) + HEADS_GONE_MAX:
                self.heads = [(queue[0][1], source) for source, queue in self.queues.items()]
                heapify(self.heads)
        elif who in self.floors:
            time, clock = self.floors[who], self.clocks[who]
        else:
            return
        self.front_of[who] = time, clock
        insort(self.fronts, (time, *who))

    def _take_first(self, who: Who) -> Queued:
        """Take the first message out of a source's queue, and what is held no longer behind it."""
        queue = self.queues[who]
        first = queue.popleft()
        self.shown.pop(first[2].id, None)
        while queue and self.group.held.get(queue[0][2].id) is not queue[0][2]:
            queue.popleft()
        if not queue:
            del self.queues[who]
        self._move(who)
        return first

    # ── leaving ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _least_clock(self) -> int | None:
        """The least clock of what is queued."""
        heads = self.heads
        while heads:
            clock, who = heads[0]
            if who in self.queues and self.queues[who][0][1] == clock:
                return clock
            heappop(heads)
        return None

    def next_ready(self, now_ms: int) -> HeldMessage | None:
        """By key, so that of those ready together the least goes first.

        Fronts with less time precede a message unless their clock is later by more than the margin. Once the least
        clock of all that is queued is not below what was passed by that much, nobody further on is free; with clocks
        that go with the times this is so at the first or second front.
        """
        least = self._least_clock()
        if least is None:
            return None
        overdue_ms = None if self.timed_ms is None else max(now_ms, self.log_ms) - self.timed_ms
        if overdue_ms is not None and least >= overdue_ms:
            overdue_ms = None
        passed = passed_surely = BEYOND  # the least clock of the fronts with less time, and the same without the floors
        at = 0  # of those that have nothing on its way: these hold nobody back who is overdue
        for time, name, epoch in self.firsts:
            while self.fronts[at][0] < time:
                who = self.fronts[at][1:]
                clock = self.front_of[who][1]
                passed = min(passed, clock)
                if overdue_ms is not None and (who in self.queues or self._gap(*who, 1)):
                    passed_surely = min(passed_surely, clock)
                if not self._is_free(least, passed, passed_surely, overdue_ms):
                    return None
                at += 1
            who = name, epoch
            if self._is_free(self.front_of[who][1], passed, passed_surely, overdue_ms):
                return self.queues[who][0][2]
        return None

    def _is_free(self, clock: int, passed: int, passed_surely: int, overdue_ms: int | None) -> bool:
        """Whether a message with this clock goes before all that was passed."""
        if self.margin_ms is None:
            return passed == BEYOND
        clock_max = clock + self.margin_ms
        return clock_max < passed or (overdue_ms is not None and clock < overdue_ms and clock_max < passed_surely)

    def _holds_back(self, who: Who, time: int, clock: int) -> bool:
        """Whether this member may still say something that precedes a message of this time and clock."""
        if self.floors[who] >= time:
            return False
        return self.margin_ms is None or self.clocks[who] <= clock + self.margin_ms

    def delivered(self, one: HeldMessage) -> None:
        super().delivered(one)
        time, clock, _ = self._take_first(one.id[:2])
        frontier = self.frontier
        first = last = bisect_left(frontier, (time, UNKNOWN))
        if last < len(frontier) and frontier[last][1] >= clock:
            return
        if last < len(frontier) and frontier[last][0] == time:
            last += 1
        while first and frontier[first - 1][1] <= clock:
            first -= 1
        frontier[first:last] = [(time, clock)]

    def lets_go(self, one: HeldMessage, now_ms: int) -> bool:
        who = one.id[:2]
        if who in self.queues:
            return self.next_ready(now_ms) is not None
        assert one.message is not None
        clock: int = max(one.message.clock_ms, self.clocks.get(who, UNKNOWN))  # type: ignore[type-var, assignment]
        self.queues[who] = deque([(one.message.time, clock, one)])  # type: ignore[list-item]
        self._move(who)
        free = self.next_ready(now_ms)
        del self.queues[who]
        self._move(who)
        return free is not None

    def withdraw(self, held: HeldMessage) -> None:
        who = held.id[:2]
        if held.watch == QUEUED and self.queues[who][0][2] is held:
            self._take_first(who)
        self.shown.pop(held.id, None)

    def saw(self, now_ms: int) -> None:
        self.log_ms = max(self.log_ms, now_ms)

    def deadline_ms(self) -> int | None:
        """From which time of the log on a tick may let something go."""
        least = None if self.timed_ms is None else self._least_clock()
        return None if least is None else least + self.timed_ms + 1  # type: ignore[operator]

    def missing(self, held: HeldMessage, at_most: int) -> list[Id]:
        return super().missing(self._foremost(held), at_most)

    def awaited(self, held: HeldMessage) -> Iterator[Who]:
        return super().awaited(self._foremost(held))

    def _foremost(self, held: HeldMessage) -> HeldMessage:
        """Who is waited for: where no member holds a queued message back itself, the one queued before it."""
        if held.watch != QUEUED:
            return held
        floors = _Earliest(sorted((floor, self.clocks[who]) for who, floor in self.floors.items()))
        firsts = _Earliest([(time, self.queues[name, epoch][0][1]) for time, name, epoch in self.firsts])
        one: HeldMessage | None = held
        while one is not None:
            assert one.message is not None
            if floors.least_below(one.message.time) <= self._clock_max(one):  # type: ignore[arg-type]
                return one
            held, one = one, self._least_before(one, firsts)
        return held

    def _clock_max(self, one: HeldMessage) -> int:
        """The latest clock with which another message may still precede a queued one."""
        return BEYOND - 1 if self.margin_ms is None else self._shown(one) + self.margin_ms

    def _least_before(self, one: HeldMessage, firsts: "_Earliest") -> HeldMessage | None:
        """The least of the queued messages that precede this one; the first of each source stands for all."""
        assert one.message is not None
        who = one.id[:2]
        own = bisect_left(self.firsts, (self.front_of[who][0], *who))
        at = firsts.first_with(self._clock_max(one))
        if at < own and self.firsts[at][0] < one.message.time:  # type: ignore[operator]
            return self.queues[self.firsts[at][1:]][0][2]
        first = self.queues[who][0][2]
        return None if first is one else first

    def blocks(self, one: HeldMessage, name: str, epoch: int) -> bool:
        assert one.message is not None
        return self._holds_back((name, epoch), one.message.time, self._shown(one))  # type: ignore[arg-type]

    def _shown(self, one: HeldMessage) -> int:
        """What the clock of a queued message counts as."""
        if one.id in self.shown:
            return self.shown[one.id]
        assert one.message is not None
        return one.message.clock_ms  # type: ignore[return-value]

    def dump(self) -> Any:
        clocks = [[name, epoch, clock] for (name, epoch), clock in self.clocks.items()]
        shown = [[*id_, clock] for id_, clock in self.shown.items()]
        return [*super().dump(), clocks, shown, self.frontier, self.log_ms]

    def load(self, dumped: Any) -> None:
        super().load(dumped)
        for name, epoch, clock in dumped[5]:
            self.clocks[name, epoch] = clock
        self.shown = {(name, epoch, seq): clock for name, epoch, seq, clock in dumped[6]}
        self.frontier = [(time, clock) for time, clock in dumped[7]]
        self.log_ms = dumped[8]
        self.relink(())  # for where nothing is held; else the engine asks for it once more, with what is

    @classmethod
    def relation(cls, messages: Sequence[Message], options: Options) -> Relation:
        return ByTwoClocks(messages, _margin_ms(options))

    @classmethod
    def stamps_of(cls, name: str, epoch: int = 0) -> "TwoClockStamps":
        return TwoClockStamps(name, epoch)


class _Earliest:
    """Points in order of time, and the least clock up to each: a walk from point to point looks at few of them."""

    def __init__(self, points: list[tuple[int, int]]) -> None:
        self.times = [time for time, _ in points]
        self.clocks = list(accumulate((clock for _, clock in points), min))

    def least_below(self, time: int) -> int:
        """The least clock of those with less time."""
        at = bisect_left(self.times, time)
        return self.clocks[at - 1] if at else BEYOND

    def first_with(self, clock_max: int) -> int:
        """The number of the first whose clock is no later than this."""
        return bisect_left(self.clocks, -clock_max, key=neg)


def _margin_ms(options: Options) -> int | None:
    """How much later the clock of what precedes a message may be; None: the physical clock proves nothing."""
    if options.accuracy_ms is UNSET:
        return None
    least = 0 if options.delay_min_ms is UNSET else options.delay_min_ms
    return 2 * options.accuracy_ms - least


def _timed_ms(options: Options) -> int | None:
    """The longest time from the clock of a message to the moment, in the log's time, at which what precedes it arrives.

    What precedes it shows a clock that is later by at most the margin, was sent at most one accuracy after what it
    shows, is at most `delay_max_ms` under way, and the log's clock is at most one accuracy ahead.
    """
    margin_ms = _margin_ms(options)
    if margin_ms is None or options.delay_max_ms is UNSET:
        return None
    return margin_ms + 2 * options.accuracy_ms + options.delay_max_ms  # type: ignore[operator]  # it is set


class TwoClockStamps(LamportStamps):
    """A linear clock, and the physical one the caller reads."""

    def fields(self, *, after: list[Id], to: list[str], clock_ms: int) -> dict[str, Any]:
        return {**super().fields(after=after, to=to, clock_ms=clock_ms), "clock_ms": clock_ms}

    def heartbeat(self, *, clock_ms: int = 0) -> dict[str, Any]:
        """The physical clock alone says something new each time, so the linear one need not."""
        return {**Stamps.heartbeat(self), "time": self.time, "clock_ms": clock_ms}
