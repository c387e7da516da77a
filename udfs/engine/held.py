"""A held message, inside the kernel and as the outside sees it.

Only types stand here, because msgspec makes them: the functions that are hot stand in other files (state.py has those
about watches), so that those files can be compiled.
"""

from typing import TYPE_CHECKING, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

from precede.udfs.records.messages import Id, Message, Who

Watch = Id | Who | tuple[()]
"""What a held message waits for; state.py says how to tell these apart."""

if TYPE_CHECKING:
    _Id: TypeAlias = Id
    _Watch: TypeAlias = Watch | None
else:  # as it stands in a snapshot until its value is read again; msgspec cannot tell the kinds of tuples apart
    _Id = Id | None
    _Watch = tuple[str | int, ...] | None


class HeldMessage(msgspec.Struct, array_like=True, gc=False):
    """A message, or the stand-in of an abandoned one (no value), on its way through the hold-back loop.

    A snapshot writes and reads this very object, without its last fields: a group may hold very many, and each step
    more for each of them would be felt in every batch. That was measured, so this stays a type of msgspec.
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
    """In `s_b`, a shorter way than `watch` to the top of the tree of held messages; None while there is none."""


Watchers = HeldMessage | dict[Id, HeldMessage]
"""The messages that wait for one thing: one message, or all of them by their ids where there are more."""


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
    """The members that it waits to hear from, and the senders whose join it waits for."""
    joins: list[str] | UnsetType = UNSET
    """Of `silent`, the senders whose join it waits for; left out where there are none."""
