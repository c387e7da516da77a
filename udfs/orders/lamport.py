"""`lamport`: one sequence by (time, sender), whatever the arrival (lecture notes, 3.2; S_b, section II).

Guarantee: messages are delivered by their linear (Lamport) time, and those of the same time by the name of their
sender. So the sequence is a function of the messages and not of the way they took; it contains causality where members
keep their clocks. A message waits until no member can say anything smaller any more. With loss, everything waits behind
the gap until the message comes or is abandoned; it also waits behind a silent member, until its heartbeat or its
eviction.
Stamp: `time`; and heartbeats: "my next seq is n, and no later message of mine carries less than `time`".

    members A, B, C, D
    arrives C:1 time 1            -> held: A, B and D may still say something of time 1
    arrives C:2 time 2            -> held
    arrives B:1 time 3            -> held
    arrives A:1 time 3            -> held
    heartbeat D, next 1, time 4   -> C:1, C:2, A:1, B:1       A before B: the same time, the smaller name

Rulings: there are no acknowledgements, which the notes ask of every member for every message: any later record of a
member is one, provided it carries a larger clock and comes in the member's order, which the notes leave unsaid; the
test is by (floor, name) and not by the floor alone, which would wait longer than it must; ties are not arbitrary but by
name; the receive rule is max(own, received + 1), because with max(own, received) a reply may carry the time of what it
answers.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from msgspec import UNSET

from precede.udfs import codes
from precede.udfs.codes import Refusal
from precede.udfs.engine.held import HeldMessage, Watch
from precede.udfs.orders.order import Order, Stamps
from precede.udfs.orders.relation import InSequence, Relation
from precede.udfs.records.messages import Id, Message, Options
from precede.udfs.release.by_clocks import ByClocks, key_of


class LeastKey(ByClocks):
    """The rule: the least message goes when every floor is above it."""

    __slots__ = ()

    def next_ready(self, now_ms: int) -> HeldMessage | None:
        top = self.top()
        if top is None:
            return None
        lowest = self.floors.lowest()
        return top[1] if lowest is None or lowest > top[0][:3] else None

    def frees_something(self, one: HeldMessage, now_ms: int) -> bool:
        top = self.top()
        least = key_of(one) if top is None else min(key_of(one), top[0])
        others = (floor for floor in self.floors.items() if floor[0] != one.id[:2])
        return all((floor, *who) > least[:3] for who, floor in others)

    def blocks(self, one: HeldMessage, name: str, epoch: int) -> bool:
        return (self.floors[name, epoch], name, epoch) <= key_of(one)[:3]


class Lamport(Order):
    """A message waits for its sender's previous one, then until nothing smaller can come."""

    __slots__ = ()

    name = "lamport"
    paper = "lecture notes on message ordering, 3.2; Bhavanasi and Iyer, S_b, II"
    in_turn = True
    waits_for_members = True
    release_type: ClassVar[type[ByClocks]] = LeastKey
    release: ByClocks

    def fault(self, message: Message) -> Refusal | None:
        if message.time is UNSET:
            return Refusal(codes.MISSING_STAMP, f"The order {self.name} needs the field `time`: the linear clock.")
        if message.time < 0:
            return Refusal(codes.BAD_STAMP, f"`time` {message.time} is below 0, where no linear clock begins.")
        return None

    def poison(self, id_: Id, message: Message) -> Refusal | None:
        return self.release.too_far(message.time)  # type: ignore[arg-type]  # judged by `fault` before

    def wait(self, id_: Id, message: Message) -> Watch | Refusal | None:
        return self.release.wait(id_, message)

    @classmethod
    def relation(cls, messages: Sequence[Message], options: Options) -> Relation:
        return InSequence(messages)

    @classmethod
    def stamps_of(cls, name: str, epoch: int = 0) -> "LamportStamps":
        return LamportStamps(name, epoch)


BEATS_MAX = 10_000
"""How far heartbeats alone may move a clock. It is far less than the window: otherwise a member that comes back after a
long silence could not believe the time of those who stayed."""


class LamportStamps(Stamps):
    """A linear clock: `time` is what the next message will carry."""

    def __init__(self, name: str, epoch: int = 0) -> None:
        super().__init__(name, epoch)
        self.time = 1
        self.moved = 1
        """What the clock showed when a message moved it last."""

    def fields(self, *, after: list[Id], to: list[str], clock_ms: int) -> dict[str, Any]:
        time = self.time
        self.time = self.moved = time + 1
        return {"time": time}

    def heartbeat(self, *, clock_ms: int = 0) -> dict[str, Any]:
        """The promise this member can make now: no later message of it carries less.

        It is an event of this clock, as a message is, so that it promises more than the ones before: a heartbeat that
        promises the same could be a copy, and is no sign of life.
        """
        if self.time < self.moved + BEATS_MAX:
            self.time += 1
        return {**super().heartbeat(), "time": self.time}

    def catch_up(self, time: int) -> None:
        self.time = self.moved = max(self.time, time + 1)

    def keep_to(self, time: int) -> None:
        self.time = self.moved = min(self.time, time)

    def observe(self, record: Mapping[str, Any]) -> None:
        super().observe(record)
        if "time" in record:
            self.catch_up(record["time"])

    def dump(self) -> dict[str, Any]:
        return {**super().dump(), "time": self.time}

    def load(self, dumped: Mapping[str, Any]) -> None:
        super().load(dumped)
        # Where the order is learned late, these stamps take over from stamps that had no clock.
        self.time = self.moved = max(self.time, dumped.get("time", 1))
