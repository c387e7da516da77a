"""The records of the state topic: the state of one group, cut into pieces that a Kafka record can hold.

The key is the JSON array [group, piece], so that compaction keeps the newest of each piece and no two pieces replace
each other. The value is a msgpack array: see `Piece`. All pieces of one state have the same head. Where a state has
fewer pieces than the one before, each of the others gets a tombstone in the same transaction.
"""

from collections.abc import Iterator
from zlib import crc32

import msgspec

from precede.udfs.errors import Refused

VERSION = 1
PIECE_BYTES_MAX = 512 * 1024
HEAD_BYTES_MAX = 256
"""What a value has beside its part of the state."""


class Piece(msgspec.Struct, array_like=True, frozen=True):
    """The value of one record."""

    v: int
    rules: int
    """The version of the rules by which the state was made."""
    next: int
    """The raw offset below which this state stands: all earlier records of its partition are in it."""
    count: int
    """How many pieces there are."""
    checksum: int
    """CRC-32 of the whole state."""
    stream: str
    """The id of the ordered topic, so that the records of another stream are told apart."""
    held: int
    """How many messages the group holds."""
    oldest_ms: int
    """When the first of them arrived; 0 where there is none."""
    gaps: int
    """How many things they wait for that are not there."""
    part: bytes


class StoredState(msgspec.Struct, frozen=True):
    """The state of a group, put together."""

    rules: int
    next: int
    pieces: int
    held: int
    oldest_ms: int
    gaps: int
    blob: bytes


class LostPieceError(ValueError):
    """Pieces of a state are missing, or do not belong together."""


Record = tuple[bytes, bytes | None]
"""Key and value; without a value it is a tombstone."""

_encode = msgspec.msgpack.encode
_decode = msgspec.msgpack.Decoder(Piece).decode
_decode_version = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode
_decode_key = msgspec.json.Decoder(tuple[str, int]).decode


def pieces(
    group: bytes,
    blob: bytes,
    *,
    stream: str,
    rules: int,
    next_offset: int,
    waiting: tuple[int, int, int] = (0, 0, 0),
    bytes_max: int = PIECE_BYTES_MAX,
    before: int = 0,
) -> list[Record]:
    """The records of one state; `before` is how many pieces the state in the topic has.

    `waiting` is when the oldest held message arrived, how many gaps there are, and how many messages are held.
    """
    size = bytes_max - HEAD_BYTES_MAX - len(stream.encode())
    parts = [blob[start : start + size] for start in range(0, len(blob), size)] or [b""]
    oldest_ms, gaps, held = waiting
    head = (VERSION, rules, next_offset, len(parts), crc32(blob), stream, held, oldest_ms, gaps)
    records: list[Record] = [(piece_key(group, number), _encode((*head, part))) for number, part in enumerate(parts)]
    return records + [(piece_key(group, number), None) for number in range(len(parts), before)]


def piece_key(group: bytes, number: int) -> bytes:
    """The key of one piece."""
    return msgspec.json.encode((group.decode(), number))


def read_key(key: bytes | None) -> tuple[bytes, int] | None:
    """The group and the number of a piece; None for a record that precede did not write."""
    try:
        group, number = _decode_key(key or b"")
        return (group.encode(), number) if number >= 0 else None
    except (msgspec.DecodeError, UnicodeError):
        return None


def read_piece(value: bytes) -> Piece | None:
    """The value of one record; None for one that precede did not write. Raises Refused for a newer version."""
    try:
        version = msgspec.msgpack.decode(_decode_version(value)[0], type=int)
        if version > VERSION:
            raise Refused(
                f"The state topic was written by a newer precede (format {version}; this one reads up to {VERSION}): "
                "use that version, or a newer one."
            )
        return _decode(value)
    except (msgspec.DecodeError, IndexError):
        return None


def join(group: bytes, found: dict[int, Piece]) -> StoredState:
    """Put the pieces of one group together."""
    first = found.get(0)
    if first is None:
        raise LostPieceError(f"The first piece of the state of group {group.decode()!r} is missing.")
    blob = b"".join(_parts(group, first, found))
    if crc32(blob) != first.checksum:
        raise LostPieceError(f"The pieces of the state of group {group.decode()!r} do not belong together.")
    return StoredState(first.rules, first.next, first.count, first.held, first.oldest_ms, first.gaps, blob)


def _parts(group: bytes, first: Piece, found: dict[int, Piece]) -> Iterator[bytes]:
    for number in range(first.count):
        piece = found.get(number)
        if piece is None:
            raise LostPieceError(
                f"Piece {number} of {first.count} of the state of group {group.decode()!r} is missing."
            )
        yield piece.part
