"""The wire format: raw records in, ordered records and dead letters out (contract, sections 2, 4 and 5).

Reading is split in two. The fast path here decodes a whole record at once and accepts only what it can vouch for;
everything else goes to the strict reader (strict.py), whose verdict is the verdict. The proof of the fast path:

* msgspec refuses whatever is not RFC 8259, but for four things it lets pass: a name twice, invalid UTF-8 inside a
  skipped value, 1.0 for an integer, and nesting as deep as the host's recursion limit.
* Names twice: outside `data`, quotes are two for every name, two for every string, and those inside strings. With what
  was decoded accounted for, a surplus of zero leaves no room for another name.
* UTF-8: the value is ASCII or decodes. 1.0: integers are declared `int | float`, and a float is not vouched for.
  Depth: a value with that many brackets is not vouched for.
"""

from base64 import b64encode
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from precede.udfs.limits import Limits
from precede.udfs.records.messages import SHORT_NAME_MAX, Heartbeat, Id, Message, ObjectStamp, Record
from precede.udfs.records.strict import DEPTH_MAX, read_strictly

LETTER_BYTES_MAX = 64 * 1024
"""How much of a raw record's key, and of its value, a dead letter carries."""

_DEEP = 2 * DEPTH_MAX
"""Nothing shorter can be nested too deep."""

_decode_message = msgspec.json.Decoder(Message).decode
_encode = msgspec.json.Encoder().encode


def read(value: bytes, limits: Limits) -> Record:
    """Read one trimmed raw record; raises Malformed."""
    try:
        message = _decode_message(value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return read_strictly(value, limits)
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
        return read_strictly(value, limits)
    after = message.after
    if after is not UNSET:
        for _, after_epoch, after_seq in after:
            if after_epoch.__class__ is not int or after_seq.__class__ is not int:
                return read_strictly(value, limits)
        count = len(after)
        if count > limits.after_max:
            return read_strictly(value, limits)
        quotes -= 2 + 2 * count
    if quotes:
        quotes -= _quotes_of_rare_fields(message, limits)
        if message.kind == "heartbeat":
            is_sure = not quotes and message.seq.__class__ is int and (value.isascii() or _is_utf8(value))
            return _heartbeat(message) if is_sure else read_strictly(value, limits)
    if (
        quotes
        or message.seq.__class__ is not int
        or not (value.isascii() or _is_utf8(value))
        or (len(value) > _DEEP and value.count(b"[") + value.count(b"{") > DEPTH_MAX)
    ):
        return read_strictly(value, limits)
    return message


def _quotes_of_rare_fields(message: Message, limits: Limits) -> int:
    """The quotes of the less usual fields, or -1: what cannot be vouched for goes to the strict reader."""
    quotes = 0
    if message.v is not UNSET:
        if message.v.__class__ is not int:
            return -1
        quotes += 2
    if message.kind is not UNSET:
        if message.kind == "heartbeat":
            others = (message.after, message.data, message.seen, message.to, message.sent, message.object)
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
    """A heartbeat that was decoded as a message, whose fields are all of its own."""
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
    """Write one raw record of kind `message`; `stamp` holds further fields by their contract names."""
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


def encode_dead_letter(letter: DeadLetter, value: bytes | None) -> bytes:
    """Write one dead letter around the raw value it is about."""
    if value is None:
        letter.value = None
        return _encode(letter)
    if len(value) > LETTER_BYTES_MAX:
        letter.truncated = True
    head = value[:LETTER_BYTES_MAX]
    if _is_utf8(value):
        # A cut inside a character is the only thing that can be wrong with the head of valid UTF-8.
        letter.value = head.decode(errors="ignore")
    else:
        letter.value_base64 = b64encode(head).decode()
    return _encode(letter)
