"""The records of the state topic: the documented format, cutting, and what is wrong with them."""

import base64
from pathlib import Path

import msgspec
import pytest

from precede.udfs.errors import Refused
from precede.udfs.records.state_pieces import (
    VERSION,
    LostPieceError,
    Piece,
    StoredState,
    join,
    pieces,
    read_key,
    read_piece,
)

VECTORS = msgspec.json.decode((Path(__file__).parent / "state-pieces.json").read_bytes())


def found(records: list[tuple[bytes, bytes | None]]) -> dict[int, Piece]:
    """What a reader has after these records."""
    kept: dict[int, Piece] = {}
    for key, value in records:
        named = read_key(key)
        assert named is not None
        if value is None:
            kept.pop(named[1], None)
        else:
            piece = read_piece(value)
            assert piece is not None
            kept[named[1]] = piece
    return kept


@pytest.mark.parametrize("vector", VECTORS, ids=lambda one: one["what"])
def test_the_records_are_those_of_the_documented_vectors(vector: dict[str, object]) -> None:
    given = msgspec.convert(vector["given"], dict[str, object])
    records = pieces(
        str(given["group"]).encode(),
        base64.b64decode(str(given["state"])),
        stream=str(given["stream"]),
        rules=msgspec.convert(given["rules"], int),
        next_offset=msgspec.convert(given["next"], int),
        waiting=msgspec.convert(given["waiting"], tuple[int, int, int]),
        bytes_max=msgspec.convert(given["bytes_max"], int),
        before=msgspec.convert(given["before"], int),
    )
    assert [
        [key.decode(), None if value is None else base64.b64encode(value).decode()] for key, value in records
    ] == vector["records"]


def test_a_state_that_is_cut_into_pieces_is_put_together_again() -> None:
    blob = bytes(range(256)) * 40
    records = pieces(b"g", blob, stream="s", rules=2, next_offset=7, waiting=(5, 1, 2), bytes_max=1_000)
    assert len(records) > 10
    assert max(len(value) for _, value in records if value is not None) <= 1_000
    assert join(b"g", found(records)) == StoredState(2, 7, len(records), 2, 5, 1, blob)


def test_a_state_that_shrank_leaves_no_stale_piece_behind() -> None:
    large = pieces(b"g", b"x" * 5_000, stream="s", rules=2, next_offset=1, bytes_max=1_000)
    small = pieces(b"g", b"y", stream="s", rules=2, next_offset=2, bytes_max=1_000, before=len(large))
    kept = found(large + small)
    assert list(kept) == [0]
    assert join(b"g", kept).blob == b"y"


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_a_lost_piece_is_noticed(lost: int) -> None:
    kept = found(pieces(b"g", b"x" * 2_000, stream="s", rules=2, next_offset=1, bytes_max=1_000))
    del kept[lost]
    with pytest.raises(LostPieceError, match="missing"):
        join(b"g", kept)


def test_pieces_of_two_states_are_not_taken_for_one() -> None:
    old, new = (
        found(pieces(b"g", letter * 2_000, stream="s", rules=2, next_offset=1, bytes_max=1_000))
        for letter in (b"x", b"y")
    )
    with pytest.raises(LostPieceError, match="do not belong together"):
        join(b"g", new | {1: old[1]})


def test_a_newer_format_is_refused_in_a_sentence() -> None:
    newer = msgspec.msgpack.encode([VERSION + 1, "whatever comes", "with it"])
    with pytest.raises(Refused, match="newer precede"):
        read_piece(newer)


@pytest.mark.parametrize("value", [b"", b"{}", b"hello", b"\x90", b"\x91\xa1a", b"\xff" * 40])
def test_what_others_write_is_no_piece(value: bytes) -> None:
    assert read_piece(value) is None


@pytest.mark.parametrize("key", [None, b"", b"travel", b'["travel"]', b'["travel",-1]', b'["travel",0,1]', b"[1,0]"])
def test_the_key_of_others_names_no_piece(key: bytes | None) -> None:
    assert read_key(key) is None


def test_a_key_names_group_and_piece() -> None:
    assert read_key('["grüße",3]'.encode()) == ("grüße".encode(), 3)
