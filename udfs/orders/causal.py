"""`causal`: causal broadcast, and one sequence for all (lecture notes on message ordering, 2.1: BSS).

Guarantee: a message is delivered after everything its sender had delivered or said when it spoke, and each sender's
messages in its order. There is one receiver for all members, so all get the same sequence. With loss, what causally
follows the lost message waits until the message comes or is abandoned; the rest is untouched.
Stamp: `seen`, the vector clock without its zeros: of each sender the highest seq delivered there, and the own new seq.

    arrives b:1 seen a:1 b:1   -> held, waits for a:1          (the figure of 2.1)
    arrives c:1 seen c:1       -> c:1                          concurrent, so it waits for nothing
    arrives a:1 seen a:1       -> a:1, b:1

Rulings: the condition itself is missing from the notes and is BSS's: V_m[j] = V[j] + 1 for the sender j, V_m[k] <= V[k]
for the others; a sender counts before it stamps, because otherwise a reply's vector equals that of what it answers; the
printed test `D_i` is D_j, of the sender; a member that reads its own messages back keeps what it has said apart from
what it has delivered, because otherwise its own copy fails the test; clocks grow by deliveries and never by a maximum
of stamps, so that a poisoned stamp hurts its own message and no other; FIFO channels are not needed.
"""

from typing import Any

from msgspec import UNSET

from precede.udfs import codes
from precede.udfs.codes import Refusal
from precede.udfs.engine.held import HeldMessage, Watch
from precede.udfs.engine.search import Look
from precede.udfs.orders.order import Order, Stamps
from precede.udfs.records.messages import Id, Message


class Causal(Order):
    """Waits for the sender's previous message and for all that `seen` names; the group's settled runs are its clock."""

    __slots__ = ()

    name = "causal"
    paper = "Birman, Schiper and Stephenson; lecture notes on message ordering, 2.1"
    takes_apart = True
    in_turn = True

    def fault(self, message: Message) -> Refusal | None:
        if message.seen is UNSET:
            return Refusal(codes.MISSING_STAMP, f"The order {self.name} needs the field `seen`: the vector clock.")
        own = [seq for name, epoch, seq in message.seen if name == message.sender and epoch == message.epoch]
        if own != [message.seq]:
            return Refusal(codes.BAD_STAMP, f"The sender's own entry of `seen` must be its seq, {message.seq}.")
        return None

    def poison(self, id_: Id, message: Message) -> Refusal | None:
        group = self.group
        for name, epoch, seq in message.seen:  # type: ignore[union-attr]  # judged by `fault` before
            sender = group.senders.get((name, epoch) if epoch else name)
            highest = 0 if sender is None else sender.highest
            if seq > highest + group.window and (name, epoch) != id_[:2]:
                past = f"more than {group.window} past {highest}, the highest seen of it"
                return Refusal(codes.CLOCK_POISON, f"`seen` claims seq {seq} of {name!r}, {past}.")
        return None

    def arrive(self, id_: Id, message: Message) -> Watch | Refusal | None:
        """All in one look at the stamp; only the entries that are not met yet stay in it."""
        own, own_epoch, own_seq = id_
        senders = self.group.senders
        own_entries = 0
        unmet: list[Id] = []
        for entry in message.seen or ():
            name, epoch, seq = entry
            if name == own and epoch == own_epoch:
                own_entries += 1 if seq == own_seq else 2
                continue
            sender = senders.get((name, epoch) if epoch else name)
            if sender is None or seq > sender.prefix:
                unmet.append(entry)
        if own_entries != 1:
            return self.fault(message)
        previous = self.group.turn(id_)
        if previous is not None:
            unmet.append(previous)
        if not unmet:
            return None
        message.seen = unmet
        return self.poison(id_, message) or unmet[-1]

    def wait(self, id_: Id, message: Message) -> Watch | Refusal | None:
        """The own entry stands for the sender's previous message: each sender's order is kept."""
        senders = self.group.senders
        seen: list[Id] = message.seen  # type: ignore[assignment]
        while seen:
            name, epoch, seq = entry = seen[-1]
            if entry == id_ and seq > 1:
                seen[-1] = name, epoch, seq - 1
                continue
            sender = senders.get((name, epoch) if epoch else name)
            if (sender is None or seq > sender.prefix) and entry != id_:
                return entry
            seen.pop()  # once met it stays met, so each entry is looked at once, however often the message is woken
        return None

    def missing(self, held: HeldMessage, look: Look) -> list[Id]:
        return self.missing_among(held, _unmet, look)

    @classmethod
    def follows(cls, message: Message) -> list[Id]:
        who = message.sender, message.epoch
        return [entry for entry in message.seen or () if entry[:2] != who]

    @classmethod
    def stamps_of(cls, name: str, epoch: int = 0) -> "CausalStamps":
        return CausalStamps(name, epoch)


def _unmet(held: HeldMessage) -> list[Id]:
    """What a held message still waits for, without its sender's earlier ones."""
    assert held.message is not None
    return Causal.follows(held.message)


class CausalStamps(Stamps):
    """Counts what is delivered here, and apart from that what the member has said itself."""

    def fields(self, *, after: list[Id], to: list[str], clock_ms: int) -> dict[str, Any]:
        """Count first, then stamp: stamping first gives a reply the vector of what it answers."""
        delivered = self.delivered.copy()
        delivered[self.name, self.epoch] = self.seq
        return {"seen": [[name, epoch, seq] for (name, epoch), seq in sorted(delivered.items())]}
