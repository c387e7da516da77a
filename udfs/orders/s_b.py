"""`s_b`: a reply never before what it answers (Bhavanasi and Iyer, "S_b", sections III to VI; MOP of M2MC, 4).

Guarantee: a message is delivered after its parent, at once when the parent is there, and waits for nothing else. So
each message is held no longer than any order that keeps replies after questions must hold it. It is not FIFO. With
loss, only what answers the lost message waits, until the message comes or is abandoned.
Stamp: `after`, the one parent, or an empty list for a child of the root OTR.

    arrives B1 after OTR   -> B1
    arrives B3 after B2    -> held, waits for B2          (Fig. 7 of the paper)
    arrives B4 after B3    -> held, waits for B3
    arrives B2 after B1    -> B2, B3, B4                  depth first, the children of one message in arrival order

Rulings: Algorithm 3 recurses before it removes a row and never ends on a parent circle, so here the walk is iterative
and a circle is refused when its last message arrives; a parent is named by (sender, epoch, seq), where Algorithm 1
takes only a seq; the order of children is their arrival, and not the first free row of OSMT.
"""

from collections.abc import Iterable
from typing import Any

from msgspec import UNSET

from precede.udfs import codes
from precede.udfs.codes import Refusal
from precede.udfs.engine.held import HeldMessage
from precede.udfs.engine.search import Look
from precede.udfs.engine.senders import SenderRuns, sender_key
from precede.udfs.engine.state import ID_PARTS, WHO_PARTS
from precede.udfs.orders.order import Order
from precede.udfs.records.messages import Id, Message


class SemanticallyBefore(Order):
    """Each message has one parent; the circle test is a union-find over the parents of held messages."""

    __slots__ = ()
    name = "s_b"
    paper = "Bhavanasi and Iyer, S_b, III to VI; Bhavanasi, M2MC, 4"
    depth_first = True
    waits_once = True
    takes_id = frozenset({codes.SELF_PARENT, codes.CYCLE, codes.ORPHAN})

    def fault(self, message: Message) -> Refusal | None:
        after = message.after
        if after is UNSET:
            return Refusal(codes.MISSING_STAMP, "The order s_b needs the field `after`: the parent's id, or [].")
        if len(after) > 1:
            return Refusal(codes.BAD_STAMP, f"In s_b a message has one parent at most, and `after` names {len(after)}.")
        return None

    def arrive(self, id_: Id, message: Message) -> Id | Refusal | None:
        """As `fault` and `wait` do, in one look at the parent, which is settled in the usual case."""
        after = message.after
        if not after or len(after) > 1:
            return self.fault(message)
        name, epoch, seq = after[0]
        sender = self.group.senders.get((name, epoch) if epoch else name)
        if sender is not None and (seq <= sender.prefix or seq in sender):
            return None
        return self._waits_for(id_, after[0], sender)

    def wait(self, id_: Id, message: Message) -> Id | Refusal | None:
        if not message.after:
            return None
        name, epoch, seq = parent = message.after[0]
        sender = self.group.senders.get(sender_key(name, epoch))
        if sender is not None and seq in sender:
            return None
        return self._waits_for(id_, parent, sender)

    def _waits_for(self, id_: Id, parent: Id, sender: SenderRuns | None) -> Id | Refusal:
        """What becomes of a message whose parent is not settled: it waits, unless the parent can never be delivered."""
        _, epoch, seq = parent
        if parent == id_:
            return Refusal(codes.SELF_PARENT, "The message names itself as its parent.")
        if sender is not None and sender.refused is not None and seq in sender.refused:
            return Refusal(codes.ORPHAN, f"Its parent {_text(parent)} was refused, so it can never be delivered.")
        if self._top(parent) == id_:
            return Refusal(codes.CYCLE, f"It closes a circle: its parent {_text(parent)} waits for it.")
        return parent if sender is None else (sender.name, epoch, seq)  # one string for all that wait, not one for each

    def relink(self, held: Iterable[HeldMessage]) -> None:
        for one in held:
            one.above = None

    def missing(self, held: HeldMessage, look: Look) -> list[Id]:
        return [self._top(held.id)]

    def _top(self, id_: Id) -> Id:
        """The id at the top of the held tree that holds this one, with path halving."""
        held = self.group.held
        while (one := held.get(id_)) is not None:
            up = one.above or one.watch
            assert up
            if len(up) == WHO_PARTS:
                return id_  # it waits for its sender's join, so it is the top itself
            upper = held.get(up)
            if upper is not None and upper.watch is not None and len(upper.watch) == ID_PARTS:
                one.above = up = upper.above or upper.watch
            id_ = up
        return id_

    @classmethod
    def follows(cls, message: Message) -> list[Id]:
        return message.after or []

    @classmethod
    def stamp(cls, *, after: list[Id]) -> dict[str, Any]:
        """Name the parent; RESPOND of section IV-C.6."""
        if len(after) > 1:
            raise ValueError(f"in s_b a message answers one message at most, not {len(after)}: pass one id")
        return {"after": after}


def _text(id_: Id) -> str:
    sender, epoch, seq = id_
    return f"{sender}:{seq}" if epoch == 0 else f"{sender}@{epoch}:{seq}"
