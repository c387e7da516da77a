"""What a group lacks, as it stands now: the seqs that are not here and that held messages wait for.

Nothing is decided here. What the job does about it is in gaps.py, what a person sees of it in inspection.py.
"""

from bisect import bisect_left
from collections.abc import Collection, Iterator
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from precede.udfs.engine.circles import closing_messages
from precede.udfs.engine.held import LISTED_MAX, QUEUED, HeldMessage, Watchers, arrival
from precede.udfs.engine.senders import Sender, sender_key
from precede.udfs.records.messages import SEQ_MAX, Id, Who
from precede.udfs.ticks.repair_timers import NOTICED_MAX

if TYPE_CHECKING:
    from precede.udfs.engine.group import Group


class Run(NamedTuple):
    """A run of missing seqs as the group shows it now."""

    name: str
    epoch: int
    first: int
    last: int
    opened_ms: int
    waiting: list[HeldMessage]


def heads(group: "Group") -> Iterator[tuple[Id, Watchers]]:
    """The ids that are not here and that something watches, with those that do."""
    for watch, watchers in group.waiting.items():
        if len(watch) == 3 and watch not in group.held:
            yield watch, watchers


def first_opened_ms(group: "Group", but: Collection[Id]) -> int | None:
    """Since when the first head but these has been waited for; one pass, for they may be very many."""
    held = group.held
    opened = [
        first_of(watchers).arrived_ms if isinstance(watchers, dict) else watchers.arrived_ms
        for watch, watchers in group.waiting.items()
        if watch not in held and watch not in but and len(watch) == 3
    ]
    return min(opened, default=None)


def first_of(watchers: Watchers) -> HeldMessage:
    """Who has waited longest."""
    return min(watchers.values(), key=arrival) if isinstance(watchers, dict) else watchers


def by_arrival(watchers: Watchers) -> list[HeldMessage]:
    return sorted(watchers.values(), key=arrival) if isinstance(watchers, dict) else [watchers]


def longest_queued(group: "Group") -> HeldMessage | None:
    """Where clocks decide: the message that has waited longest for nothing but the clocks."""
    queued = group.waiting.get(QUEUED)
    return None if queued is None else first_of(queued)


def held_for_destinations(group: "Group") -> list[HeldMessage]:
    """Where destinations wait, the messages that wait first for something that is not here."""
    if group.order.destinations is None:
        return []
    waiting = islice((one for one in group.held.values() if one.watch == QUEUED), NOTICED_MAX)
    return [one for one in waiting if group.order.missing(one, 1)]


def missing_runs(group: "Group") -> list[Run]:
    """All runs that are missing, the one that opened first first."""
    found = {id_: by_arrival(watchers) for id_, watchers in heads(group)}
    if not group.order.waits_once:  # such an order has one message wait for several, and shows one of them at a time
        behind = sorted((watchers[0] for watchers in found.values()), key=arrival)[:NOTICED_MAX]
        behind += closing_messages(group)[:NOTICED_MAX]
        behind += held_for_destinations(group)
        queued = longest_queued(group)
        group.looked.clear()
        for one in behind if queued is None else [*behind, queued]:
            for id_ in group.order.missing(one, LISTED_MAX):
                if id_ not in group.held:
                    found.setdefault(id_, [one])
    runs = list(_runs(group, found))
    runs.sort(key=lambda run: (run.opened_ms, run[:4]))
    return runs


def _runs(group: "Group", found: dict[Id, list[HeldMessage]]) -> Iterator[Run]:
    """The runs that end at these ids; where each sender's order is kept, one may reach down over others of them."""
    held = _held_seqs(group) if group.order.in_turn else {}
    ids = sorted(found, reverse=True)
    at = 0
    while at < len(ids):
        name, epoch, last = ids[at]
        sender = group.senders.get(sender_key(name, epoch))
        first = _first(sender, held.get((name, epoch), []), last) if group.order.in_turn else last
        waiting = found[ids[at]]
        opened_ms = waiting[0].arrived_ms
        at += 1
        while at < len(ids) and ids[at] >= (name, epoch, first):
            opened_ms = min(opened_ms, found[ids[at]][0].arrived_ms)
            at += 1
        fence = SEQ_MAX if sender is None else sender.fence
        if first <= fence < last:  # below it may still come what counts, above it nothing
            yield Run(name, epoch, first, fence, opened_ms, waiting)
            first = fence + 1
        yield Run(name, epoch, first, last, opened_ms, waiting)


def _held_seqs(group: "Group") -> dict[Who, list[int]]:
    held: dict[Who, list[int]] = {}
    for name, epoch, seq in sorted(group.held):
        held.setdefault((name, epoch), []).append(seq)
    return held


def _first(sender: Sender | None, held: list[int], last: int) -> int:
    """From where on everything up to this seq is missing."""
    first = 1 if sender is None else sender.absent_from(last)
    at = bisect_left(held, last)
    return max(first, held[at - 1] + 1) if at else first


def is_here(group: "Group", id_: Id) -> bool:
    """Whether nobody need wait for this id any more, for it is settled, or held itself."""
    sender = group.senders.get(sender_key(id_[0], id_[1]))
    return id_ in group.held or (sender is not None and id_[2] in sender)


def strangers(group: "Group") -> list[tuple[Who, Watchers]]:
    """Who spoke in a closed group without having joined, with what is held of it."""
    return sorted((watch, watchers) for watch, watchers in group.waiting.items() if len(watch) == 2)
