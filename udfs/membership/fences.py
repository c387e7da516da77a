"""Fences: above a cut nothing counts any more of one sender and epoch that left, was evicted or has come back."""

from typing import TYPE_CHECKING

from precede.udfs import codes
from precede.udfs.codes import Refusal
from precede.udfs.engine.held import HeldMessage, arrival
from precede.udfs.engine.missing import by_arrival
from precede.udfs.engine.senders import Sender, sender_key

if TYPE_CHECKING:
    from precede.udfs.engine.group import Group


def fence(group: "Group", name: str, epoch: int, cut: int, why: str) -> None:
    """Let no seq above the cut count any more; what is held above it becomes a dead letter now."""
    withdraw(group, close(group, name, epoch, cut), Refusal(codes.FENCED, why))


def close(group: "Group", name: str, epoch: int, cut: int) -> list[HeldMessage]:
    """Let no seq above the cut count any more; what is held above it is returned, to be withdrawn."""
    sender = group.senders.get(sender_key(name, epoch))
    if sender is None:
        return []
    sender.fence = min(sender.fence, cut)
    if group.order.by_clocks:
        group.order.on_fence(name, epoch)  # type: ignore[attr-defined]
    return _held_above(group, sender, cut)


def withdraw(group: "Group", found: list[HeldMessage], refusal: Refusal) -> None:
    """Make dead letters of held messages; nothing of them counts any more."""
    order = group.order
    is_linked = False
    for one in found:
        if order.destinations is not None:
            order.destinations.fence(one, refusal)
        elif one.value is not None:
            group.stop_watching(one)
            group.release(one)
            group.refuse_held(one, refusal)
            entered = order.by_clocks and one.watch is not None and len(one.watch) != 2
            is_linked = is_linked or entered or one.id in group.waiting
    if is_linked:
        order.relink(group.held.values())


def _held_above(group: "Group", sender: Sender, cut: int) -> list[HeldMessage]:
    """What is held of a sender above a seq: found by its open seqs, or by all that is held where that is less."""
    name, epoch, held = sender.name, sender.epoch, group.held
    if group.closed and not group.membership.has(name, epoch):  # then all of it waits for the join
        return [one for one in by_arrival(group.waiting.get((name, epoch), {})) if one.id[2] > cut]
    if sender.missing_count(cut + 1, sender.highest) > len(held):
        found = [one for one in held.values() if one.id[0] == name and one.id[1] == epoch and one.id[2] > cut]
    else:
        ids = ((name, epoch, seq) for seq in sender.missing(cut + 1, sender.highest))
        found = [held[id_] for id_ in ids if id_ in held]
    return sorted(found, key=arrival)
