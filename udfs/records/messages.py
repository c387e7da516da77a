"""The records of the raw log, one type per kind (contract, section 2).

The field types are the wire rules: the fast reader decodes a whole record by them, the strict reader field by field.
An integer is declared `int | float` because msgspec would take 1.0 for an int; the readers then refuse the float.
"""

from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypeAlias

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

EPOCH_MAX = 2**31 - 1
SEQ_MAX = 2**53 - 1
NAME_BYTES_MAX = 255
META_BYTES_MAX = 4 * 1024
"""Of a message's `meta`, as it is written."""
DESCRIPTION_MAX = 1_000
"""Characters of a group's description."""

Name: TypeAlias = Annotated[str, Meta(min_length=1, max_length=NAME_BYTES_MAX)]
SHORT_NAME_MAX = NAME_BYTES_MAX // 4
ShortName: TypeAlias = Annotated[str, Meta(min_length=1, max_length=SHORT_NAME_MAX)]
"""A name this short has at most 255 bytes, whatever its characters are."""
if TYPE_CHECKING:  # the readers reject every float, so other code sees integers only
    Epoch: TypeAlias = int
    Seq: TypeAlias = int
    Integer: TypeAlias = int
    Count: TypeAlias = int
    Version: TypeAlias = int
else:
    Epoch = Annotated[int, Meta(ge=0, le=EPOCH_MAX)] | float
    Seq = Annotated[int, Meta(ge=1, le=SEQ_MAX)] | float
    Integer = int | float
    Count = Annotated[int, Meta(ge=0, le=SEQ_MAX)] | float
    Version = Annotated[int, Meta(ge=1, le=1)] | float
WireId: TypeAlias = tuple[Name, Epoch, Seq]
ShortWireId: TypeAlias = tuple[ShortName, Epoch, Seq]
WireRange: TypeAlias = tuple[Name, Epoch, Seq, Seq]
Description: TypeAlias = Annotated[str, Meta(max_length=DESCRIPTION_MAX)]

Who: TypeAlias = tuple[str, int]
"""(sender, epoch): one run of a sender. Its seqs have no gaps within an epoch."""
Id: TypeAlias = tuple[str, int, int]
"""(sender, epoch, seq): the identity of a message, never joined into one string."""


class ObjectStamp(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """What clients of the object-based order say about a message. The kernel only carries it."""

    instance: tuple[Count, Name | Count] | UnsetType = UNSET
    """(oid, ono): `ono` names the object, by a string or a number."""
    op: Name | UnsetType = UNSET
    sender_op: Name | UnsetType = UNSET
    type: Literal["request", "response", "data"] | UnsetType = UNSET


class Message(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """An application message, with the stamps of every order.

    Omitted fields are UNSET, because the fast reader must know which were present; it then sets the epoch to 0.
    These types are what the fast reader can check at once; the types in AS_WRITTEN read longer names.
    """

    group: ShortName
    sender: ShortName
    seq: Seq
    after: list[ShortWireId] | UnsetType = UNSET
    data: Raw | UnsetType = UNSET
    epoch: Epoch | UnsetType = UNSET
    kind: str | UnsetType = UNSET
    v: Version | UnsetType = UNSET
    seen: list[ShortWireId] | UnsetType = UNSET
    to: list[ShortName] | UnsetType = UNSET
    sent: dict[ShortName, list[ShortWireId]] | UnsetType = UNSET
    time: Integer | UnsetType = UNSET
    clock_ms: Integer | UnsetType = UNSET
    object: ObjectStamp | UnsetType = UNSET
    meta: Raw | UnsetType = UNSET
    """An object of at most META_BYTES_MAX, as opaque as `data`."""
    signature: str | UnsetType = UNSET


AS_WRITTEN: dict[str, Any] = {
    "group": Name,
    "sender": Name,
    "after": list[WireId],
    "seen": list[WireId],
    "to": list[Name],
    "sent": dict[Name, list[WireId]],
}
"""The contract's types for the message fields that hold names."""


class Heartbeat(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Shows that a sender is alive. `seq` is the next one it will use, `time` a promise about what follows."""

    group: Name
    sender: Name
    seq: Seq
    epoch: Epoch = 0
    kind: str
    v: Version = 1
    time: Integer | UnsetType = UNSET
    clock_ms: Integer | UnsetType = UNSET
    signature: str | UnsetType = UNSET


class Options(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """The options that a `create` record may set for its group."""

    order: str | UnsetType = UNSET
    closed: bool | UnsetType = UNSET
    window: Seq | UnsetType = UNSET
    digests: Count | UnsetType = UNSET
    accuracy_ms: Count | UnsetType = UNSET
    delay_min_ms: Count | UnsetType = UNSET
    delay_max_ms: Count | UnsetType = UNSET
    give_up_ms: Count | UnsetType = UNSET
    loss: Literal["hold", "abandon"] | UnsetType = UNSET
    conflicts: list[tuple[str, str]] | UnsetType = UNSET
    keys: dict[Name, str] | UnsetType = UNSET
    description: Description | UnsetType = UNSET


class Control(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Fields shared by the kinds that create or change a group. A `seq` in them is not read."""

    group: Name
    kind: str
    sender: Name | UnsetType = UNSET
    epoch: Epoch = 0
    seq: Raw | UnsetType = UNSET
    v: Version = 1
    signature: str | UnsetType = UNSET


class Create(Control, kw_only=True):
    """Creates a group: its order, its options and its first members."""

    options: Options = msgspec.field(default_factory=Options)
    members: list[Name] = []


class Join(Control, kw_only=True):
    """A sender becomes a member, or returns with a larger epoch."""

    sender: Name
    time: Integer | UnsetType = UNSET
    key: str | UnsetType = UNSET


class Leave(Control, kw_only=True):
    """A member leaves: `last` is the last seq it used."""

    sender: Name
    last: Count


class Evict(Control, kw_only=True):
    """Removes a member: only its seqs up to `cut` still count."""

    member: tuple[Name, Epoch]
    cut: Count


class Abandon(Control, kw_only=True):
    """Abandons missing messages, each range as [sender, epoch, first, last]."""

    ids: list[WireRange]


class Tick(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Lets time pass for every group of the partition."""

    kind: str
    group: Name | UnsetType = UNSET
    sender: Name | UnsetType = UNSET
    epoch: Epoch = 0
    seq: Raw | UnsetType = UNSET
    v: Version = 1
    signature: str | UnsetType = UNSET


class LogRecord(NamedTuple):
    """An unread record of a topic; for the raw log, the arguments of `Holdback.receive`."""

    value: bytes | None
    key: bytes | None
    partition: int
    offset: int
    timestamp_ms: int


class Identity(msgspec.Struct, frozen=True):
    """The readable part of a record's identity, for its dead letter."""

    group: str | None = None
    sender: str | None = None
    epoch: int | None = None
    seq: int | None = None


Record: TypeAlias = Message | Heartbeat | Create | Join | Leave | Evict | Abandon | Tick

KINDS: dict[str, Any] = {
    "message": Message,
    "heartbeat": Heartbeat,
    "create": Create,
    "join": Join,
    "leave": Leave,
    "evict": Evict,
    "abandon": Abandon,
    "tick": Tick,
}


def identity_of(record: Record) -> Identity:
    """The sender and id of a record, for its dead letter; a seq that was not read is not named."""
    sender = record.sender if isinstance(record.sender, str) else None
    return Identity(
        group=record.group if isinstance(record.group, str) else None,
        sender=sender,
        epoch=record.epoch if isinstance(record.epoch, int) and sender is not None else None,
        seq=record.seq if isinstance(record.seq, int) else None,
    )


def own_key(group: str | UnsetType | None) -> bytes | None:
    """The Kafka key that a record of this group has."""
    return group.encode() if isinstance(group, str) else None
