"""`two_clock` with members that keep the promises of `create` about clocks and delays: none is refused.

True time is known here. Each clock, including the log's, is wrong by at most the accuracy, and the delay of each record
is between the least and the greatest.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from random import Random
from typing import Any, NamedTuple

import pytest

from precede.udfs.holdback import Holdback
from precede.udfs.orders.two_clock import TwoClock
from tests.kernel.effort import seeds
from tests.kernel.feeding import Id, Tale, id_of, parsed
from tests.simulation import GROUP, created, heartbeat

START_MS = 1_000


class Promise(NamedTuple):
    """The options of `create` about clocks and delays."""

    accuracy: int
    least: int
    most: int

    @property
    def options(self) -> dict[str, Any]:
        return {"accuracy_ms": self.accuracy, "delay_min_ms": self.least, "delay_max_ms": self.most}

    @property
    def released_after_ms(self) -> int:
        """The least time after its `clock_ms` for which a message is held for a silent member."""
        return 4 * self.accuracy - self.least + self.most


class Entry(NamedTuple):
    """One record of the log, and the log's time."""

    value: bytes
    key: bytes | None
    now_ms: int


@dataclass
class Play:
    """What the members did, and the log."""

    log: list[Entry] = field(default_factory=list)
    past: dict[Id, frozenset[Id]] = field(default_factory=dict)
    """For each message, all that its sender had sent or received before."""
    stamps: dict[Id, tuple[int, int]] = field(default_factory=dict)
    """`time` and `clock_ms` of each message."""
    steps_back: set[str] = field(default_factory=set)
    """Members whose clock may step back; then its latest value counts, which a heartbeat may have shown."""


class Member:
    """A member with its own clock."""

    def __init__(self, random: Random, name: str, promise: Promise) -> None:
        self.random, self.name, self.accuracy = random, name, promise.accuracy
        self.stamps = TwoClock.stamps_of(name)
        self.known: set[Id] = set()
        self.error = self._an_error()
        self.is_steady, self.steps_back = random.choice([(True, False), (False, False), (False, True)])
        self.last = 0

    def _an_error(self) -> int:
        return self.random.choice([-self.accuracy, self.accuracy, self.random.randint(-self.accuracy, self.accuracy)])

    def clock(self, now: int) -> int:
        """What its clock shows; an unsteady clock has a different error each time."""
        shown = now + (self.error if self.is_steady else self._an_error())
        self.last = shown if self.steps_back else max(shown, self.last)
        return self.last

    def speak(self, play: Play, now: int) -> dict[str, Any]:
        stamp = {"group": GROUP, **self.stamps.stamp(after=[], to=[], clock_ms=self.clock(now))}
        id_ = id_of(stamp)
        play.past[id_] = frozenset(self.known)
        play.stamps[id_] = stamp["time"], stamp["clock_ms"]
        self.known.add(id_)
        return stamp


def played(random: Random, promise: Promise, names: str) -> Play:
    """Members that send for a while, some rarely, with ticks between; records of one moment in any order."""
    play = Play()
    members = [Member(random, name, promise) for name in names]
    play.steps_back = {one.name for one in members if one.steps_back}
    log_error = random.choice([0, -promise.accuracy, promise.accuracy])
    duration = random.choice([10, 60, 200])
    number = count()
    events: list[tuple[int, float, int, str, Any]] = []

    def later(now: int, what: str, subject: Any) -> None:
        heappush(events, (now, random.random(), next(number), what, subject))

    def delay() -> int:
        return random.choice([promise.least, promise.most, random.randint(promise.least, promise.most)])

    play.log.append(Entry(created("two_clock", names, **promise.options), GROUP.encode(), START_MS + log_error))
    talkative = members[: random.randint(1, len(members))]
    for _ in range(random.randint(2, 14)):
        who = random.choice(talkative if random.random() < 0.8 else members)
        later(START_MS + random.randint(0, duration), "beat" if random.random() < 0.2 else "speak", who)
    tick_share = random.choice([0.0, 0.2, 1.0])
    for now in range(START_MS, START_MS + duration + promise.most + max(0, promise.released_after_ms)):
        if random.random() < tick_share:
            later(now, "arrive", (b'{"kind":"tick"}', None))
    while events:
        now, _, _, what, subject = heappop(events)
        if what == "speak":
            stamp = subject.speak(play, now)
            arrives = now + delay()
            record = json.dumps(stamp).encode(), GROUP.encode()
            later(arrives, "arrive", record)
            if random.random() < 0.1:  # a copy may come at any time
                later(arrives + random.randint(1, 2 * promise.most + 1), "arrive", record)
            for other in members:
                if other is not subject and random.random() < 0.7:
                    later(now + delay(), "hear", (other, stamp, frozenset(subject.known)))
        elif what == "hear":
            other, stamp, known = subject
            other.stamps.observe(stamp)
            other.known |= known
        elif what == "beat":
            later(now + delay(), "arrive", (heartbeat(subject.stamps, subject.clock(now)), GROUP.encode()))
        else:
            value, key = subject
            play.log.append(Entry(value, key, now + log_error))
    last = play.log[-1].now_ms + 2 * promise.accuracy  # no clock of a message shows more
    play.log.append(Entry(b'{"kind":"tick"}', None, max(last, last + promise.released_after_ms + 1)))
    return play


def drawn_promise(random: Random) -> Promise:
    accuracy = random.choice([0, 1, 2, 5, 20])
    least = random.choice([0, 0, 1, 2 * accuracy, 30])
    return Promise(accuracy, least, least + random.choice([0, 1, 5, 40]))


def precedes(first: tuple[int, int], second: tuple[int, int], promise: Promise) -> bool:
    """The relation, of two sources."""
    return first[0] < second[0] and second[1] - first[1] >= promise.least - 2 * promise.accuracy


def test_no_record_of_honest_timely_members_is_late_and_all_is_delivered_in_an_order_that_the_clocks_allow() -> None:
    timed = 0
    for seed in seeds(1_500):
        random = Random(seed)
        promise = drawn_promise(random)
        play = played(random, promise, "ABCD"[: random.randint(2, 4)])
        kernel = Holdback()
        for offset, entry in enumerate(play.log):
            kernel.receive(entry.value, entry.key, 0, offset, entry.now_ms)
        assert kernel.dead == [], (seed, promise)
        delivered = [one for one in parsed(kernel.ordered) if "kind" not in one]
        sequence = [id_of(one) for one in delivered]
        assert sorted(sequence) == sorted(play.stamps), (seed, promise)
        for at, id_ in enumerate(sequence):
            assert play.past[id_] <= set(sequence[:at]), (seed, promise, id_)
            for before in sequence[:at]:
                if before[0] != id_[0] and not {before[0], id_[0]} & play.steps_back:
                    assert not precedes(play.stamps[id_], play.stamps[before], promise), (seed, before, id_)
        timed += sum(play.log[one["released_offset"]].key is None for one in delivered[:-1])
    assert timed > 1_000, "time releases messages in these histories"


@pytest.mark.parametrize(
    "promise",
    [Promise(*row) for row in [(0, 0, 0), (0, 0, 7), (1, 0, 5), (3, 2, 9), (10, 0, 30), (5, 14, 40)]],
    ids=str,
)
@pytest.mark.parametrize("comes", [True, False])
def test_the_last_moment_at_which_a_predecessor_may_come_is_waited_for_and_no_longer(
    promise: Promise, comes: bool
) -> None:
    said = START_MS
    shown = said - promise.accuracy  # A's clock is behind by the maximum
    before = shown + 2 * promise.accuracy - promise.least  # the last clock of B that precedes this
    arrives = before + promise.accuracy + promise.most  # B's clock is behind as well, and its record takes longest
    last = arrives + promise.accuracy  # the log's clock is ahead
    assert last == shown + promise.released_after_ms
    tale = Tale().take(kind="create", options={"order": "two_clock", **promise.options}, members=["A", "B"])

    def at(now: int) -> Tale:
        tale.waited_ms = now - tale.offset * 10
        return tale

    assert at(said + promise.least + promise.accuracy).take(sender="A", seq=1, time=2, clock_ms=shown).out == []
    assert at(last).tick().out == [], "a record of this very millisecond may still come"
    if comes:
        assert at(last).take(sender="B", seq=1, time=1, clock_ms=before).out == ["B1", "A1"]
        assert tale.dead == []
    else:
        assert at(last + 1).tick().out == ["A1"]
