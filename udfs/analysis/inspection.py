"""What a group holds, and what each held message waits for, for display."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

from precede.udfs.engine.held import LISTED_MAX, QUEUED, Held, HeldMessage, Watch, arrival
from precede.udfs.engine.missing import missing_runs
from precede.udfs.records.messages import Id
from precede.udfs.ticks.repair_timers import NO_WAITS

if TYPE_CHECKING:
    from precede.udfs.engine.group import Group


def held_messages(group: "Group") -> list[Held]:
    """The held messages in order of arrival, and what each waits for."""
    group.looked.clear()
    return list(_look(group))


def _look(group: "Group") -> Iterator[Held]:
    destinations = group.order.destinations
    for one in sorted(group.held.values(), key=arrival):
        if one.value is None:
            continue
        if destinations is not None:
            for name in destinations.waiting_for(one):
                yield _held(group, one, destinations.missing(one, [] if name is None else [name], LISTED_MAX), name)
        elif one.watch is not None and len(one.watch) == 2:
            yield _held(group, one, [one.id])
        else:
            yield _held(group, one, group.order.missing(one, LISTED_MAX))


def _held(group: "Group", one: HeldMessage, blockers: list[Id], destination: str | None = None) -> Held:
    """One held message, or one of its destinations. Blockers that are held themselves wait for a join."""
    name, epoch, seq = one.id
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
        silent=[id_[0] for id_ in blockers if id_ in group.held] + group.order.silent(one, LISTED_MAX),
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


def open_gaps(group: "Group") -> list[OpenGap]:
    """The open gaps, oldest first."""
    noticed = list((group.waits or NO_WAITS).gaps.values())
    found: list[OpenGap] = []
    for run in missing_runs(group):
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


def oldest_and_gaps(group: "Group") -> tuple[int, int]:
    """When the first held message arrived, and the number of gaps: ids waited for that are not held."""
    first = next(iter(group.held.values()))  # in order of arrival
    gaps: set[Watch] = set(group.waiting).difference(group.held)
    gaps.discard(QUEUED)
    if group.order.destinations is not None:
        gaps |= group.order.destinations.watched() - group.held.keys()
    return first.arrived_ms, len(gaps)
