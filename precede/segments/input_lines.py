"""What `precede peer` reads from standard input: a line is a message."""

import os
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from precede.identifiers import parse_id
from precede.udfs.errors import PrecedeError
from precede.udfs.records.messages import Id

BLOCK_BYTES = 1 << 16
LINE_BYTES_MAX = 1 << 20
"""More than any record may have; the rest of a longer line is passed over."""


class Said(msgspec.Struct, frozen=True):
    """What a line says."""

    data: Any
    after: Any = None
    to: list[str] | None = None
    object: dict[str, Any] | None = None


class BadLine(PrecedeError):
    """A line that says nothing; the text of the error is the reason."""


class _JsonLine(msgspec.Struct, forbid_unknown_fields=True):
    data: msgspec.Raw
    after: list[tuple[str, int, int]] = []
    to: list[str] | UnsetType = UNSET
    object: dict[str, Any] | UnsetType = UNSET


_decode = msgspec.json.Decoder(_JsonLine).decode


def read_lines(file: int) -> Iterator[tuple[int, bytes | None]]:
    """The lines of a file with their numbers from 1, without their ends; None in place of one that is too long."""
    number, parts, size = 1, list[bytes](), 0
    while block := os.read(file, BLOCK_BYTES):
        *ended, rest = block.split(b"\n")
        for end in ended:
            size += len(end)
            yield number, b"".join([*parts, end]).removesuffix(b"\r") if size <= LINE_BYTES_MAX else None
            number, parts, size = number + 1, [], 0
        size += len(rest)
        if size <= LINE_BYTES_MAX:
            parts.append(rest)
        else:
            parts.clear()
    if size:
        yield number, b"".join(parts) if size <= LINE_BYTES_MAX else None


def read_text(line: bytes) -> Said | None:
    """A line of text, or `> ID text` for an answer; None if it is empty. Raises BadLine."""
    try:
        text = line.decode()
    except UnicodeDecodeError:
        raise BadLine("it is not UTF-8") from None
    if not text.strip():
        return None
    if not text.startswith("> "):
        return Said(text)
    id_, _, said = text[2:].partition(" ")
    if not said.strip():
        raise BadLine("an answer is written as > ID text")
    try:
        return Said(said, [parse_id(id_, ">")])
    except PrecedeError as error:
        raise BadLine(str(error).rstrip(".")) from None


def read_json(line: bytes) -> Said | None:
    """A line of {"data", "after": [id, ...]}; None if it is empty. Raises BadLine."""
    if not line.strip():
        return None
    try:
        line.decode()
        found = _decode(line)
    except UnicodeDecodeError:
        raise BadLine("it is not UTF-8") from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadLine(f'it is not {{"data": ..., "after": [["sender", epoch, seq], ...]}}: {error}') from None
    after: list[Id] = list(found.after)
    to = None if isinstance(found.to, UnsetType) else found.to
    object_ = None if isinstance(found.object, UnsetType) else found.object
    return Said(found.data, after, to, object_)


Reader = Callable[[bytes], Said | None]
