"""Reads only the needed fields of our own records, where the fast reader fails.

JSON allows what msgspec rejects: odd escapes and deep nesting inside `data`, and any `seq` where none is needed.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

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
