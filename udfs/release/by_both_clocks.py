"""The rule of `two_clock`: a message goes when nothing that came precedes it and nothing that may come can.

One message precedes another if its linear clock is less and its physical clock is not later by more than the margin.
So a message is free once every front with less time has a physical clock beyond it by more than that. A
front that is only a floor does not count any more when the log's time shows that what precedes the message has had its
time to come, unless something of that member is known to be on its way.

The front of a source is the least of it that may still be delivered:

    time         1     2     3     4     5     6
    A                       [A:4]-------A:5---A:6     three messages are queued: the first of them is A's front
    B                  (3)                            nothing is queued: the floors are B's front
    C                              [C:9]              one message is queued

    by_time      B(3), A:4, C:9                       all fronts, by time and name
    firsts             A:4, C:9                       those of them that are messages
    heads        the clocks of A:4 and C:9, as a heap: the least clock of everything that is queued

Both clocks of a source only rise. So its front stands for everything that it has queued and everything that it may
still say, and a message has to be compared with one front of each source and no more. A front moves when a floor rises
with nothing queued, when the first message is queued, and when the first message leaves: `move` is the one place that
puts it where it is now, in all lists.
"""

from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heappush
from itertools import accumulate
from operator import neg
from typing import Any

from msgspec import UNSET

from precede.udfs import codes
from precede.udfs.codes import Refusal
from precede.udfs.engine.group import Group
from precede.udfs.engine.held import HeldMessage
from precede.udfs.engine.search import Look
from precede.udfs.engine.state import QUEUED
from precede.udfs.records.messages import SEQ_MAX, Heartbeat, Id, Message, Options, Who
from precede.udfs.release.by_clocks import UNKNOWN, ByClocks, Floors, Key

Queued = tuple[int, int, HeldMessage]
"""(time, clock, message)"""

BEYOND = SEQ_MAX * 4
"""Above every clock."""

HEADS_GONE_MAX = 64
"""How many clocks of messages that have left may pile up, beside one for each source."""


class Fronts:
    """All fronts of one group."""

    __slots__ = ("by_time", "clocks", "firsts", "floors", "front_of", "heads", "queues")

    def __init__(self, floors: Floors) -> None:
        self.floors = floors
        """Of each member and epoch the least `time` of its next message; a caller that raises one then calls `move`."""
        self.clocks: dict[Who, int] = {}
        """Of each member and epoch the least `clock_ms` that its next message counts as."""
        self.clear()

    def clear(self) -> None:
        """Nothing is queued, and no front stands anywhere."""
        self.queues: dict[Who, deque[Queued]] = {}
        """Of each source what has entered, by seq. A message that is abandoned may stay until it would be the first."""
        self.front_of: dict[Who, tuple[int, int]] = {}
        """Of each source the (time, clock) of its front."""
        self.by_time: list[tuple[int, str, int]] = []
        """All fronts by (time, sender, epoch)."""
        self.firsts: list[tuple[int, str, int]] = []
        """The fronts that are messages, in the same order."""
        self.heads: list[tuple[int, Who]] = []
        """The clocks of the first messages as a heap, with some of messages that have left."""

    def move(self, who: Who) -> None:
        """Put the front of a source where it is now; a source without messages and floors has none."""
        front = self.front_of.pop(who, None)
        if front is not None:
            key = (front[0], *who)
            del self.by_time[bisect_left(self.by_time, key)]
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
        insort(self.by_time, (time, *who))

    def push(self, who: Who, time: int, clock: int, one: HeldMessage) -> None:
        """Queue a message behind the others of its source."""
        queue = self.queues.get(who)
        if queue is None:
            self.queues[who] = deque([(time, clock, one)])
            self.move(who)
        else:
            queue.append((time, clock, one))

    def drop(self, who: Who) -> None:
        """Forget everything that is queued of a source."""
        del self.queues[who]
        self.move(who)

    def first(self, who: Who) -> HeldMessage:
        """The first queued message of a source."""
        return self.queues[who][0][2]

    def number_of(self, who: Who) -> int:
        """How many firsts stand before the front of a source."""
        return bisect_left(self.firsts, (self.front_of[who][0], *who))

    def least_clock(self) -> int | None:
        """The least clock of what is queued."""
        heads = self.heads
        while heads:
            clock, who = heads[0]
            if who in self.queues and self.queues[who][0][1] == clock:
                return clock
            heappop(heads)
        return None


class Frontier:
    """(time, clock) of what was delivered, without those that another one exceeds in both: times rise, clocks fall.

    At most one of each sender stands here.
    """

    __slots__ = ("points",)

    def __init__(self) -> None:
        self.points: list[tuple[int, int]] = []

    def add(self, time: int, clock: int) -> None:
        """A message with these clocks was delivered."""
        points = self.points
        first = last = bisect_left(points, (time, -BEYOND))
        if last < len(points) and points[last][1] >= clock:
            return
        if last < len(points) and points[last][0] == time:
            last += 1
        while first and points[first - 1][1] <= clock:
            first -= 1
        points[first:last] = [(time, clock)]

    def latest_after(self, time: int) -> int | None:
        """The latest clock of what was delivered with more time than this."""
        at = bisect_right(self.points, (time, SEQ_MAX * 2))
        return self.points[at][1] if at < len(self.points) else None


class Earliest:
    """Points in order of time, and the least clock up to each: a walk from point to point looks at few of them."""

    __slots__ = ("clocks", "times")

    def __init__(self, points: list[tuple[int, int]]) -> None:
        self.times = [time for time, _ in points]
        self.clocks = list(accumulate((clock for _, clock in points), min))

    def least_below(self, time: int) -> int:
        """The least clock of the points with less time."""
        at = bisect_left(self.times, time)
        return self.clocks[at - 1] if at else BEYOND

    def first_with(self, clock_max: int) -> int:
        """The number of the first point whose clock is no later than this."""
        return bisect_left(self.clocks, -clock_max, key=neg)


def margin_ms(options: Options) -> int | None:
    """How much later the clock of what precedes a message may be; None: the physical clock proves nothing."""
    if options.accuracy_ms is UNSET:
        return None
    least = 0 if options.delay_min_ms is UNSET else options.delay_min_ms
    return 2 * options.accuracy_ms - least


def timed_ms(options: Options) -> int | None:
    """The longest time from the clock of a message to the moment, in the log's time, at which what precedes it arrives.

    What precedes it shows a clock that is later by at most the margin, was sent at most one accuracy after what it
    shows, is at most `delay_max_ms` under way, and the log's clock is at most one accuracy ahead.
    """
    margin = margin_ms(options)
    if margin is None or options.delay_max_ms is UNSET:
        return None
    return margin + 2 * options.accuracy_ms + options.delay_max_ms  # type: ignore[operator]


class ByBothClocks(ByClocks):
    """Fronts, what was delivered, and the time of the log."""

    __slots__ = ("frontier", "fronts", "log_ms", "margin_ms", "shown", "timed_ms")

    total = False

    def __init__(self, group: Group) -> None:
        super().__init__(group)
        self.margin_ms = margin_ms(group.options)
        """m_i may precede m_j only where clock_i <= clock_j + margin; None: the physical clock proves nothing."""
        self.timed_ms = timed_ms(group.options)
        """How long after the clock of a message, in the log's time, a message that precedes it may still come, that
        very millisecond included; None: for ever."""
        self.log_ms = UNKNOWN
        """The time of the log, as far as this group's own records showed it."""
        self.shown: dict[Id, int] = {}
        """What the `clock_ms` of a queued message counts as, where it stepped back."""
        self.fronts = Fronts(self.floors)
        self.frontier = Frontier()

    # ── judging ───────────────────────────────────────────────────────────────────────────────────────────────────

    def too_late(self, id_: Id, message: Message) -> Refusal | None:
        time: int = message.time  # type: ignore[assignment]
        delivered = self.frontier.latest_after(time)
        if delivered is not None and (
            self.margin_ms is None or self._counts_as(id_[:2], message) <= delivered + self.margin_ms
        ):
            return Refusal(codes.LATE, "It precedes, by both clocks, a message that is already delivered.")
        return None

    def _counts_as(self, who: Who, message: Message) -> int:
        """What the clock of a new message counts as: no less than what its sender has shown."""
        return max(message.clock_ms, self.fronts.clocks.get(who, UNKNOWN))  # type: ignore[type-var, return-value]

    # ── members and entering ──────────────────────────────────────────────────────────────────────────────────────

    def begin(self, name: str, epoch: int, floor: int) -> None:
        super().begin(name, epoch, floor)
        self.fronts.clocks[name, epoch] = UNKNOWN
        self.fronts.move((name, epoch))

    def end(self, name: str, epoch: int) -> None:
        super().end(name, epoch)
        self.fronts.clocks.pop((name, epoch), None)
        self.fronts.move((name, epoch))

    def keep_promise(self, name: str, epoch: int, time: int, clock_ms: int) -> None:
        super().keep_promise(name, epoch, time, clock_ms)
        who = name, epoch
        fronts = self.fronts
        if who in fronts.clocks:
            fronts.clocks[who] = max(fronts.clocks[who], clock_ms)
            if who not in fronts.queues:
                fronts.move(who)

    def tells_more(self, record: Heartbeat) -> bool:
        if super().tells_more(record):
            return True
        who: Who = (record.sender, record.epoch)
        clocks = [self.fronts.clocks[who], *(clock for _, clock in self.promises.get(who, {}).values())]
        return record.clock_ms is not UNSET and record.clock_ms > max(clocks)

    def enqueue(self, held: HeldMessage, key: Key) -> None:
        assert held.message is not None
        who = held.id[:2]
        clock: int = held.message.clock_ms  # type: ignore[assignment]
        clocks = self.fronts.clocks
        if clock < clocks[who]:
            clock = self.shown[held.id] = clocks[who]
        clocks[who] = clock
        self.fronts.push(who, key[0], clock, held)

    def relink(self, held: Iterable[HeldMessage]) -> None:
        fronts = self.fronts
        fronts.clear()
        for one in sorted(held, key=lambda one: one.id):
            if one.watch == QUEUED and one.message is not None:
                entry = one.message.time, self._shown(one), one
                fronts.queues.setdefault(one.id[:2], deque()).append(entry)  # type: ignore[arg-type]
        for who in dict.fromkeys((*self.floors, *fronts.queues)):
            fronts.move(who)

    # ── leaving ───────────────────────────────────────────────────────────────────────────────────────────────────

    def next_ready(self, now_ms: int) -> HeldMessage | None:
        """The least by key of those that are ready together.

        Fronts with less time precede a message unless their clock is later by more than the margin. Once the least
        clock of all that is queued is not below what was passed by that much, nothing further on is free; with clocks
        that rise with the times this is so at the first or second front.
        """
        fronts = self.fronts
        least = fronts.least_clock()
        if least is None:
            return None
        overdue_ms = None if self.timed_ms is None else max(now_ms, self.log_ms) - self.timed_ms
        if overdue_ms is not None and least >= overdue_ms:
            overdue_ms = None
        passed = BEYOND  # the least clock of the fronts with less time
        passed_surely = BEYOND  # the same without floors of members of whom nothing is on its way
        at = 0
        by_time, front_of, queues = fronts.by_time, fronts.front_of, fronts.queues
        for time, name, epoch in fronts.firsts:
            while by_time[at][0] < time:
                who = by_time[at][1:]
                clock = front_of[who][1]
                passed = min(passed, clock)
                if overdue_ms is not None and (who in queues or self.on_its_way(*who, 1)):
                    passed_surely = min(passed_surely, clock)
                if not self._is_free(least, passed, passed_surely, overdue_ms):
                    return None
                at += 1
            who = name, epoch
            if self._is_free(front_of[who][1], passed, passed_surely, overdue_ms):
                return queues[who][0][2]
        return None

    def _is_free(self, clock: int, passed: int, passed_surely: int, overdue_ms: int | None) -> bool:
        """Whether a message with this clock goes before all that was passed."""
        if self.margin_ms is None:
            return passed == BEYOND
        clock_max = clock + self.margin_ms
        return clock_max < passed or (overdue_ms is not None and clock < overdue_ms and clock_max < passed_surely)

    def delivered(self, one: HeldMessage) -> None:
        super().delivered(one)
        who = one.id[:2]
        time, clock, _ = self.fronts.queues[who][0]
        self.frontier.add(time, clock)
        self._take_first(who)

    def _take_first(self, who: Who) -> None:
        """Take the first message out of a source's queue, and the ones behind it that are held no longer."""
        fronts = self.fronts
        queue = fronts.queues[who]
        self.shown.pop(queue.popleft()[2].id, None)
        held = self.group.held
        while queue and held.get(queue[0][2].id) is not queue[0][2]:
            queue.popleft()
        if not queue:
            del fronts.queues[who]
        fronts.move(who)

    def frees_something(self, one: HeldMessage, now_ms: int) -> bool:
        who = one.id[:2]
        if who in self.fronts.queues:
            return self.next_ready(now_ms) is not None
        assert one.message is not None
        time: int = one.message.time  # type: ignore[assignment]
        self.fronts.push(who, time, self._counts_as(who, one.message), one)
        free = self.next_ready(now_ms)
        self.fronts.drop(who)
        return free is not None

    def withdrawn(self, held: HeldMessage) -> None:
        who = held.id[:2]
        if held.watch == QUEUED and self.fronts.first(who) is held:
            self._take_first(who)
        self.shown.pop(held.id, None)

    def advance(self, offset: int, now_ms: int) -> None:
        self.log_ms = max(self.log_ms, now_ms)
        self.release_ready(offset, now_ms)

    def deadline_ms(self) -> int | None:
        least = None if self.timed_ms is None else self.fronts.least_clock()
        return None if least is None else least + self.timed_ms + 1  # type: ignore[operator]

    # ── looking and keeping ───────────────────────────────────────────────────────────────────────────────────────

    def missing(self, one: HeldMessage, look: Look) -> list[Id]:
        return super().missing(self._foremost(one), look)

    def awaited_by(self, one: HeldMessage) -> Iterator[Who]:
        return super().awaited_by(self._foremost(one))

    def _foremost(self, held: HeldMessage) -> HeldMessage:
        """The message that shows who is waited for: this one, or where no floor holds it back, the one before it."""
        if held.watch != QUEUED:
            return held
        fronts = self.fronts
        floors = Earliest(sorted((floor, fronts.clocks[who]) for who, floor in self.floors.items()))
        firsts = Earliest([(time, fronts.queues[name, epoch][0][1]) for time, name, epoch in fronts.firsts])
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

    def _least_before(self, one: HeldMessage, firsts: Earliest) -> HeldMessage | None:
        """The least of the queued messages that precede this one; the first of each source stands for all."""
        assert one.message is not None
        who = one.id[:2]
        at = firsts.first_with(self._clock_max(one))
        if at < self.fronts.number_of(who):
            time, name, epoch = self.fronts.firsts[at]
            if time < one.message.time:  # type: ignore[operator]
                return self.fronts.first((name, epoch))
        first = self.fronts.first(who)
        return None if first is one else first

    def blocks(self, one: HeldMessage, name: str, epoch: int) -> bool:
        assert one.message is not None
        if self.floors[name, epoch] >= one.message.time:  # type: ignore[operator]
            return False
        return self.margin_ms is None or self.fronts.clocks[name, epoch] <= self._shown(one) + self.margin_ms

    def _shown(self, one: HeldMessage) -> int:
        """What the clock of a queued message counts as."""
        if one.id in self.shown:
            return self.shown[one.id]
        assert one.message is not None
        return one.message.clock_ms  # type: ignore[return-value]

    def dump(self) -> Any:
        clocks = [[name, epoch, clock] for (name, epoch), clock in self.fronts.clocks.items()]
        shown = [[*id_, clock] for id_, clock in self.shown.items()]
        return [*super().dump(), clocks, shown, self.frontier.points, self.log_ms]

    def load(self, dumped: Any) -> None:
        super().load(dumped)
        for name, epoch, clock in dumped[5]:
            self.fronts.clocks[name, epoch] = clock
        self.shown = {(name, epoch, seq): clock for name, epoch, seq, clock in dumped[6]}
        self.frontier.points = [(time, clock) for time, clock in dumped[7]]
        self.log_ms = dumped[8]
        self.relink(())  # for a group that holds nothing; for the others it is called again with what is held
