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
max(own, received + 1). The timed release is a watermark of 2 accuracy + delay_max.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Any

from msgspec import UNSET

from udfs import codes
from udfs.codes import Refusal
from udfs.floors import Floors, Who
from udfs.held import QUEUED, HeldMessage
from udfs.messages import SEQ_MAX, Id, Message, Options
from udfs.orders.clocked import UNKNOWN, Clocked, Key
from udfs.orders.lamport import LamportPublisher
from udfs.relation import ByTwoClocks, Relation

if TYPE_CHECKING:
    from udfs.group import Group


class TwoClock(Clocked):
    """Lets a message go when nothing that came precedes it and nothing that may come can."""

    __slots__ = ("clocks", "deadlines", "frontier", "log_ms", "margin_ms", "ranked", "shown", "timed_ms", "tried")

    name = "two_clock"
    after_seed = "002"
    total = False

    def __init__(self, group: "Group") -> None:
        super().__init__(group)
        options = group.options
        accuracy, most = options.accuracy_ms, options.delay_max_ms
        self.margin_ms = _margin_ms(options)
        """m_i may precede m_j only where clock_i <= clock_j + margin; None: the physical clock proves nothing."""
        self.timed_ms: int | None = None
        """So long after its clock nothing can come any more that precedes a message; None: never."""
        if accuracy is not UNSET and most is not UNSET:  # the reader let only integers through
            self.timed_ms = 2 * accuracy + most  # type: ignore[assignment]
        self.log_ms = UNKNOWN
        """The time of the log, as far as this group's own records showed it."""
        self.clocks = Floors()
        """Of each member and epoch the least `clock_ms` that its next message counts as."""
        self.shown: dict[Id, int] = {}
        """What the `clock_ms` of a queued message counts as, where it stepped back."""
        self.ranked: list[tuple[Key, int, HeldMessage]] = []
        """The queued messages by key, each with its clock."""
        self.deadlines: list[tuple[int, Key]] = []
        """The clocks of the queued messages as a heap, with some that have gone."""
        self.tried: tuple[Who, int, int] | None = None
        """While a message is only tried: its sender, and the floor and clock that it would have."""
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

    # ── floors ────────────────────────────────────────────────────────────────────────────────────────────────────

    def begin(self, name: str, epoch: int, floor: int) -> None:
        super().begin(name, epoch, floor)
        self.clocks.begin((name, epoch), UNKNOWN)

    def end(self, name: str, epoch: int) -> None:
        super().end(name, epoch)
        self.clocks.pop((name, epoch), None)

    def keep_promise(self, name: str, epoch: int, time: int, clock_ms: int) -> None:
        super().keep_promise(name, epoch, time, clock_ms)
        if (name, epoch) in self.clocks:
            self.clocks[name, epoch] = max(self.clocks[name, epoch], clock_ms)

    # ── the queue ─────────────────────────────────────────────────────────────────────────────────────────────────

    def queued(self, held: HeldMessage, key: Key) -> None:
        assert held.message is not None
        who = held.id[:2]
        clock: int = held.message.clock_ms  # type: ignore[assignment]
        if clock < self.clocks[who]:
            clock = self.shown[held.id] = self.clocks[who]
        self.clocks[who] = clock
        self._rank(held, key, clock)

    def _rank(self, held: HeldMessage, key: Key, clock: int) -> None:
        insort(self.ranked, (key, clock, held), key=_first)
        heappush(self.deadlines, (clock, key))

    def relink(self, held: Iterable[HeldMessage]) -> None:
        self.ranked = []
        for one in held:
            if one.watch == QUEUED and one.message is not None:
                self.ranked.append(((one.message.time, *one.id), self._shown(one), one))  # type: ignore[arg-type]
        self.ranked.sort(key=_first)
        self.deadlines = [(clock, key) for key, clock, _ in self.ranked]
        heapify(self.deadlines)

    def _at(self, key: Key) -> int | None:
        """Where in the queue the message of this key stands."""
        at = bisect_left(self.ranked, key, key=_first)
        return at if at < len(self.ranked) and self.ranked[at][0] == key else None

    def _least_clock(self) -> int:
        """The least clock of the queue."""
        while self.deadlines and self._at(self.deadlines[0][1]) is None:
            heappop(self.deadlines)
        tried = SEQ_MAX * 4 if self.tried is None else self.tried[2]
        return min(self.deadlines[0][0], tried) if self.deadlines else tried

    def next_ready(self, now_ms: int) -> HeldMessage | None:
        """By key, so that of those ready together the least goes first.

        What has less time precedes a message unless its clock is later by more than the margin: once the least clock of
        the whole queue is not below what was passed by that much, nobody further on is free.
        """
        now_ms = max(now_ms, self.log_ms)
        passed = beside = SEQ_MAX * 4  # the least clock of those with less time, and of those with the same
        time = UNKNOWN
        sources: set[Who] = set()
        for key, clock, one in self.ranked:
            who = (key[1], key[2])
            if key[0] > time:
                time, passed, beside = key[0], min(passed, beside), SEQ_MAX * 4
                if sources and (self.margin_ms is None or self._least_clock() + self.margin_ms >= passed):
                    return None
            free = self.margin_ms is None or clock + self.margin_ms < passed
            if free and who not in sources and not self._is_blocked(key, clock, now_ms):
                return one
            beside = min(beside, clock)
            sources.add(who)
        return None

    def _is_blocked(self, key: Key, clock: int, now_ms: int) -> bool:
        """Whether some member may still say something that precedes this message."""
        lowest = self.floors.lowest()
        if lowest is None or lowest[0] >= key[0]:
            return False
        if self.margin_ms is not None:
            latest = self.clocks.lowest()
            if latest is None or latest[0] > clock + self.margin_ms:
                return False
        # The two lowest are the likely ones; only where each is excused by its other clock must everybody be asked.
        if self._holds_back(lowest[1:], key, clock, now_ms):
            return True
        return any(self._holds_back(who, key, clock, now_ms) for who in self.floors)

    def _holds_back(self, who: Who, key: Key, clock: int, now_ms: int) -> bool:
        floor, shown = self.floors[who], self.clocks[who]
        if self.tried is not None and self.tried[0] == who:
            _, floor, shown = self.tried
        if floor >= key[0]:
            return False
        if self.margin_ms is not None and shown > clock + self.margin_ms:
            return False
        if self.timed_ms is not None and now_ms >= clock + self.timed_ms:
            return bool(self._gap(*who, 1))
        return True

    def delivered(self, one: HeldMessage) -> None:
        super().delivered(one)
        time, clock = self._take(one)
        frontier = self.frontier
        first = last = bisect_left(frontier, (time, UNKNOWN))
        if last < len(frontier) and frontier[last][1] >= clock:
            return
        if last < len(frontier) and frontier[last][0] == time:
            last += 1
        while first and frontier[first - 1][1] <= clock:
            first -= 1
        frontier[first:last] = [(time, clock)]

    def _take(self, one: HeldMessage) -> tuple[int, int]:
        """Take a message out of the queue; its time and clock."""
        assert one.message is not None
        key: Key = (one.message.time, *one.id)  # type: ignore[assignment]
        at = self._at(key)
        assert at is not None
        self.shown.pop(one.id, None)
        return key[0], self.ranked.pop(at)[1]

    def lets_go(self, one: HeldMessage, now_ms: int) -> bool:
        assert one.message is not None
        who = one.id[:2]
        time: int = one.message.time  # type: ignore[assignment]
        clock: int = max(one.message.clock_ms, self.clocks.get(who, UNKNOWN))  # type: ignore[type-var, assignment]
        ranked = ((time, *one.id), clock, one)
        self.tried = (who, time + 1, clock)
        insort(self.ranked, ranked, key=_first)
        free = self.next_ready(now_ms)
        self.ranked.remove(ranked)
        self.tried = None
        return free is not None

    def withdraw(self, held: HeldMessage) -> None:
        if held.watch == QUEUED:
            self._take(held)

    def saw(self, now_ms: int) -> None:
        self.log_ms = max(self.log_ms, now_ms)

    def deadline_ms(self) -> int | None:
        """From which time of the log on a tick may let something go."""
        if self.timed_ms is None or not self.ranked:
            return None
        return self._least_clock() + self.timed_ms

    def blocks(self, one: HeldMessage, name: str, epoch: int) -> bool:
        assert one.message is not None
        key: Key = (one.message.time, *one.id)  # type: ignore[assignment]
        return self._holds_back((name, epoch), key, self._shown(one), UNKNOWN)

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

    @classmethod
    def relation(cls, messages: Sequence[Message], options: Options) -> Relation:
        return ByTwoClocks(messages, _margin_ms(options))

    @classmethod
    def publisher(cls, name: str, epoch: int = 0) -> "TwoClockPublisher":
        return TwoClockPublisher(name, epoch)


def _margin_ms(options: Options) -> int | None:
    """How much later the clock of what precedes a message may be; None: the physical clock proves nothing."""
    if options.accuracy_ms is UNSET:
        return None
    least = 0 if options.delay_min_ms is UNSET else options.delay_min_ms
    return 2 * options.accuracy_ms - least  # type: ignore[return-value]


def _first(ranked: tuple[Key, int, HeldMessage]) -> Key:
    return ranked[0]


class TwoClockPublisher(LamportPublisher):
    """A linear clock, and the physical one the caller reads."""

    def fields(self, *, after: list[Id], to: list[str], clock_ms: int) -> dict[str, Any]:
        return {**super().fields(after=after, to=to, clock_ms=clock_ms), "clock_ms": clock_ms}

    def heartbeat(self, *, clock_ms: int = 0) -> dict[str, Any]:
        return {**super().heartbeat(), "clock_ms": clock_ms}
