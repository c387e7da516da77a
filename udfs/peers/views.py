"""Who belongs to a group, as a value whose copies can be merged (M2MC, chapter 5).

The largest standing of each name counts: the larger epoch, and within an epoch out beats in. This is a
join-semilattice, so copies, even stale ones, may be merged in any order and any number of times with the same result.
The document instead keeps a set of those who left and never removes a name from it. A stale copy of that set then
excludes for ever a member that left and came back.

    {B: (1, in)}  merged with  {B: (1, out)}  is  {B: (1, out)}     the copy that knows of the leave is right
    {B: (2, in)}  merged with  {B: (1, out)}  is  {B: (2, in)}      the leave ended an older epoch
"""

from collections.abc import Iterable, Mapping
from typing import Any

IN, OUT = False, True

Standing = tuple[int, bool]
"""(epoch, whether it is out again): the larger of two is the later state."""

View = dict[str, Standing]
"""The largest known standing of each name."""


def raise_standing(view: View, name: str, standing: Standing) -> bool:
    """Raise a name to this standing; returns whether that changed the view."""
    known = view.get(name)
    if known is not None and known >= standing:
        return False
    view[name] = standing
    return True


def merge(*views: Mapping[str, Standing]) -> View:
    """The least view that includes all of these."""
    merged: View = {}
    for view in views:
        for name, standing in view.items():
            raise_standing(merged, name, standing)
    return merged


def members(view: Mapping[str, Standing]) -> dict[str, int]:
    """The members, each with its epoch, by name."""
    return {name: view[name][0] for name in sorted(view) if view[name][1] is IN}


def view_of(names: Iterable[str], epoch: int = 0) -> View:
    """The view in which exactly these are in."""
    return dict.fromkeys(names, (epoch, IN))


def standings(record: Mapping[str, Any]) -> list[tuple[str, Standing]]:
    """The changes of membership in a record of a group's sequence."""
    match record.get("kind"):
        case "create":
            return [(name, (0, IN)) for name in record.get("members", [])]
        case "join":
            return [(record["sender"], (record.get("epoch", 0), IN))]
        case "leave":
            return [(record["sender"], (record.get("epoch", 0), OUT))]
        case "evict":
            name, epoch = record["member"]
            return [(name, (epoch, OUT))]
    return []
