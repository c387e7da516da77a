"""What a group by clocks may release at each step of the raw log: what no member can still precede.

A member's next message has at least its last time + 1, or what its heartbeats promise. Only what has come without a gap
counts. In `two_clock` the physical clock proves the same, and where the greatest delay is known, the log's time does.
"""

from bisect import insort
from collections.abc import Callable

from msgspec import UNSET

from precede.check.group import GroupSequence
from precede.check.guarantees import NO_CLOCK, TwoClockOrder
from precede.check.membership import NO_END
from precede.check.release import NextJudge, Ready, Waiting
from precede.check.witness import Shown
from precede.udfs.records.messages import Heartbeat, Id, Join, Who

Key = tuple[int, str, int, int]
"""(time, sender, epoch, seq)"""


class _Clock:
    """One sender in one epoch: what its next message can show."""

    __slots__ = ("beats", "count", "floor", "has_floor", "shown")

    def __init__(self) -> None:
        self.count = 0
        """How many of its seqs have entered, without a gap."""
        self.has_floor = False
        self.floor = 0
        self.shown = NO_CLOCK
        self.beats: list[tuple[int, int, int]] = []
        """Heartbeats that come before what they cover: the next seq, a time, a clock."""


class ClockJudge(NextJudge):
    """`lamport` and `two_clock`."""

    def __init__(self, sequence: GroupSequence, highest: dict[Who, int]) -> None:
        super().__init__(sequence)
        self._highest = highest
        self._clocks: dict[Who, _Clock] = {}
        self._waiting: dict[Id, Waiting] = {}
        """What has arrived and has not entered."""
        self._queue: list[tuple[Key, int, Waiting]] = []
        """What has entered, sorted: only the clocks hold it."""
        self._stand_ins: list[Waiting] = []
        self._last: Key | None = None
        self._known: dict[Who, int] = {}
        """Up to which seq something of a sender is known to exist, by its heartbeats."""
        self._blocked_by: Who | None = None
        self._blocked_floor: tuple[int, int] = (0, 0)
        self.log_ms = NO_CLOCK
        self.now_ms = NO_CLOCK
        self._two = isinstance(sequence.guarantee, TwoClockOrder)
        self.configure()

    def configure(self) -> None:
        """The group's options are known."""
        options = self.sequence.membership.options
        self._margin: int | None = None
        self._timed: int | None = None
        if options.accuracy_ms is not UNSET:
            least = options.delay_min_ms or 0
            self._margin = 2 * options.accuracy_ms - least
            if options.delay_max_ms is not UNSET:
                self._timed = 4 * options.accuracy_ms - least + options.delay_max_ms

    @property
    def has_timed_release(self) -> bool:
        return self._two and self._timed is not None

    def begin_step(self, now_ms: int) -> None:
        self.log_ms = self.now_ms = max(self.log_ms, now_ms)

    def begin_tick(self, now_ms: int) -> None:
        """Only time passes."""
        self.now_ms = max(self.log_ms, now_ms)

    # ── what arrives ──────────────────────────────────────────────────────────────────────────────────────────────

    def created(self, members: list[str]) -> None:
        for name in members:
            self._begin((name, 0), 1)

    def joining(self, record: Join) -> None:
        """A join takes effect: from here on its messages are waited for."""
        time = 0 if record.time is UNSET else record.time
        self._begin((record.sender, record.epoch), max(time, self._last[0] + 1 if self._last else 1))

    def _begin(self, who: Who, floor: int) -> None:
        clock = self._clock(who)
        clock.floor = max(floor, clock.floor)
        clock.has_floor = True
        self._blocked_by = None

    def _clock(self, who: Who) -> _Clock:
        clock = self._clocks.get(who)
        if clock is None:
            clock = self._clocks[who] = _Clock()
        return clock

    def its_turn(self, one: Id) -> bool:
        """Whether a message of this id would enter now."""
        who = (one[0], one[1])
        clock = self._clocks.get(who)
        return self.sequence.membership.is_in(who) and one[2] == (0 if clock is None else clock.count) + 1

    def first_time(self, who: Who, time: int, at: Shown) -> list[tuple[Who, int]]:
        """A valid time of a sender. The first one in an open group makes it a member, and ends its older epochs."""
        clock = self._clock(who)
        if clock.has_floor:
            return []
        membership = self.sequence.membership
        last = membership.members.get(who[0])
        above = self._last[0] + 1 if self._last and last is not None and last[0] < who[1] else 0
        self._begin(who, max(time, above))
        if last is None or last[0] < who[1]:
            ended = membership.end_older(*who, at, self._highest)
            membership.members[who[0]] = (who[1], True)
            return ended
        return []

    def heartbeat(self, record: Heartbeat) -> None:
        """A promise about what follows; it counts once everything before it is there."""
        who = (record.sender, record.epoch)
        clock = self._clock(who)
        time = 0 if record.time is UNSET else record.time
        shown = NO_CLOCK if record.clock_ms is UNSET else record.clock_ms
        self._known[who] = max(self._known.get(who, 0), record.seq - 1)
        clock.beats.append((record.seq, time, shown))
        self._count_beats(clock)

    def _count_beats(self, clock: _Clock) -> None:
        left = []
        for beat in clock.beats:
            if beat[0] - 1 <= clock.count:
                clock.floor, clock.shown = max(clock.floor, beat[1]), max(clock.shown, beat[2])
            else:
                left.append(beat)
        clock.beats = left
        self._blocked_by = None

    def add(self, one: Waiting) -> None:
        if one.message is None:
            self._stand_ins.append(one)
        self._waiting[one.id] = one
        self._clock(one.who)

    def enter(self, is_refused: Callable[[Waiting], bool]) -> list[Waiting]:
        """Let everything enter whose turn it is; returns what was refused at that moment, by its dead letter."""
        gone: list[Waiting] = []
        moved = True
        while moved and self._waiting:
            moved = False
            for one in list(self._waiting.values()) if len(self._waiting) < 4 else self._in_turn():
                clock = self._clock(one.who)
                if one.id[2] != clock.count + 1:
                    continue
                if one.message is None:
                    del self._waiting[one.id]
                    self._enter_stand_in(clock)
                elif not self.sequence.membership.is_in(one.who):
                    continue
                else:
                    del self._waiting[one.id]
                    if is_refused(one):
                        gone.append(one)
                        continue
                    self._enter(one, clock)
                moved = True
        return gone

    def _in_turn(self) -> list[Waiting]:
        """What may enter now, without looking at everything that waits."""
        ids = [(*who, clock.count + 1) for who, clock in self._clocks.items()]
        return [self._waiting[id_] for id_ in ids if id_ in self._waiting]

    def _enter_stand_in(self, clock: _Clock) -> None:
        clock.count += 1
        self._count_beats(clock)

    def _enter(self, one: Waiting, clock: _Clock) -> None:
        message = one.message
        assert message is not None
        time = 0 if message.time is UNSET else message.time
        shown = NO_CLOCK if message.clock_ms is UNSET else message.clock_ms
        one.clock = clock.shown = max(shown, clock.shown)
        clock.count += 1
        clock.floor = max(clock.floor, time + 1)
        if clock.beats:
            self._count_beats(clock)
        if self._blocked_by == one.who:
            self._blocked_by = None
        insort(self._queue, ((time, *one.id), one.clock, one), key=_key)
        guarantee = self.sequence.guarantee
        if isinstance(guarantee, TwoClockOrder):
            guarantee.clocks[one.id] = one.clock

    # ── what may go ───────────────────────────────────────────────────────────────────────────────────────────────

    def next(self) -> Ready | None:
        for one in self._stand_ins:
            previous = (*one.who, one.id[2] - 1)
            if not one.gone and (one.id[2] == 1 or previous in self.sequence.settled):
                return one, None
        if not self._queue:
            return None
        if not self._two:
            key, clock, first = self._queue[0]
            return None if self._is_blocked(key, clock) else (first, None)
        return self._next_by_both()

    def _next_by_both(self) -> Ready | None:
        least: int | None = None  # the smallest clock of what has a smaller time
        at_time: int | None = None
        last_time: int | None = None
        senders: set[Who] = set()
        for key, clock, one in self._queue:
            if key[0] != last_time:
                if at_time is not None:
                    least = at_time if least is None else min(least, at_time)
                at_time, last_time = None, key[0]
            precedes = least is not None and (self._margin is None or least <= clock + self._margin)
            if not precedes and one.who not in senders and not self._is_blocked(key, clock):
                return one, None
            senders.add(one.who)
            at_time = clock if at_time is None else min(at_time, clock)
        return None

    def _is_blocked(self, key: Key, clock: int) -> bool:
        """Whether some member may still say something that comes before."""
        by = self._blocked_by
        if by is not None and by in self._clocks and self._blocks(by, self._clocks[by], key, clock):
            return True
        for who, member in self._clocks.items():
            if self._blocks(who, member, key, clock):
                self._blocked_by = who
                return True
        return False

    def _blocks(self, who: Who, member: _Clock, key: Key, clock: int) -> bool:
        if not member.has_floor or member.count >= self.sequence.membership.fence_of(who):
            return False
        if not self._two:
            return (member.floor, *who) <= key[:3]
        if member.floor >= key[0] or (self._margin is not None and member.shown > clock + self._margin):
            return False
        if self._timed is not None and self.now_ms > clock + self._timed:
            return self._has_gap(who, member)
        return True

    def _has_gap(self, who: Who, member: _Clock) -> bool:
        """Whether something of this member is known to be on its way."""
        fence = self.sequence.membership.fence_of(who)
        known = max(self._highest.get(who, 0), self._known.get(who, 0)) if fence >= NO_END else fence
        settled = self.sequence.settled
        return any(
            (*who, seq) not in self._waiting and (*who, seq) not in settled
            for seq in range(member.count + 1, known + 1)
        )

    # ── what goes ─────────────────────────────────────────────────────────────────────────────────────────────────

    def delivered(self, one: Waiting, place: str | None) -> None:
        if one.message is not None:
            key = (0 if one.message.time is UNSET else one.message.time, *one.id)
            self._last = key if self._last is None else max(self._last, key)
        self.remove(one)

    def remove(self, one: Waiting) -> None:
        super().remove(one)
        if one.message is None:
            self._stand_ins = [other for other in self._stand_ins if other is not one]
        if self._waiting.get(one.id) is one:
            del self._waiting[one.id]
        for at, (_, _, other) in enumerate(self._queue):
            if other is one:
                del self._queue[at]
                return


def _key(entry: tuple[Key, int, Waiting]) -> Key:
    return entry[0]
