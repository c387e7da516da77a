"""`causal_p2p`: causal among what a member was sent (lecture notes on message ordering, 2.2: SES).

Guarantee: of two messages to one destination the one that causally precedes comes first, and nothing waits for what was
sent to others. Every destination has a sequence of its own; between destinations there is no agreement. With loss, the
later messages to a destination wait, from senders that knew of the lost message, until it comes or is abandoned.
Stamp: `to`, the destinations; `seen`, the sender's vector clock with its own new seq; `sent`, of each member the
maximum of the stamps of all messages to it that the sender knows of.

    arrives b:1 to c, seen a:2 b:1, sent c:{a:1}   -> held for c, waits for a:1       (the figure of 2.2)
    arrives a:2 to b, seen a:2, sent c:{a:1}       -> a:2 at b
    arrives a:1 to c, seen a:1, sent nothing       -> a:1 at c, b:1 at c

Rulings: a sender counts before it stamps, because otherwise the first entry is empty and always met; the clock of a
destination grows when a message is delivered there, and not when it arrives; a member that gets a message learns that
all its destinations get it, because without these co-destinations multicast violates the guarantee; a member keeps the
entry of itself too, because others pass on that something is on its way to it: a to 2, then b from 2 to 3, then c from
3 to 2 may arrive last first.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import UNSET

from precede.udfs import codes
from precede.udfs.codes import Refusal
from precede.udfs.engine.held import Watch
from precede.udfs.engine.state import QUEUED
from precede.udfs.orders.causal import Causal, CausalStamps
from precede.udfs.orders.relation import BySentStamp, Relation
from precede.udfs.records.messages import Id, Message, Options, Who
from precede.udfs.release.by_destination import ByDestination

NEEDS = {
    "to": "the destinations",
    "seen": "the vector clock",
    "sent": "what its sender knows to be sent to each member",
}


class CausalPointToPoint(Causal):
    """Each destination waits for its own entry in `sent`; a message has no place outside its destinations."""

    __slots__ = ()

    name = "causal_p2p"
    paper = "Schiper, Eggli and Sandoz; lecture notes on message ordering, 2.2"
    has_destinations = True
    takes_to = True
    takes_apart = True
    in_turn = False
    release_type = ByDestination

    def fault(self, message: Message) -> Refusal | None:
        for field, what in NEEDS.items():
            if getattr(message, field) is UNSET:
                return Refusal(codes.MISSING_STAMP, f"The order causal_p2p needs the field `{field}`: {what}.")
        return super().fault(message)

    def arrive(self, id_: Id, message: Message) -> Watch | Refusal | None:
        """As most orders do: the single look of `causal` is for the one sequence of a group."""
        return self.fault(message) or self.poison(id_, message) or QUEUED

    def wait(self, id_: Id, message: Message) -> Watch | Refusal | None:
        """Nothing in the group: what its destinations wait for is theirs to know."""
        return QUEUED

    @classmethod
    def relation(cls, messages: Sequence[Message], options: Options) -> Relation:
        return BySentStamp(messages)

    @classmethod
    def stamps_of(cls, name: str, epoch: int = 0) -> "PointToPointStamps":
        return PointToPointStamps(name, epoch)


Clock = dict[Who, int]


class PointToPointStamps(CausalStamps):
    """Keeps a clock, which grows by maxima of what is delivered here, and the table S: what was sent to each member."""

    def __init__(self, name: str, epoch: int = 0) -> None:
        super().__init__(name, epoch)
        self.sent: dict[str, Clock] = {}
        """Of each member the maximum of the stamps of all messages to it that are known here."""

    def fields(self, *, after: list[Id], to: list[str], clock_ms: int) -> dict[str, Any]:
        """Count first, copy the table, and only then enter this message in it."""
        stamp = super().fields(after=after, to=to, clock_ms=clock_ms)
        sent = {name: _written(clock) for name, clock in sorted(self.sent.items())}
        for name in to:  # what was entered before is in the clock
            self.sent[name] = _read(stamp["seen"])
        return {"to": to, **stamp, "sent": sent}

    def observe(self, record: Mapping[str, Any]) -> None:
        """A record was delivered: here, or (seen in the ordered topic) at another destination."""
        if record.get("status") == "abandoned" or record.get("kind", "message") != "message":
            return
        clock = _read(record["seen"])
        destination = record.get("destination", self.name)
        if destination != self.name:
            if _covers(clock, self.sent.get(destination, {})):  # it has got all that
                self.sent.pop(destination, None)
            return
        _merge(self.delivered, clock)
        for name, entries in record["sent"].items():
            _merge(self.sent.setdefault(name, {}), _read(entries))
        for name in record["to"]:  # the others get this message too, and so does a member that sends to itself
            _merge(self.sent.setdefault(name, {}), clock)

    def dump(self) -> dict[str, Any]:
        return {**super().dump(), "sent": {name: _written(clock) for name, clock in self.sent.items()}}

    def load(self, dumped: Mapping[str, Any]) -> None:
        super().load(dumped)
        self.sent = {name: _read(entries) for name, entries in dumped.get("sent", {}).items()}


def _merge(clock: Clock, other: Clock) -> None:
    for who, seq in other.items():
        clock[who] = max(clock.get(who, 0), seq)


def _covers(clock: Clock, other: Clock) -> bool:
    return all(seq <= clock.get(who, 0) for who, seq in other.items())


def _read(entries: Sequence[Sequence[Any]]) -> Clock:
    clock: Clock = {}
    for name, epoch, seq in entries:
        clock[name, epoch] = max(clock.get((name, epoch), 0), seq)
    return clock


def _written(clock: Clock) -> list[list[Any]]:
    return [[name, epoch, seq] for (name, epoch), seq in sorted(clock.items())]
