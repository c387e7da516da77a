"""The frames of the segment: the documented bytes, and every way in which a datagram is refused."""

from __future__ import annotations

import contextlib
import json
import re
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from precede.udfs.peers import fragments, frames
from precede.udfs.peers.fragments import PENDING_BYTES_MAX, Reassembly, cut
from precede.udfs.peers.frames import (
    BUNDLE_BYTES_MAX,
    DATA,
    DATAGRAM_BYTES_MAX,
    FRAGMENT,
    FRAGMENT_BYTES,
    HEARTBEAT,
    KIND_NAMES,
    PAGE,
    PAYLOADS,
    REPAIR,
    Codec,
    DropCounts,
    FrameFault,
    VectorEntry,
    frame_bytes,
    make_origin,
    read_heartbeat,
    read_repair,
    read_request,
    segment_number,
    write_heartbeat,
    write_repair,
    write_request,
)
from tests.kernel.effort import effort

VECTORS: dict[str, Any] = json.loads((Path(__file__).parent / "frame_vectors.json").read_text())
PAGE_OF_FRAMES = (Path(__file__).parents[2] / "docs" / "reference" / "frames.md").read_text()
KEY = b"the segment's key"
ORIGIN = make_origin(b"12345678", 3)


def refused_with(codec: Codec, datagram: bytes) -> str:
    with pytest.raises(FrameFault) as refused:
        codec.decode(datagram)
    return refused.value.code


@pytest.mark.parametrize("vector", VECTORS["datagrams"], ids=lambda vector: vector["name"])
def test_a_datagram_is_written_and_read_as_documented(vector: dict[str, Any]) -> None:
    key = None if vector["key"] is None else bytes.fromhex(vector["key"])
    codec = Codec(segment_number(vector["segment"]), key)
    origin = make_origin(bytes.fromhex(vector["process"]), vector["incarnation"])
    kinds = {name: kind for kind, name in KIND_NAMES.items()}
    described = [(kinds[kind], number, bytes.fromhex(body)) for kind, number, body in vector["frames"]]
    datagram = codec.encode(origin, [frame_bytes(*frame) for frame in described])
    assert datagram.hex() == vector["datagram"]
    assert codec.decode(datagram) == (origin, described)


@pytest.mark.parametrize("vector", VECTORS["refused"], ids=lambda vector: vector["code"])
def test_a_datagram_that_breaks_a_rule_is_refused_under_its_code(vector: dict[str, Any]) -> None:
    key = None if vector["key"] is None else bytes.fromhex(vector["key"])
    assert (
        refused_with(Codec(segment_number(vector["segment"]), key), bytes.fromhex(vector["datagram"])) == vector["code"]
    )


@pytest.mark.parametrize("vector", VECTORS["bodies"], ids=lambda vector: vector["name"])
def test_a_body_is_written_and_read_as_documented(vector: dict[str, Any]) -> None:
    body = bytes.fromhex(vector["body"])
    match vector["kind"]:
        case "request":
            entries = [(bytes.fromhex(origin), first, last) for origin, first, last in vector["entries"]]
            assert (write_request(entries), read_request(body)) == (body, entries)
        case "repair":
            repair = bytes.fromhex(vector["origin"]), DATA, bytes.fromhex(vector["content"])
            assert (write_repair(*repair), read_repair(body)) == (body, repair)
        case "heartbeat":
            named = [VectorEntry(bytes.fromhex(origin), low, high) for origin, low, high in vector["vector"]]
            first_kept, read = read_heartbeat(body)
            assert write_heartbeat(vector["first_kept"], named) == body
            assert (first_kept, list(read)) == (vector["first_kept"], named)
        case "fragment":
            payload = (vector["repeated"] * vector["times"]).encode()
            assert [part[: fragments.HEAD.size].hex() for _, part in cut(PAGE, payload)] == vector["heads"]


def test_the_page_shows_every_vector_kind_and_code() -> None:
    for vector in VECTORS["datagrams"]:
        assert vector["datagram"] in re.sub(r"\s", "", PAGE_OF_FRAMES), vector["name"]
    for name in KIND_NAMES.values():
        assert f"`{name}`" in PAGE_OF_FRAMES
    codes = {value for name, value in vars(frames).items() if name.isupper() and isinstance(value, str)}
    codes |= {fragments.INCOMPLETE, fragments.CROWDED_OUT, fragments.MISMATCH}
    codes |= {"own", "copies", "unknown_copies", "lookahead", "bad_vector", "repairs_not_earned", "repairs_crowded_out"}
    assert {code for code in codes if f"| `{code}` |" not in PAGE_OF_FRAMES} == set()


def test_all_that_a_peer_sends_fits_into_one_ethernet_frame() -> None:
    codec = Codec(1, KEY)
    for kind, body in cut(DATA, bytes(100_000)):
        whole = frame_bytes(REPAIR, 7, write_repair(ORIGIN, kind, body))
        assert len(codec.encode(ORIGIN, [whole])) <= DATAGRAM_BYTES_MAX
    assert codec.overhead == 36
    assert BUNDLE_BYTES_MAX < DATAGRAM_BYTES_MAX


@effort(300)
@given(st.binary(max_size=200), st.data())
def test_no_change_of_a_keyed_datagram_goes_unnoticed(body: bytes, data: st.DataObject) -> None:
    codec = Codec(9, KEY)
    datagram = bytearray(codec.encode(ORIGIN, [frame_bytes(DATA, 5, body)]))
    place = data.draw(st.integers(0, len(datagram) - 1))
    datagram[place] ^= data.draw(st.integers(1, 255))
    refused_with(codec, bytes(datagram))


@effort(500)
@given(st.binary(max_size=1_500))
def test_random_datagrams_are_read_or_refused_and_never_fail_otherwise(noise: bytes) -> None:
    codec = Codec(9)
    for datagram in (noise, codec.encode(ORIGIN, [noise])):
        with contextlib.suppress(FrameFault):
            codec.decode(datagram)
    for read in (read_request, read_repair, read_heartbeat):
        with contextlib.suppress(FrameFault):
            read(noise)


def test_keys_and_origins_of_a_wrong_size_are_refused() -> None:
    for key in (b"", b"short", bytes(65)):
        with pytest.raises(ValueError, match="16 to 64 bytes"):
            Codec(1, key)
    with pytest.raises(ValueError, match="8 bytes"):
        make_origin(b"seven b", 1)
    with pytest.raises(ValueError, match="incarnation"):
        make_origin(b"12345678", 2**32)


# ── fragments ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@effort(100)
@given(st.integers(1, 6 * FRAGMENT_BYTES), st.sampled_from(sorted(PAYLOADS)), st.randoms(use_true_random=False))
def test_a_payload_is_put_together_whatever_the_order_of_its_fragments(size: int, kind: int, chance: Random) -> None:
    payload = chance.randbytes(size)
    parts = list(enumerate(cut(kind, payload), start=11))
    if len(parts) == 1:
        assert parts == [(11, (kind, payload))]
        return
    chance.shuffle(parts)
    reassembly = Reassembly(DropCounts())
    whole = [reassembly.add(ORIGIN, seq, body, 0) for seq, (_, body) in [*parts[:-1], *parts]]
    assert [one for one in whole if one is not None] == [(kind, payload)]
    assert reassembly.size == 0


def test_a_forged_fragment_does_not_spoil_the_true_payload() -> None:
    payload, other = bytes(3_000), bytes([1]) * 3_000
    true, forged = cut(DATA, payload), cut(DATA, other)
    reassembly = Reassembly(DropCounts())
    assert reassembly.add(ORIGIN, 2, forged[1][1], 0) is None
    assert [reassembly.add(ORIGIN, seq, body, 0) for seq, (_, body) in enumerate(true, start=1)][-1] == (DATA, payload)


def test_fragments_that_never_end_are_bounded_and_crowd_out_none_that_is_on_its_way() -> None:
    counts = DropCounts()
    reassembly = Reassembly(counts)
    chance = Random(1)
    payload = chance.randbytes(300_000)
    whole = None
    for seq, (kind, body) in enumerate(cut(DATA, payload), start=1):
        assert kind == FRAGMENT
        whole = reassembly.add(ORIGIN, seq, body, 0)
        for _ in range(50):
            forged = fragments.HEAD.pack(DATA, 0, 380, chance.getrandbits(32)) + bytes(FRAGMENT_BYTES)
            assert reassembly.add(make_origin(chance.randbytes(8), 1), 1, forged, 0) is None
        assert reassembly.size <= PENDING_BYTES_MAX
    assert whole == (DATA, payload)
    assert counts[fragments.CROWDED_OUT] > 1_000
    assert reassembly.expire(29_999) == 0
    assert reassembly.expire(30_000) > 1_000
    assert (reassembly.size, reassembly.deadline_ms()) == (0, None)


@pytest.mark.parametrize(
    ("head", "seq", "size"),
    [
        ((DATA, 2, 2, 0), 9, 10),
        ((DATA, 0, 1, 0), 9, 10),
        ((DATA, 0, 2, 0), 9, 10),
        ((DATA, 1, 2, 0), 1, 10),
        ((DATA, 1, 2, 0), 9, 0),
        ((FRAGMENT, 1, 2, 0), 9, 10),
        ((HEARTBEAT, 1, 2, 0), 9, 10),
        ((DATA, 1, 400, 0), 9, FRAGMENT_BYTES),
    ],
)
def test_impossible_fragments_are_refused(head: tuple[int, int, int, int], seq: int, size: int) -> None:
    with pytest.raises(FrameFault):
        Reassembly(DropCounts()).add(ORIGIN, seq, fragments.HEAD.pack(*head) + bytes(size), 0)


def test_a_payload_of_another_checksum_is_refused() -> None:
    reassembly = Reassembly(DropCounts())
    parts = [
        part[: fragments.HEAD.size] + b"x" * (len(part) - fragments.HEAD.size) for _, part in cut(DATA, bytes(2_000))
    ]
    reassembly.add(ORIGIN, 1, parts[0], 0)
    with pytest.raises(FrameFault) as refused:
        reassembly.add(ORIGIN, 2, parts[1], 0)
    assert refused.value.code == fragments.MISMATCH
    assert reassembly.size == 0
