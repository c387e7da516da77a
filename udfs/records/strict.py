"""The strict reader: enforces RFC 8259 and section 2 of the contract exactly, one top-level field at a time.

A fast JSON parser is not strict, and a refusal must say why. So this reader reads again whatever the fast reader
(wire.py) rejects or cannot check, and its verdict is final. It is iterative: depth costs no stack.
"""

import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import msgspec
from msgspec import Raw

from precede.udfs.limits import Limits
from precede.udfs.records.messages import (
    AS_WRITTEN,
    KINDS,
    META_BYTES_MAX,
    NAME_BYTES_MAX,
    Epoch,
    Identity,
    Name,
    Record,
    Seq,
)

DEPTH_MAX = 1_000
"""Maximum nesting of `data`: a host's recursion limit must not decide what is refused."""

APPENDED = (
    "position",
    "order",
    "status",
    "destination",
    "partition",
    "offset",
    "arrived_ms",
    "released_offset",
    "released_ms",
)
"""The fields that precede itself appends (contract, section 4); a raw record may not contain them."""

_SPACE = re.compile(rb"[ \t\n\r]*")
_STRING = re.compile(rb'"[^"\\\x00-\x1f]*(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})[^"\\\x00-\x1f]*)*"')
_SCALAR = re.compile(_STRING.pattern + rb"|-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?|true|false|null")
_CLOSER = {ord("["): ord("]"), ord("{"): ord("}")}
_COMMA, _COLON = ord(","), ord(":")
_TEXTS = ("signature", "key", "keys", "description")
"""Fields whose strings are no names."""

_decode_name = msgspec.json.Decoder(str).decode


class Malformed(Exception):
    """A record breaks the wire format: why, and the readable part of its identity."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.identity = Identity()


def read_strict(value: bytes, limits: Limits) -> Record:
    """Read one trimmed raw record; raises Malformed."""
    try:
        value.decode()
    except UnicodeDecodeError as error:
        raise Malformed(f"The record is not valid UTF-8 (byte {error.start}).") from None
    pairs = list(top_level_fields(value))
    fields = dict(pairs)
    try:
        _refuse_names(pairs)
        return _typed(fields, limits)
    except Malformed as error:
        error.identity = _identity(fields)
        raise


def top_level_fields(value: bytes) -> Iterator[tuple[str, bytes]]:
    """The (name, raw value) pairs of the object, each value checked against the grammar."""
    if value[:3] == b"\xef\xbb\xbf":
        raise Malformed("The record begins with a byte order mark, which JSON does not allow.")
    if value[:1] != b"{":
        raise Malformed("The record is not a JSON object.")
    at = _skip_space(value, 1)
    if value[at : at + 1] == b"}":
        _expect_end(value, at + 1)
        return
    while True:
        name, at = _name_at(value, at)
        start = _skip_space(value, at)
        end = _value_end(value, start)
        yield name, value[start:end]
        at = _skip_space(value, end)
        if value[at : at + 1] == b"}":
            _expect_end(value, at + 1)
            return
        if value[at : at + 1] != b",":
            raise Malformed(f"The record is not valid JSON: a comma or a brace is missing at byte {at}.")
        at = _skip_space(value, at + 1)


def _skip_space(value: bytes, at: int) -> int:
    match = _SPACE.match(value, at)
    assert match is not None  # the pattern matches the empty string
    return match.end()


def _expect_end(value: bytes, at: int) -> None:
    if _skip_space(value, at) != len(value):
        raise Malformed(f"The record is not valid JSON: something follows the object at byte {at}.")


def _name_at(value: bytes, at: int) -> tuple[str, int]:
    """A field's name, and where its value may begin."""
    match = _STRING.match(value, at)
    if match is None:
        raise Malformed(f"The record is not valid JSON: a field name is expected at byte {at}.")
    try:
        name = _decode_name(match.group())
    except msgspec.DecodeError:
        raise Malformed(f"A field name holds a lone surrogate (byte {at}).") from None
    at = _skip_space(value, match.end())
    if value[at : at + 1] != b":":
        raise Malformed(f"The record is not valid JSON: a colon is expected at byte {at}.")
    return name, at + 1


def _value_end(value: bytes, at: int) -> int:
    """The end of the JSON value that begins at `at`; raises Malformed if there is none."""
    closers: list[int] = []
    size = len(value)
    while True:
        byte = value[at] if at < size else -1
        if byte in _CLOSER:
            closers.append(_CLOSER[byte])
            if len(closers) > DEPTH_MAX:
                raise Malformed(f"The record is nested deeper than {DEPTH_MAX} (byte {at}).")
            at = _skip_space(value, at + 1)
            if at >= size or value[at] != closers[-1]:
                if closers[-1] == ord("}"):
                    at = _member_name_end(value, at)
                continue
        else:
            match = _SCALAR.match(value, at)
            if match is None:
                raise Malformed(f"The record is not valid JSON: a value is expected at byte {at}.")
            at = match.end()
        # We are behind a value or the closer of an empty container: close containers, or go to the next value.
        while closers:
            at = _skip_space(value, at)
            byte = value[at] if at < size else -1
            if byte == closers[-1]:
                closers.pop()
                at += 1
                continue
            if byte != _COMMA:
                raise Malformed(f"The record is not valid JSON: a comma or a bracket is missing at byte {at}.")
            at = _skip_space(value, at + 1)
            if closers[-1] == ord("}"):
                at = _member_name_end(value, at)
            break
        else:
            return at


def _member_name_end(value: bytes, at: int) -> int:
    """Skip `"name" :` inside a nested object, where any string is a valid name."""
    match = _STRING.match(value, at)
    if match is None:
        raise Malformed(f"The record is not valid JSON: a name is expected at byte {at}.")
    at = _skip_space(value, match.end())
    if at >= len(value) or value[at] != _COLON:
        raise Malformed(f"The record is not valid JSON: a colon is expected at byte {at}.")
    return _skip_space(value, at + 1)


def _refuse_names(pairs: list[tuple[str, bytes]]) -> None:
    """Reject duplicate names and names that precede appends."""
    names = set()
    for name, _ in pairs:
        if name in names:
            raise Malformed(f"The field {_quoted(name)} is named twice.")
        names.add(name)
    for name in APPENDED:
        if name in names:
            raise Malformed(f"The field `{name}` is one that precede itself appends.")


def _typed(fields: dict[str, bytes], limits: Limits) -> Record:
    """The record of its kind, with each field decoded by its own type."""
    kind = "message"
    if "kind" in fields:
        kind = _decode("kind", fields["kind"], str)
        if kind not in KINDS:
            raise Malformed(f"The kind {_quoted(kind)} is unknown.")
    type_of = {field.encode_name: field for field in msgspec.structs.fields(KINDS[kind])}
    decoded: dict[str, Any] = {}
    for name, raw in fields.items():
        if name not in type_of:
            raise Malformed(f"The field {_quoted(name)} does not belong in a record of kind `{kind}`.")
        decoded[name] = _decode(name, raw, AS_WRITTEN.get(name, type_of[name].type))
    for name, field in type_of.items():
        if field.required and name not in fields and name != "kind":
            raise Malformed(f"The field `{name}` is missing.")
    decoded.setdefault("kind", kind)
    decoded.setdefault("epoch", 0)
    _refuse_sizes(decoded, limits)
    record: Record = KINDS[kind](**decoded)
    return record


def _decode(name: str, raw: bytes, type_: Any) -> Any:
    if type_ == Raw | msgspec.UnsetType:
        return Raw(raw)
    try:
        value = msgspec.json.decode(raw, type=type_)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Malformed(f"The field `{name}` is wrong: {_sentence(error)}") from None
    _refuse_inside(name, value)
    return value


def _sentence(error: Exception) -> str:
    """The parser's message, in the words of the contract."""
    text = str(error).removeprefix("JSON is malformed: ")
    if "surrogate" in text or "truncated" in text:  # the value as a whole is known to be JSON
        return "it holds a lone surrogate."
    text = text.replace("`int | float`", "`int`").replace("`str` of length <= 255", "a name of at most 255 bytes")
    text = text.replace("`str` of length <= 1000", "a text of at most 1000 characters")
    return text[:200].rstrip(".") + "."


def _refuse_inside(name: str, value: Any) -> None:
    """Rules that msgspec types cannot express: no 1.0 for 1, and no name that is too long in bytes."""
    if isinstance(value, float):
        raise Malformed(f"The field `{name}` holds a number with a point or an exponent where an integer is asked.")
    if isinstance(value, str):
        if name not in _TEXTS and len(value.encode()) > NAME_BYTES_MAX:
            raise Malformed(f"The field `{name}` holds a name of more than {NAME_BYTES_MAX} bytes.")
    elif isinstance(value, list | tuple):
        for item in value:
            _refuse_inside(name, item)
    elif isinstance(value, dict):
        for key, item in value.items():
            _refuse_inside(name, key)
            _refuse_inside(name, item)
    elif isinstance(value, msgspec.Struct):
        for field in value.__struct_fields__:
            _refuse_inside(field, getattr(value, field))


def _refuse_sizes(decoded: dict[str, Any], limits: Limits) -> None:
    for name, size_max in (("after", limits.after_max), ("to", limits.to_max), ("seen", limits.seen_max)):
        if len(decoded.get(name, ())) > size_max:
            raise Malformed(f"The field `{name}` holds more than {size_max} entries.")
    meta = bytes(decoded.get("meta", b"{"))
    if meta[:1] != b"{":
        raise Malformed("The field `meta` is wrong: it must be an object.")
    if len(meta) > META_BYTES_MAX:
        raise Malformed(f"The field `meta` has {len(meta)} bytes, and {META_BYTES_MAX} are allowed.")
    for _, _, first, last in decoded.get("ids", ()):
        if first > last:
            raise Malformed(f"A range of `ids` is written backwards: {first} to {last}.")


def _identity(fields: dict[str, bytes]) -> Identity:
    readable: dict[str, Any] = {}
    for name, type_ in (("group", Name), ("sender", Name), ("epoch", Epoch), ("seq", Seq)):
        with suppress(Malformed, KeyError):
            readable[name] = _decode(name, fields[name], type_)
    if "epoch" not in fields and "sender" in readable:
        readable["epoch"] = 0
    return Identity(**readable)


def _quoted(name: str) -> str:
    return f"`{name[:60]}`"
