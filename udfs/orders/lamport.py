"""`lamport`: one sequence by (time, sender), whatever the arrival (lecture notes, 3.2; S_b, section II).

Guarantee: messages are delivered by their linear (Lamport) time, those of the same time by the name of their sender, so
the sequence is a function of the messages and not of the way they took; it contains causality where members keep their
clocks. A message waits until nobody can say anything smaller any more. With loss, everybody waits behind the gap, until
the message comes or is abandoned; behind a silent member too, until its heartbeat or its eviction.
Stamp: `time`; and heartbeats: "my next seq is n, and no later message of mine carries less than `time`".

    members A, B, C, D
    arrives C:1 time 1            -> held: A, B and D may still say something of time 1
    arrives C:2 time 2            -> held
    arrives B:1 time 3            -> held
    arrives A:1 time 3            -> held
    heartbeat D, next 1, time 4   -> C:1, C:2, A:1, B:1       A before B: the same time, the smaller name

Rulings: no acknowledgements, which the notes ask of everybody for every message: any later record of a member is one,
provided it carries a larger clock and comes in the member's order, which the notes leave unsaid; the test is by (floor,
name) and not by the floor alone, which would wait longer than it must; ties are not arbitrary but by name; the receive
rule is max(own, received + 1), for with max(own, received) a reply may carry the time of what it answers.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from precede.udfs.analysis.relation import InSequence, Relation
from precede.udfs.engine.held import HeldMessage
from precede.udfs.orders.stamps import Stamps
from precede.udfs.records.messages import Id, Message, Options
from precede.udfs.release.by_clocks import Clocked


class Lamport(Clocked):
    """Lets the least message go when every floor is above it."""

    __slots__ = ()

    name = "lamport"
    after_seed = "001, 3.2; 000, II"

    def next_ready(self, now_ms: int) -> HeldMessage | None:
        top = self.top()
        if top is None:
            return None
        lowest = self.floors.lowest()
        return top[1] if lowest is None or lowest > top[0][:3] else None

    @classmethod
    def relation(cls, messages: Sequence[Message], options: Options) -> Relation:
        return InSequence(messages)

    @classmethod
    def stamps_of(cls, name: str, epoch: int = 0) -> "LamportStamps":
        return LamportStamps(name, epoch)


BEATS_MAX = 10_000
"""How far heartbeats alone may move a clock: far less than the window, or who comes back after a long silence could not
believe the time of those who stayed."""


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

        It is an event of this clock as a message is, so that it promises more than those before: what promises the same
        could be a copy, and is no sign of life.
        """
        if self.time < self.moved + BEATS_MAX:
            self.time += 1
        return {**super().heartbeat(), "time": self.time}

    def hear(self, time: int) -> None:
        """Somebody has said something at this time."""
        self.time = self.moved = max(self.time, time + 1)

    def observe(self, record: Mapping[str, Any]) -> None:
        super().observe(record)
        if "time" in record:
            self.hear(record["time"])

    def dump(self) -> dict[str, Any]:
        return {**super().dump(), "time": self.time}

    def load(self, dumped: Mapping[str, Any]) -> None:
        super().load(dumped)
        # An order that is learned late takes over what stamps without a clock have kept.
        self.time = self.moved = max(self.time, dumped.get("time", 1))
