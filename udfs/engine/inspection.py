"""What a group lacks and holds now, and how a person sees it.

Nothing is decided here. What the job does about a gap is in passing_time.py.
"""

from bisect import bisect_left
from collections.abc import Collection, Iterator
from typing import NamedTuple

import msgspec
from msgspec import UNSET

from precede.udfs.engine.group import Group
from precede.udfs.engine.held import Held, HeldMessage, Watch, Watchers
from precede.udfs.engine.repair_timers import NO_TIMERS, NOTICED_MAX
from precede.udfs.engine.search import LISTED_MAX, Look
from precede.udfs.engine.senders import Sender, sender_key
from precede.udfs.engine.state import ID_PARTS, QUEUED, arrival, by_arrival, first_of, waits_for_id, waits_for_join
from precede.udfs.records.messages import SEQ_MAX, Id, Who


class Gap(NamedTuple):
    """A stretch of missing seqs of one sender and epoch."""

    name: str
    epoch: int
    first: int
    last: int
    opened_ms: int
    waiting: list[HeldMessage]


def heads(group: Group) -> Iterator[tuple[Id, Watchers]]:
    """The ids that are not here and that held messages watch, with those messages."""
    for watch, watchers in group.waiting.items():
        if waits_for_id(watch) and watch not in group.held:
            yield watch, watchers


def first_opened_ms(group: Group, but: Collection[Id]) -> int | None:
    """Since when the first head except these has been waited for; one pass, because there may be very many."""
    held = group.held
    opened = [
        first_of(watchers).arrived_ms if isinstance(watchers, dict) else watchers.arrived_ms
        for watch, watchers in group.waiting.items()
        if watch not in held and watch not in but and len(watch) == ID_PARTS
    ]
    return min(opened, default=None)


def gaps_of(group: Group) -> list[Gap]:
    """All gaps, the one that opened first first."""
    found = {id_: by_arrival(watchers) for id_, watchers in heads(group)}
    if not group.order.waits_once:  # then one message may wait for several ids, and it shows one of them at a time
        behind = sorted((watchers[0] for watchers in found.values()), key=arrival)[:NOTICED_MAX]
        behind += group.release.closing_messages()[:NOTICED_MAX]
        behind += group.release.queued()
        look = Look(group)
        for one in behind:
            for id_ in group.release.missing(one, look):
                if id_ not in group.held:
                    found.setdefault(id_, [one])
    gaps = list(_gaps_up_to(group, found))
    gaps.sort(key=lambda gap: (gap.opened_ms, gap[:4]))
    return gaps


def _gaps_up_to(group: Group, found: dict[Id, list[HeldMessage]]) -> Iterator[Gap]:
    """The gaps that end at these ids; where each sender's order is kept, one may reach down over others of them."""
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
        if first <= fence < last:  # a message up to the fence may still count when it comes, one above it cannot
            yield Gap(name, epoch, first, fence, opened_ms, waiting)
            first = fence + 1
        yield Gap(name, epoch, first, last, opened_ms, waiting)


def _held_seqs(group: Group) -> dict[Who, list[int]]:
    held: dict[Who, list[int]] = {}
    for name, epoch, seq in sorted(group.held):
        held.setdefault((name, epoch), []).append(seq)
    return held


def _first(sender: Sender | None, held: list[int], last: int) -> int:
    """The seq from which on everything up to the last one is missing."""
    first = 1 if sender is None else sender.absent_from(last)
    at = bisect_left(held, last)
    return max(first, held[at - 1] + 1) if at else first


def is_here(group: Group, id_: Id) -> bool:
    """Whether nothing need wait for this id to come any more, because it is settled, or held itself."""
    sender = group.senders.get(sender_key(id_[0], id_[1]))
    return id_ in group.held or (sender is not None and id_[2] in sender)


def strangers(group: Group) -> list[tuple[Who, Watchers]]:
    """The senders that spoke in a closed group without having joined, with their held messages."""
    return sorted((watch, watchers) for watch, watchers in group.waiting.items() if waits_for_join(watch))


def held_messages(group: Group) -> list[Held]:
    """What is held, in arrival order, and what each waits for."""
    look = Look(group)
    return [
        _held(group, one, blockers, destination)
        for one in sorted(group.held.values(), key=arrival)
        if one.value is not None
        for destination, blockers in group.release.blockers(one, look)
    ]


def _held(group: Group, one: HeldMessage, blockers: list[Id], destination: str | None) -> Held:
    """One held message, or one of its destinations; those of its blockers that are here wait for a join."""
    name, epoch, seq = one.id
    joins = [id_[0] for id_ in blockers if id_ in group.held]
    return Held(
        group=group.name,
        destination=destination,
        sender=name,
        epoch=epoch,
        seq=seq,
        partition=group.partition,
        offset=one.offset,
        since_ms=one.arrived_ms,
        missing=[id_ for id_ in blockers if id_ not in group.held],
        silent=joins + group.release.silent(one, LISTED_MAX),
        joins=joins or UNSET,
    )


class OpenGap(msgspec.Struct, kw_only=True):
    """An open gap, as `precede held --gaps` shows it."""

    group: str
    sender: str
    epoch: int
    first: int
    last: int
    since_ms: int
    asked: int
    """How often it was requested; 0 while it is young."""
    asked_ms: int | None
    waited: list[Id]
    """The messages that wait for it directly, by arrival; at most 20."""


def open_gaps(group: Group) -> list[OpenGap]:
    """What is missing, the oldest first."""
    noticed = list((group.repair_timers or NO_TIMERS).gaps.values())
    found: list[OpenGap] = []
    for run in gaps_of(group):
        same = (gap for gap in noticed if gap.key[:2] == run[:2] and gap.first <= run.last <= gap.last)
        gap = next(same, None)
        found.append(
            OpenGap(
                group=group.name,
                sender=run.name,
                epoch=run.epoch,
                first=run.first,
                last=run.last,
                since_ms=run.opened_ms if gap is None else gap.opened_ms,
                asked=0 if gap is None else gap.asked,
                asked_ms=None if gap is None else gap.asked_ms,
                waited=[one.id for one in run.waiting[:LISTED_MAX] if one.value is not None],
            )
        )
    return found


def oldest_and_gaps(group: Group) -> tuple[int, int]:
    """When the first of the held messages arrived, and how many gaps there are: things waited for that are not held."""
    first = next(iter(group.held.values()))  # they are kept in the order they arrived
    gaps: set[Watch] = set(group.waiting).difference(group.held)
    gaps.discard(QUEUED)
    gaps |= group.release.watched() - group.held.keys()
    return first.arrived_ms, len(gaps)
