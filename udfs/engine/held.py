"""A held message, inside the kernel and as the outside sees it."""

from typing import TYPE_CHECKING, TypeAlias

import msgspec

from precede.udfs.records.messages import Id, Message, Who

Watch = Id | Who | tuple[()]
"""What a held message waits for: a message's id, or the join of (sender, epoch), or (it is empty) the clocks."""

QUEUED: tuple[()] = ()
"""The watch of a message that waits for nothing but the clocks."""


LISTED_MAX = 20
"""How many of those that one message waits for are named, and how many that wait for one gap."""
WALK_MAX = 1_000
"""Through how many held messages the search for what is missing goes."""


if TYPE_CHECKING:
    _Id: TypeAlias = Id
    _Watch: TypeAlias = Watch | None
else:  # as it stands in a snapshot, until its value is read again; and msgspec tells no tuples apart
    _Id = Id | None
    _Watch = tuple[str | int, ...] | None


class HeldMessage(msgspec.Struct, array_like=True, gc=False):
    """A message, or the stand-in of one given up on (no value), on its way through the hold-back loop.

    A snapshot keeps it as it is but for its last fields: of many, each step more would be felt in every batch.
    """

    offset: int
    arrived_ms: int
    rank: int
    """The place among the stand-ins of one `abandon` record; 0 for a message."""
    value: bytes | None
    id: _Id
    watch: _Watch = None
    message: Message | None = None
    """What was read of the value; None where the order asks nothing more of it."""
    above: Id | None = None
    """In `s_b`, a nearer way than by `watch` to the top of the tree of held messages; None while there is none."""


Watchers = HeldMessage | dict[Id, HeldMessage]
"""Who waits for one thing: one message, or where there are more, all by their ids."""


def arrival(held: HeldMessage) -> tuple[int, int]:
    """How held messages rank by their arrival."""
    return held.offset, held.rank


class Held(msgspec.Struct, kw_only=True):
    """One held message, as `--held` and `precede held` name it (contract, section 7)."""

    group: str
    destination: str | None = None
    sender: str
    epoch: int
    seq: int
    partition: int
    offset: int
    since_ms: int
    missing: list[Id]
    silent: list[str]
