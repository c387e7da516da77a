"""Who belongs to a group, as a value that copies of it can be merged into one (M2MC, chapter 5).

Of each name the largest standing counts: the larger epoch, and within one epoch being out over being in. That is a
join-semilattice, so copies may be merged in any order, any number of times, stale ones among them, and all come to the
same. The document keeps a set of those who left and takes nobody out of it; one stale copy of that set then puts a
member out for ever that has left and come back.

    {B: (1, in)}  merged with  {B: (1, out)}  is  {B: (1, out)}     whoever heard of the leave is right
    {B: (2, in)}  merged with  {B: (1, out)}  is  {B: (2, in)}      the leave was of an older epoch
"""

from collections.abc import Iterable, Mapping
from typing import Any

IN, OUT = False, True

Standing = tuple[int, bool]
"""(epoch, whether it is out of the group again): of two the larger is the later truth."""

View = dict[str, Standing]
"""Of each name the largest standing heard of."""


def raise_standing(view: View, name: str, standing: Standing) -> bool:
    """Take in one standing; answers whether it says anything new."""
    known = view.get(name)
    if known is not None and known >= standing:
        return False
    view[name] = standing
    return True


def merge(*views: Mapping[str, Standing]) -> View:
    """The least view that says all that these say."""
    merged: View = {}
    for view in views:
        for name, standing in view.items():
            raise_standing(merged, name, standing)
    return merged


def members(view: Mapping[str, Standing]) -> dict[str, int]:
    """Who is in, each with its epoch, by name."""
    return {name: view[name][0] for name in sorted(view) if view[name][1] is IN}


def view_of(names: Iterable[str], epoch: int = 0) -> View:
    """The view in which just these are in."""
    return dict.fromkeys(names, (epoch, IN))


def standings(record: Mapping[str, Any]) -> list[tuple[str, Standing]]:
    """What a record of a group's sequence says of who is in it and who is out."""
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
