"""The records that the job publishes: ordered records as readers see them, dead letters (contract, sections 4 and 5),
and its own: requests for repair, outcomes of gaps, raw records and sentences for the operator.

The kernel decides on the job's own records from the log alone, when it reads a record that lets time pass. So the same
log gives the same records, however it is cut into batches. They take effect when they are read: no timer ever changes a
group. outbox.py in the kernel writes ordered records.

`lenient_reader` reads only the needed fields of such records where the fast reader fails: JSON allows what msgspec
rejects, odd escapes and deep nesting inside `data`, and any `seq` where none is needed.
"""

from base64 import b64encode
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from precede.udfs.records.messages import Id
from precede.udfs.records.strict import Malformed, top_level_fields

Struct = TypeVar("Struct", bound=msgspec.Struct)

_MESSAGE = b'"message"'


def lenient_reader(type_: type[Struct]) -> Callable[[bytes], Struct]:
    """A reader of this type: fast where possible. It raises nothing but msgspec.DecodeError."""
    decode = msgspec.json.Decoder(type_).decode

    def read(value: bytes) -> Struct:
        try:
            return decode(value)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return read_lenient(value, type_)

    return read


def read_lenient(value: bytes, type_: type[Struct]) -> Struct:
    """Read the record as this type; raises msgspec.DecodeError if it does not fit."""
    columns: dict[str, Any] = {}
    try:
        fields = raw_fields(value)
        for field in msgspec.structs.fields(type_):
            raw = fields.get(field.encode_name)
            if raw is not None:
                is_raw = _is_raw(field.type)
                columns[field.name] = msgspec.Raw(raw) if is_raw else msgspec.json.decode(raw, type=field.type)
        return type_(**columns)
    except (TypeError, UnicodeDecodeError, RecursionError) as error:
        raise msgspec.DecodeError(str(error)) from error


def raw_fields(value: bytes) -> dict[str, bytes]:
    """The raw fields of the object, without the `seq` of kinds that do not use it."""
    try:
        fields = dict(top_level_fields(value))
    except Malformed as error:
        raise msgspec.DecodeError(error.reason) from error
    if fields.get("kind", _MESSAGE) != _MESSAGE:
        fields.pop("seq", None)
    return fields


def _is_raw(type_: Any) -> bool:
    return type_ is msgspec.Raw or msgspec.Raw in getattr(type_, "__args__", ())


class OrderedRecord(msgspec.Struct, kw_only=True, gc=False):
    """The fields most readers need, without `data` and the stamps; subclasses add what else they need."""

    group: str
    position: int
    order: str
    status: str
    partition: int
    offset: int
    arrived_ms: int
    released_offset: int
    released_ms: int
    sender: str | None = None
    epoch: int | None = None
    seq: int | None = None
    kind: str = "message"
    after: list[Id] | None = None
    destination: str | None = None


class RecordTimes(NamedTuple):
    """Where and when the log took the record, and the one whose arrival let it go."""

    offset: int
    arrived_ms: int
    released_offset: int
    released_ms: int


TIMES_BYTES_MAX = 160
"""More than these four fields take, which stand last."""


def read_times(value: bytes) -> RecordTimes:
    """The times of an ordered record, without reading the rest of it. Raises ValueError for other bytes."""
    _, *fields = value[-TIMES_BYTES_MAX:-1].rsplit(b",", 4)
    offset, arrived_ms, released_offset, released_ms = [int(field[field.rindex(b":") + 1 :]) for field in fields]
    return RecordTimes(offset, arrived_ms, released_offset, released_ms)


EXCERPT_BYTES_MAX = 64 * 1024
"""How much of a raw record's key, and of its value, a dead letter carries."""

_encode = msgspec.json.Encoder().encode


class DeadLetter(msgspec.Struct, omit_defaults=True, kw_only=True):
    """Why one raw record will never be delivered."""

    code: str
    reason: str
    group: str | None
    sender: str | None
    epoch: int | None
    seq: int | None
    destination: str | UnsetType = UNSET
    partition: int
    offset: int
    arrived_ms: int
    value: str | UnsetType | None = UNSET
    value_base64: str | UnsetType = UNSET
    truncated: bool | UnsetType = UNSET


class LetterFields(msgspec.Struct, gc=False):
    """A dead letter as its readers take it: what it does not have is None."""

    code: str
    reason: str
    partition: int
    offset: int
    arrived_ms: int
    group: str | None = None
    sender: str | None = None
    epoch: int | None = None
    seq: int | None = None
    destination: str | None = None
    value: str | None = None
    value_base64: str | None = None
    truncated: bool = False


def encode_dead_letter(letter: DeadLetter, value: bytes | None) -> bytes:
    """Write one dead letter, which includes the raw value."""
    if value is None:
        letter.value = None
        return _encode(letter)
    if len(value) > EXCERPT_BYTES_MAX:
        letter.truncated = True
    head = value[:EXCERPT_BYTES_MAX]
    try:
        value.decode()
    except UnicodeDecodeError:
        letter.value_base64 = b64encode(head).decode()
    else:
        # The cut may split a character; nothing else can be wrong with the head of valid UTF-8.
        letter.value = head.decode(errors="ignore")
    return _encode(letter)


VERSION = 1

Topic = Literal["raw", "control", "person"]
"""A Kafka topic, or the person who watches the job and gets a sentence."""


class JobRecord(msgspec.Struct, array_like=True, gc=False):
    """One record that the job writes, and the raw offset at which the kernel decided on it."""

    topic: Topic
    key: bytes
    value: bytes
    offset: int


class GapRecord(msgspec.Struct, kw_only=True, gc=False):
    """The state of a gap in topic `precede.control`: requested, or how it ended. The newest record is complete."""

    v: int = VERSION
    kind: Literal["ask", "filled", "abandoned", "dropped"]
    group: str
    sender: str
    epoch: int
    first: int
    last: int
    to: str | None = None
    asked: int
    opened_ms: int
    asked_ms: int | None
    closed_ms: int | None = None
    waited: list[Id]
    partition: int
    offset: int


def encode_gap(record: GapRecord) -> bytes:
    """Write one record of the control topic."""
    return _encode(record)


def encode_abandon(group: str, name: str, epoch: int, first: int, last: int) -> bytes:
    """Write the record that abandons missing messages of a group."""
    return _encode({"group": group, "kind": "abandon", "ids": [[name, epoch, first, last]]})


def encode_evict(group: str, name: str, epoch: int, cut: int) -> bytes:
    """Write the record that evicts a silent member, so that its group can go on."""
    return _encode({"group": group, "kind": "evict", "member": [name, epoch], "cut": cut})


def encode_sentence(sentence: str) -> bytes:
    """Write a sentence for the operator."""
    return _encode(sentence)
