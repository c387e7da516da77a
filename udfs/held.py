"""A held message, inside the kernel and as the outside sees it."""

import msgspec

from udfs.messages import Id, Message, Who

Watch = Id | Who | tuple[()]
"""What a held message waits for: a message's id, or the join of (sender, epoch), or (it is empty) the clocks."""

QUEUED: tuple[()] = ()
"""The watch of a message that waits for nothing but the clocks."""


LISTED_MAX = 20
"""How many of those that one message waits for are named, and how many that wait for one gap."""
WALK_MAX = 1_000
"""Through how many held messages the search for what is missing goes."""


class HeldMessage(msgspec.Struct, gc=False):
    """A message, or the stand-in of one given up on (no value), on its way through the hold-back loop."""

    id: Id
    message: Message | None
    """What was read of the value; None where the order asks nothing more of it."""
    value: bytes | None
    offset: int
    arrived_ms: int
    rank: int = 0
    """The place among the stand-ins of one `abandon` record; 0 for a message."""
    watch: Watch | None = None
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
