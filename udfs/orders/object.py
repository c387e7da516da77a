"""`object`: what a request depends on comes first, and nothing else waits (the object-based protocol, 3 and 4).

Guarantee: a message is delivered, to all its destinations at once, after the messages it names, its direct significant
predecessors. It waits for nothing else: not for its sender's earlier messages, and not for compatible requests.
Conflicting requests that do not know of each other are ordered by their delivery, in the same way for all. With loss,
only what depends on the lost message waits, until it comes or is abandoned. A circle of messages is held until one of
them is abandoned.
Stamp: `after`, the ids of the direct significant predecessors. So this is also the general order of declared
dependencies: `s_b` with more than one parent.

    arrives b:1 after a:1        -> held, waits for a:1        (Table 2 and Fig. 4: op4 and op5 conflict)
    arrives a:2 after nothing    -> a:2
    arrives a:1 after nothing    -> a:1, b:1

Rulings: an object vector cannot release a message early, because neither operation nor destinations are known of an id
that has not come, so the dependencies are named; "conflict" is a symmetric table and never closed transitively, because
otherwise two increments conflict since each conflicts with a look; `cid` forgets the older of two compatible instances
and is not used; a stable message needs no word from every object, and one that is not ready blocks no other, though the
printed delivery looks only at the top of its queue; Theorem 2 is false (its own Fig. 4 shows it).
"""

from typing import Any

from msgspec import UNSET

from precede.udfs import codes
from precede.udfs.codes import Refusal
from precede.udfs.engine.held import HeldMessage
from precede.udfs.engine.search import Look
from precede.udfs.orders.order import Order
from precede.udfs.records.messages import Id, Message


class ObjectBased(Order):
    """Waits for each message that `after` names."""

    __slots__ = ()

    name = "object"
    paper = "Timura, Tanaka and Takizawa, Group Protocol for Object-based Ordered Delivery, 3 and 4"
    takes_to = True
    uses_conflicts = True
    takes_apart = True

    def fault(self, message: Message) -> Refusal | None:
        if message.after is UNSET:
            return Refusal(codes.MISSING_STAMP, "The order object needs the field `after`: what it depends on, or [].")
        return None

    def wait(self, id_: Id, message: Message) -> Id | Refusal | None:
        after: list[Id] = message.after  # type: ignore[assignment]
        if id_ in after:
            return Refusal(codes.SELF_PARENT, "The message names itself as what it depends on.")
        senders = self.group.senders
        while after:
            name, epoch, seq = entry = after[-1]
            sender = senders.get((name, epoch) if epoch else name)
            if sender is None or seq not in sender:
                return entry
            after.pop()  # once met it stays met
        return None

    def missing(self, held: HeldMessage, look: Look) -> list[Id]:
        return self.missing_among(held, _unmet, look)

    @classmethod
    def follows(cls, message: Message) -> list[Id]:
        return message.after or []

    @classmethod
    def stamp(cls, *, after: list[Id]) -> dict[str, Any]:
        """Name the direct significant predecessors."""
        return {"after": after}


def _unmet(held: HeldMessage) -> list[Id]:
    assert held.message is not None
    return ObjectBased.follows(held.message)
