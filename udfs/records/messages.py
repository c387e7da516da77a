"""The records of the raw log, one type per kind (contract, section 2).

The field types are the wire rules: the fast reader decodes a whole record by them, the strict reader a field at a time.
An integer is declared `int | float` because msgspec would take 1.0 for an int; the readers then refuse the float.
"""

from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypeAlias

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

EPOCH_MAX = 2**31 - 1
SEQ_MAX = 2**53 - 1
NAME_BYTES_MAX = 255

Name: TypeAlias = Annotated[str, Meta(min_length=1, max_length=NAME_BYTES_MAX)]
SHORT_NAME_MAX = NAME_BYTES_MAX // 4
ShortName: TypeAlias = Annotated[str, Meta(min_length=1, max_length=SHORT_NAME_MAX)]
"""A name of so few characters has at most 255 bytes, whatever they are."""
if TYPE_CHECKING:  # the readers refuse every float, so the code that gets a record sees integers only
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

Who: TypeAlias = tuple[str, int]
"""(sender, epoch): one life of a sender, within which its seqs are dense."""
Id: TypeAlias = tuple[str, int, int]
"""(sender, epoch, seq), the identity of a message; never glued into one string."""


class ObjectStamp(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """What the object-based order's clients say of a message; the orderer only carries it."""

    instance: tuple[Count, Name | Count] | UnsetType = UNSET
    """(oid, ono): ono is what the object is called, by a name or a number."""
    op: Name | UnsetType = UNSET
    sender_op: Name | UnsetType = UNSET
    type: Literal["request", "response", "data"] | UnsetType = UNSET


class Message(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """What a sender says, with the stamps of every order.

    Fields left out are UNSET, for the fast reader has to know which were named; it then sets the epoch to 0.
    The types are what that reader vouches for at once; longer names are read by the types in AS_WRITTEN.
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
    signature: str | UnsetType = UNSET


AS_WRITTEN: dict[str, Any] = {
    "group": Name,
    "sender": Name,
    "after": list[WireId],
    "seen": list[WireId],
    "to": list[Name],
    "sent": dict[Name, list[WireId]],
}
"""The types of the contract for the fields of a message that hold names."""


class Heartbeat(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A sign of life; `seq` is the next one the sender will use, `time` a promise."""

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
    """What a `create` record may set for its group."""

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


class Control(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What the kinds share that begin a group or change what counts in it; a seq that one carries is not read."""

    group: Name
    kind: str
    sender: Name | UnsetType = UNSET
    epoch: Epoch = 0
    seq: Raw | UnsetType = UNSET
    v: Version = 1
    signature: str | UnsetType = UNSET


class Create(Control, kw_only=True):
    """Begins a group: its order, its options and its first members."""

    options: Options = msgspec.field(default_factory=Options)
    members: list[Name] = []


class Join(Control, kw_only=True):
    """A sender becomes a member, or comes back with a larger epoch."""

    sender: Name
    time: Integer | UnsetType = UNSET
    key: str | UnsetType = UNSET


class Leave(Control, kw_only=True):
    """A member's last word: `last` is the last seq it used."""

    sender: Name
    last: Count


class Evict(Control, kw_only=True):
    """A member is put out: of what it says, only seqs up to `cut` still count."""

    member: tuple[Name, Epoch]
    cut: Count


class Abandon(Control, kw_only=True):
    """Gives up on missing messages: [sender, epoch, first, last] each."""

    ids: list[WireRange]


class Tick(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Time passes, for every group of the partition."""

    kind: str
    group: Name | UnsetType = UNSET
    sender: Name | UnsetType = UNSET
    epoch: Epoch = 0
    seq: Raw | UnsetType = UNSET
    v: Version = 1
    signature: str | UnsetType = UNSET


class LogRecord(NamedTuple):
    """A record as a topic has it, not read yet; of the raw log, what `Holdback.receive` takes."""

    value: bytes | None
    key: bytes | None
    partition: int
    offset: int
    timestamp_ms: int


class Identity(msgspec.Struct, frozen=True):
    """As much of a record's identity as can be read, for its dead letter."""

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
