"""The fronts where two clocks decide (`two_clock`): of each source the least that may still be delivered.

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
from heapq import heapify, heappop, heappush
from itertools import accumulate
from operator import neg

from precede.udfs.engine.held import HeldMessage
from precede.udfs.records.messages import SEQ_MAX, Who
from precede.udfs.release.floors import Floors

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
