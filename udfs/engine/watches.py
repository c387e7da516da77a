"""What held messages wait for, and the three kinds of it.

    an id, (sender, epoch, seq)    until this message is settled
    a join, (sender, epoch)        until this sender is a member of the closed group
    QUEUED, the empty tuple        for no single thing: the clocks, or places at destinations, let it go

The kinds are told apart by their length, which costs nothing to build and nothing to keep. Where many are looked at in
one loop the length is compared in place.
"""

from typing import Final, TypeGuard

from precede.udfs.engine.held import HeldMessage, Watch, Watchers
from precede.udfs.records.messages import Id, Who

QUEUED: tuple[()] = ()
"""The watch of a message that waits for no single id or join."""

ID_PARTS: Final = 3
"""The length of a watch that is an id."""
WHO_PARTS: Final = 2
"""The length of a watch that is a join."""


def waits_for_id(watch: Watch | None) -> TypeGuard[Id]:
    """Whether this watch is the id of a message."""
    return watch is not None and len(watch) == ID_PARTS


def waits_for_join(watch: Watch | None) -> TypeGuard[Who]:
    """Whether this watch is the join of a sender and epoch."""
    return watch is not None and len(watch) == WHO_PARTS


def arrival(held: HeldMessage) -> tuple[int, int]:
    """How held messages rank by their arrival."""
    return held.offset, held.rank


def first_of(watchers: Watchers) -> HeldMessage:
    """The watcher that has waited longest."""
    return min(watchers.values(), key=arrival) if isinstance(watchers, dict) else watchers


def by_arrival(watchers: Watchers) -> list[HeldMessage]:
    """All watchers of one thing in the order they arrived."""
    return sorted(watchers.values(), key=arrival) if isinstance(watchers, dict) else [watchers]
