"""What a check reads: raw records, ordered records and dead letters, as values."""

import re
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import UNSET

from precede.udfs.limits import Limits
from precede.udfs.records.messages import Id, Message, Record
from precede.udfs.records.published import lenient_reader
from precede.udfs.records.strict import Malformed
from precede.udfs.records.wire import read

DELIVERED: Final = "delivered"
ABANDONED: Final = "abandoned"
ERASED: Final = "erased"

WHITE_SPACE = b" \t\n\r"

_STRING = rb'"(?:[^"\\]|\\.)*"'
_APPENDED = re.compile(
    rb',"position":(\d+),"order":(%b),"status":(%b)(?:,"destination":(%b))?,"partition":(\d+),"offset":(\d+)'
    rb',"arrived_ms":(-?\d+),"released_offset":(\d+),"released_ms":(-?\d+)\}' % (_STRING, _STRING, _STRING)
)
_BEGINNING: Final = b',"position":'


class UnreadableError(ValueError):
    """Bytes that are no ordered record, and why."""


class RawRecord(NamedTuple):
    """A record of the raw log, read: `record` is what it says, or None where it cannot be read."""

    partition: int
    offset: int
    timestamp_ms: int
    value: bytes
    """Without white space around it."""
    record: Record | None
    group: str | None
    """The group in which it counts; None for a tick, and where it belongs to no group."""


class OrderedRead(NamedTuple):
    """A record of the ordered topic: its raw part, and the fields that were appended to it."""

    group: str
    head: bytes
    """The raw record without its closing brace; empty if the data were erased."""
    position: int
    order: str
    status: str
    destination: str | None
    partition: int
    offset: int
    arrived_ms: int
    released_offset: int
    released_ms: int


class LetterRead(msgspec.Struct, gc=False):
    """What a dead letter says about one raw record."""

    code: str
    partition: int
    offset: int
    destination: str | None = None
    group: str | None = None


class _Group(msgspec.Struct, gc=False):
    group: str


_group_of = lenient_reader(_Group)
_read_letter = msgspec.json.Decoder(LetterRead).decode
_text = msgspec.json.Decoder(str).decode


def read_ordered(value: bytes) -> OrderedRead:
    """Read one ordered record; raises UnreadableError."""
    at = value.rfind(_BEGINNING)
    found = None if at < 0 else _APPENDED.fullmatch(value, at)
    if found is None:
        raise UnreadableError("the fields that are appended to a raw record do not stand at its end")
    position, order, status, destination, partition, offset, arrived, released, released_ms = found.groups()
    try:
        return OrderedRead(
            _group_of(value).group,
            value[:at],
            int(position),
            _text(order),
            _text(status),
            None if destination is None else _text(destination),
            int(partition),
            int(offset),
            int(arrived),
            int(released),
            int(released_ms),
        )
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UnreadableError(f"it is no JSON object of a group ({error})") from error


def read_letter(value: bytes) -> LetterRead:
    """Read one dead letter; raises msgspec.DecodeError."""
    return _read_letter(value)


def read_raw(
    value: bytes | None, key: bytes | None, partition: int, offset: int, timestamp_ms: int, limits: Limits
) -> RawRecord:
    """Read one record of the raw log. What no group can accept has no group."""
    if value is None or len(value) > limits.record_bytes_max:
        return RawRecord(partition, offset, timestamp_ms, value or b"", None, None)
    value = value.strip(WHITE_SPACE)
    try:
        record = read(value, limits)
    except Malformed:
        return RawRecord(partition, offset, timestamp_ms, value, None, None)
    group: Any = record.group
    if group is UNSET or record.kind == "tick" or key is None or group.encode() != key:
        group = None
        if record.kind == "tick" and key is not None:
            record = None  # type: ignore[assignment]
    return RawRecord(partition, offset, timestamp_ms, value, record, group)


def read_head(one: OrderedRead, limits: Limits) -> Record | None:
    """What the raw part of an ordered record says; None if it is no raw record."""
    try:
        return read(one.head + b"}", limits)
    except Malformed:
        return None


def id_of(message: Message) -> Id:
    """The identity of a message."""
    return message.sender, message.epoch or 0, message.seq
