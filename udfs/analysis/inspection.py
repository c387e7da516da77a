"""What a group holds, and what each held message waits for, for display."""

import msgspec
from msgspec import UNSET

from precede.udfs.engine.group import Group
from precede.udfs.engine.held import Held, HeldMessage, Watch
from precede.udfs.engine.missing import gaps_of
from precede.udfs.engine.repair_timers import NO_TIMERS
from precede.udfs.engine.search import LISTED_MAX, Look
from precede.udfs.engine.watches import QUEUED, arrival
from precede.udfs.records.messages import Id


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
