"""The rule of `two_clock`: a message goes when nothing that came precedes it and nothing that may come can.

One message precedes another if its linear clock is less and its physical clock is not later by more than the margin.
So a message is free once every front with less time (fronts.py) has a physical clock beyond it by more than that. A
front that is only a floor does not count any more when the log's time shows that what precedes the message has had its
time to come, unless something of that member is known to be on its way.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

from msgspec import UNSET

from precede.udfs import codes
from precede.udfs.codes import Refusal
from precede.udfs.engine.group import Group
from precede.udfs.engine.held import HeldMessage
from precede.udfs.engine.search import Look
from precede.udfs.engine.state import QUEUED
from precede.udfs.records.messages import Heartbeat, Id, Message, Options, Who
from precede.udfs.release.by_clocks import UNKNOWN, ByClocks, Key
from precede.udfs.release.fronts import BEYOND, Earliest, Frontier, Fronts


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

    def lets_go(self, one: HeldMessage, now_ms: int) -> bool:
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
        self.let_go(offset, now_ms)

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
