"""What a peer tells its application."""

from typing import NamedTuple, TypeAlias

import msgspec

from precede.udfs.peers.directory import GroupInfo
from precede.udfs.records.messages import Id, Record


class Delivered(msgspec.Struct, frozen=True, gc=False):
    """A record of a group, in its turn."""

    group: str
    value: bytes
    """The raw record, byte for byte."""
    record: Record
    is_abandoned: bool
    """Whether the log gave up on this message: then it has no data."""
    waited_ms: float


class MessageHeld(NamedTuple):
    """A message arrived too early; `Segment.held` says what it waits for."""

    group: str
    id: Id


class ViewChanged(NamedTuple):
    """The members of a group, each with its epoch."""

    group: str
    members: dict[str, int]


class Joined(NamedTuple):
    """The own join counts: from here on this peer may send."""

    group: str
    epoch: int


class Synced(NamedTuple):
    """All that somebody present keeps is here."""

    group: str


class RecordRefused(NamedTuple):
    """A record was refused, here or by the log."""

    group: str
    id: Id | None
    code: str
    reason: str


class Offered(NamedTuple):
    """A group that may be joined or declined."""

    info: GroupInfo


class Accepted(msgspec.Struct, frozen=True, gc=False):
    """For a gateway: a record of a group is new, and was not refused; its bytes may go up."""

    group: str
    value: bytes
    record: Record


class JoinHeard(NamedTuple):
    """For a gateway: somebody joins, and waits for an answer, perhaps not for the first time."""

    group: str
    name: str
    epoch: int
    value: bytes
    """Its record."""


class Missed(NamedTuple):
    """For a gateway: somebody speaks, or asks, in a group that it does not take part in."""

    group: str


Event: TypeAlias = (
    Delivered | MessageHeld | ViewChanged | Joined | Synced | RecordRefused | Offered | Accepted | JoinHeard | Missed
)
