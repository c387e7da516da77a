"""Fences: above the cut nothing counts any more of a sender and epoch that left, was evicted or has come back."""

from precede.udfs import codes
from precede.udfs.codes import Refusal
from precede.udfs.engine.group import Group
from precede.udfs.engine.held import HeldMessage
from precede.udfs.engine.senders import Sender, sender_key
from precede.udfs.engine.watches import arrival, by_arrival


def fence(group: Group, name: str, epoch: int, cut: int, why: str) -> None:
    """Let no seq above the cut count any more; the messages held above it become dead letters now."""
    group.release.withdraw(close(group, name, epoch, cut), Refusal(codes.FENCED, why))


def close(group: Group, name: str, epoch: int, cut: int) -> list[HeldMessage]:
    """Let no seq above the cut count any more; the messages held above it are returned, to be withdrawn."""
    sender = group.senders.get(sender_key(name, epoch))
    if sender is None:
        return []
    sender.fence = min(sender.fence, cut)
    group.release.fence(name, epoch)
    return _held_above(group, sender, cut)


def _held_above(group: Group, sender: Sender, cut: int) -> list[HeldMessage]:
    """The held messages of a sender above a seq: found by its open seqs, or among all held where these are fewer."""
    name, epoch, held = sender.name, sender.epoch, group.held
    if group.closed and not group.has_member(name, epoch):  # then all of them wait for the join
        return [one for one in by_arrival(group.waiting.get((name, epoch), {})) if one.id[2] > cut]
    if sender.missing_count(cut + 1, sender.highest) > len(held):
        found = [one for one in held.values() if one.id[0] == name and one.id[1] == epoch and one.id[2] > cut]
    else:
        ids = ((name, epoch, seq) for seq in sender.missing(cut + 1, sender.highest))
        found = [held[id_] for id_ in ids if id_ in held]
    return sorted(found, key=arrival)
