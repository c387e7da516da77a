"""Takes over that messages are settled elsewhere and kept no longer, so that nothing waits for them.

A peer that comes late to a segment is told, by runs of seqs, what the others have delivered and forgotten. These
messages get no position and no stand-in here; what waited for them goes on, and a copy of one that comes after all is
dropped.
"""

from itertools import chain

from precede.udfs.engine.group import Group
from precede.udfs.engine.runs import Runs
from precede.udfs.engine.senders import Sender, sender_key
from precede.udfs.engine.watches import ID_PARTS
from precede.udfs.membership.abandon import receive_abandon
from precede.udfs.records.messages import Abandon, Id

AT_ONCE = 10_000
"""Where stand-ins are needed, so many are made in one step."""


def pass_over(group: Group, name: str, epoch: int, runs: Runs, offset: int, now_ms: int) -> list[tuple[int, int]]:
    """Settle those of these seqs that are not here, and return them; those that are held stay held.

    Where each sender's order is kept, only what leaves no gap below counts: the rest has to be told again later.
    """
    sender = group.senders.get(sender_key(name, epoch)) or group.new_sender(name, epoch)
    held = Runs()
    for seq in sorted(id_[2] for id_ in group.held if id_[:2] == (name, epoch)):
        held.add(seq)
    open_ = [
        stretch
        for low, high in runs.runs()
        for first, last in sender.gaps(low, high)
        for stretch in held.gaps(first, last)
    ]
    if group.order.in_turn or group.release.needs_stand_ins:
        open_ = _without_gap(sender, held, open_)
    if not open_:
        return []
    group.begun = True
    group.add_sender(sender)
    sender.highest = max(sender.highest, open_[-1][1])
    if group.release.needs_stand_ins:
        _abandon(group, name, epoch, open_, offset, now_ms)
        return open_
    for low, high in open_:
        sender.add_range(low, high)
    group.release.stood_in((name, epoch, sender.prefix))
    waited: list[Id] = [
        (name, epoch, watch[2]) for watch in group.waiting if len(watch) == ID_PARTS and watch[:2] == (name, epoch)
    ]
    for id_ in sorted(waited):
        if id_[2] in sender and id_ in group.waiting:
            group.release.happened(id_, offset, now_ms)
    group.release.advance(offset, now_ms)
    return open_


def _without_gap(sender: Sender, held: Runs, stretches: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The stretches up to the first one below which something is neither settled nor held."""
    here = Runs()
    for low, high in chain(sender.runs(), held.runs()):
        here.add_range(low, high)
    taken: list[tuple[int, int]] = []
    for low, high in stretches:
        if next(here.gaps(1, low - 1), None) is not None:
            break
        here.add_range(low, high)
        taken.append((low, high))
    return taken


def _abandon(group: Group, name: str, epoch: int, ranges: list[tuple[int, int]], offset: int, now_ms: int) -> None:
    """By stand-ins, which take positions; the caller passes them over."""
    for low, high in ranges:
        for first in range(low, high + 1, AT_ONCE):
            last = min(high, first + AT_ONCE - 1)
            receive_abandon(
                group, Abandon(group=group.name, kind="abandon", ids=[(name, epoch, first, last)]), offset, now_ms
            )
