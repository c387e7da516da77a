"""Reads raw records fast, and writes messages (contract, section 2).

Reading has two steps. The fast path here decodes a whole record at once and accepts only what it can prove valid;
everything else goes to the strict reader (strict.py), whose verdict is final. Why the fast path is correct:

* msgspec rejects everything that is not RFC 8259, with four exceptions: duplicate names, invalid UTF-8 inside a
  skipped value, 1.0 for an integer, and nesting up to the host's recursion limit.
* Duplicate names: outside `data` there are two quotes for each name, two for each string, and those inside strings.
  If the decoded fields account for all quotes, there is no room for another name.
* UTF-8: the value is ASCII or decodes. 1.0: integers are declared `int | float`, and a float is not accepted here.
  Depth: a value with that many brackets is not accepted here.
"""

from typing import Any

import msgspec
from msgspec import UNSET

from precede.udfs.limits import Limits
from precede.udfs.records.messages import META_BYTES_MAX, SHORT_NAME_MAX, Heartbeat, Id, Message, ObjectStamp, Record
from precede.udfs.records.strict import DEPTH_MAX, read_strict

SPACE = b" \t\n\r"
"""What may stand around a raw record; readers want it trimmed."""

_DEEP = 2 * DEPTH_MAX
"""A shorter value cannot be nested too deep."""

_decode_message = msgspec.json.Decoder(Message).decode
_encode = msgspec.json.Encoder().encode


def read(value: bytes, limits: Limits) -> Record:
    """Read one trimmed raw record; raises Malformed."""
    try:
        message = _decode_message(value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return read_strict(value, limits)
    quotes = value.count(b'"') - 10  # "group":"", "sender":"" and "seq":
    data = message.data
    if data is not UNSET:
        quotes -= bytes(data).count(b'"') + 2
    epoch = message.epoch
    if epoch.__class__ is int:
        quotes -= 2
    elif epoch is UNSET:
        message.epoch = 0
    else:
        return read_strict(value, limits)
    after = message.after
    if after is not UNSET:
        for _, after_epoch, after_seq in after:
            if after_epoch.__class__ is not int or after_seq.__class__ is not int:
                return read_strict(value, limits)
        count = len(after)
        if count > limits.after_max:
            return read_strict(value, limits)
        quotes -= 2 + 2 * count
    if quotes:
        quotes -= _quotes_of_rare_fields(message, limits)
        if message.kind == "heartbeat":
            is_sure = not quotes and message.seq.__class__ is int and (value.isascii() or _is_utf8(value))
            return _heartbeat(message) if is_sure else read_strict(value, limits)
    if (
        quotes
        or message.seq.__class__ is not int
        or not (value.isascii() or _is_utf8(value))
        or (len(value) > _DEEP and value.count(b"[") + value.count(b"{") > DEPTH_MAX)
    ):
        return read_strict(value, limits)
    return message


def _quotes_of_rare_fields(message: Message, limits: Limits) -> int:
    """The quotes of the rarer fields, or -1 if the strict reader must decide."""
    quotes = 0
    if message.v is not UNSET:
        if message.v.__class__ is not int:
            return -1
        quotes += 2
    if message.kind is not UNSET:
        if message.kind == "heartbeat":
            others = (message.after, message.data, message.seen, message.to, message.sent, message.object, message.meta)
            if any(other is not UNSET for other in others):
                return -1
        elif message.kind != "message":
            return -1
        quotes += 4
    if message.signature is not UNSET:
        quotes += 4
    if message.time is not UNSET:
        if message.time.__class__ is not int:
            return -1
        quotes += 2
    if message.clock_ms is not UNSET:
        if message.clock_ms.__class__ is not int:
            return -1
        quotes += 2
    seen = message.seen
    if seen is not UNSET:
        if len(seen) > limits.seen_max:
            return -1
        for _, epoch, seq in seen:
            if epoch.__class__ is not int or seq.__class__ is not int:
                return -1
        quotes += 2 + 2 * len(seen)
    to = message.to
    if to is not UNSET:
        if len(to) > limits.to_max:
            return -1
        quotes += 2 + 2 * len(to)
    sent = message.sent
    if sent is not UNSET:
        quotes += 2
        for entries in sent.values():
            for _, epoch, seq in entries:
                if epoch.__class__ is not int or seq.__class__ is not int:
                    return -1
            quotes += 2 + 2 * len(entries)
    if message.object is not UNSET:
        inside = _quotes_of_object(message.object)
        if inside < 0:
            return -1
        quotes += 2 + inside
    if message.meta is not UNSET:
        meta = bytes(message.meta)
        if meta[:1] != b"{" or len(meta) > META_BYTES_MAX:
            return -1
        quotes += 2 + meta.count(b'"')
    return quotes


def _quotes_of_object(stamp: ObjectStamp) -> int:
    """The quotes inside `object`, or -1."""
    quotes = 0
    for name in (stamp.op, stamp.sender_op):
        if name is not UNSET:
            if len(name) > SHORT_NAME_MAX:
                return -1
            quotes += 4
    if stamp.type is not UNSET:
        quotes += 4
    instance = stamp.instance
    if instance is not UNSET:
        oid, ono = instance
        if oid.__class__ is not int:
            return -1
        if ono.__class__ is str and len(ono) <= SHORT_NAME_MAX:
            quotes += 4
        elif ono.__class__ is int:
            quotes += 2
        else:
            return -1
    return quotes


def _heartbeat(message: Message) -> Heartbeat:
    """Turn a message into the heartbeat it really is; it has no fields that a heartbeat lacks."""
    heartbeat = Heartbeat(group=message.group, sender=message.sender, seq=message.seq, kind="heartbeat")
    heartbeat.epoch = message.epoch  # type: ignore[assignment]
    heartbeat.time, heartbeat.clock_ms, heartbeat.signature = message.time, message.clock_ms, message.signature
    return heartbeat


def _is_utf8(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def encode_message(
    group: str,
    sender: str,
    epoch: int,
    seq: int,
    *,
    after: list[Id] | None = None,
    data: object = UNSET,
    **stamp: Any,
) -> bytes:
    """Write one raw record of kind `message`; `stamp` holds more fields under their contract names."""
    fields: dict[str, Any] = {"group": group, "sender": sender, "epoch": epoch, "seq": seq}
    if after is not None:
        fields["after"] = after
    fields.update(stamp)
    if data is not UNSET:
        fields["data"] = data
    return _encode(fields)


def encode_name(name: str) -> str:
    """A name as its JSON string."""
    return _encode(name).decode()
