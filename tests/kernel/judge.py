"""A second reader by section 2 of the contract, on Python's own `json`, that shares no line with the kernel's.

It is slow and simple on purpose. `read` returns the record as a dict, or None if the contract says `malformed`.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

Fields: TypeAlias = dict[str, Any]

SEQ_MAX = 2**53 - 1
EPOCH_MAX = 2**31 - 1
DEPTH_MAX = 1_000
META_BYTES_MAX = 4_096
_BEFORE_NAME, _BEFORE_VALUE = re.compile(r"[,{\s]*"), re.compile(r"[:\s]*")
APPENDED = {
    *("position", "order", "status", "destination", "partition", "offset"),
    *("arrived_ms", "released_offset", "released_ms"),
}


class Object(list[tuple[str, Any]]):
    """A JSON object as its pairs, so that duplicate names show."""


class Broken(Exception):
    """The record is malformed."""


def read(value: bytes, *, after_max: int = 20, to_max: int = 100, seen_max: int = 10_000) -> Fields | None:
    """The fields of a raw record, or None if it is malformed."""
    try:
        fields = _top(value.strip(b" \t\n\r"))
        kind = fields.get("kind", "message")
        _need(isinstance(kind, str) and kind in SHAPES)
        shape = SHAPES[kind]
        for name, given in fields.items():
            _need(name in shape)
            shape[name](given)
        _need(all(name in fields for name in REQUIRED[kind]))
        for name, most in (("after", after_max), ("to", to_max), ("seen", seen_max)):
            _need(len(fields.get(name, [])) <= most)
        _need("meta" not in fields or len(as_written(value, "meta")) <= META_BYTES_MAX)
        fields["kind"] = kind
        fields.setdefault("epoch", 0)
        return fields
    except Broken:
        return None


def _top(value: bytes) -> Fields:
    try:
        text = value.decode()
    except UnicodeDecodeError:
        raise Broken from None
    if depth(value) > DEPTH_MAX + 1:  # the object itself, and the depth of a field
        raise Broken
    try:
        with _deep():
            pairs = json.loads(
                text, object_pairs_hook=Object, parse_constant=_refuse_constant, parse_int=_integer, parse_float=_Number
            )
    except ValueError:
        raise Broken from None
    _need(isinstance(pairs, Object))
    names = [name for name, _ in pairs]
    _need(len(set(names)) == len(names))
    _need(not APPENDED & set(names))
    return dict(pairs)


def as_written(value: bytes, name: str) -> bytes:
    """The bytes of one field of a good record."""
    text = value.decode()
    decoder = json.JSONDecoder(parse_int=_integer, parse_float=_Number)
    at = text.index("{")
    while True:
        at = _BEFORE_NAME.match(text, at).end()  # type: ignore[union-attr]  # it matches nothing, too
        found, at = decoder.raw_decode(text, at)
        at = _BEFORE_VALUE.match(text, at).end()  # type: ignore[union-attr]
        with _deep():
            _, end = decoder.raw_decode(text, at)
        if found == name:
            return text[at:end].encode()
        at = end


@contextmanager
def _deep() -> Iterator[None]:
    """Python's reader follows as deep as the judge allows."""
    frames = sys.getrecursionlimit()
    sys.setrecursionlimit(20 * DEPTH_MAX)
    try:
        yield
    finally:
        sys.setrecursionlimit(frames)


def depth(value: bytes) -> int:
    """The nesting depth of brackets outside strings."""
    deepest = now = 0
    for mark in re.findall(rb'"(?:[^"\\]|\\.)*"|[\[\]{}]', value, re.DOTALL):
        now += {b"[": 1, b"{": 1, b"]": -1, b"}": -1}.get(mark, 0)
        deepest = max(deepest, now)
    return deepest


class _Number(str):
    """A number that is not written as an integer, or is too long for ours."""


def _integer(text: str) -> int | _Number:
    return int(text) if len(text) < 400 else _Number(text)


def _refuse_constant(name: str) -> None:
    raise ValueError(name)


def _need(holds: bool) -> None:
    if not holds:
        raise Broken


def _name(given: Any) -> None:
    _need(isinstance(given, str) and not isinstance(given, _Number))
    _need(not any("\ud800" <= character <= "\udfff" for character in given))
    _need(1 <= len(given.encode()) <= 255)


def _text(given: Any) -> None:
    _need(isinstance(given, str) and not isinstance(given, _Number))
    _need(not any("\ud800" <= character <= "\udfff" for character in given))


def _word(given: Any) -> None:
    _text(given)
    _need(len(given.encode()) <= 255)


def _int_from(least: int, most: int | None) -> Any:
    def check(given: Any) -> None:
        _need(isinstance(given, int) and not isinstance(given, bool))
        _need(given >= least and (most is None or given <= most))

    return check


_epoch = _int_from(0, EPOCH_MAX)
_seq = _int_from(1, SEQ_MAX)
_count = _int_from(0, SEQ_MAX)


def _clock(given: Any) -> None:
    _need(isinstance(given, int) and not isinstance(given, bool))


def _version(given: Any) -> None:
    _clock(given)
    _need(given == 1)


def _anything(given: Any) -> None:
    """Not read."""


def _object(given: Any) -> None:
    _need(isinstance(given, Object))


def _list_of(check: Any) -> Any:
    def check_list(given: Any) -> None:
        _need(isinstance(given, list) and not isinstance(given, Object))
        for item in given:
            check(item)

    return check_list


def _array(*checks: Any) -> Any:
    def check_array(given: Any) -> None:
        _need(isinstance(given, list) and not isinstance(given, Object) and len(given) == len(checks))
        for check, item in zip(checks, given, strict=True):
            check(item)

    return check_array


def _map_of(check: Any) -> Any:
    def check_map(given: Any) -> None:
        _need(isinstance(given, Object))
        for name, item in given:
            _name(name)
            check(item)

    return check_map


def _struct(shape: dict[str, Any]) -> Any:
    def check_struct(given: Any) -> None:
        _need(isinstance(given, Object))
        for name, item in given:
            _need(name in shape)
            shape[name](item)

    return check_struct


def _text_of(most: int) -> Any:
    def check_text(given: Any) -> None:
        _text(given)
        _need(len(given) <= most)

    return check_text


def _one_of(*words: str) -> Any:
    def check_word(given: Any) -> None:
        _need(isinstance(given, str) and given in words and not isinstance(given, _Number))

    return check_word


def _bool(given: Any) -> None:
    _need(isinstance(given, bool))


def _range(given: Any) -> None:
    _array(_name, _epoch, _seq, _seq)(given)
    _need(given[2] <= given[3])


def _called(given: Any) -> None:
    """An object is identified by a name or a number."""
    (_name if isinstance(given, str) else _count)(given)


_id = _array(_name, _epoch, _seq)
_ANY_KIND = {"v": _version, "kind": _text, "group": _name, "sender": _name, "epoch": _epoch, "signature": _text}
_CONTROL = {**_ANY_KIND, "seq": _anything}
_OPTIONS = {
    "order": _word,
    "closed": _bool,
    "window": _seq,
    "digests": _count,
    "accuracy_ms": _count,
    "delay_min_ms": _count,
    "delay_max_ms": _count,
    "give_up_ms": _count,
    "loss": _one_of("hold", "abandon"),
    "conflicts": _list_of(_array(_word, _word)),
    "keys": _map_of(_text),
    "description": _text_of(1_000),
}
_OBJECT = {
    "instance": _array(_count, _called),
    "op": _name,
    "sender_op": _name,
    "type": _one_of("request", "response", "data"),
}

SHAPES: dict[str, dict[str, Any]] = {
    "message": {
        **_ANY_KIND,
        "seq": _seq,
        "after": _list_of(_id),
        "seen": _list_of(_id),
        "to": _list_of(_name),
        "sent": _map_of(_list_of(_id)),
        "time": _clock,
        "clock_ms": _clock,
        "object": _struct(_OBJECT),
        "data": _anything,
        "meta": _object,
    },
    "heartbeat": {**_ANY_KIND, "seq": _seq, "time": _clock, "clock_ms": _clock},
    "create": {**_CONTROL, "options": _struct(_OPTIONS), "members": _list_of(_name)},
    "join": {**_CONTROL, "time": _clock, "key": _text},
    "leave": {**_CONTROL, "last": _count},
    "evict": {**_CONTROL, "member": _array(_name, _epoch), "cut": _count},
    "abandon": {**_CONTROL, "ids": _list_of(_range)},
    "tick": _CONTROL,
}

REQUIRED: dict[str, tuple[str, ...]] = {
    "message": ("group", "sender", "seq"),
    "heartbeat": ("group", "sender", "seq"),
    "create": ("group",),
    "join": ("group", "sender"),
    "leave": ("group", "sender", "last"),
    "evict": ("group", "member", "cut"),
    "abandon": ("group", "ids"),
    "tick": (),
}
