"""Whole segments under changed datagrams of every kind, also under the origins of others: nothing breaks or grows.

On a segment without a key, and from a peer with the key, anything can come under anyone's name. Then messages may be
displaced; but no datagram may stop a peer, and memory stays bounded.
"""

from __future__ import annotations

import json
import os
from random import Random

import pytest

from precede.udfs.orders import ORDERS
from precede.udfs.peers.directory import GroupInfo
from precede.udfs.peers.frames import ANNOUNCEMENT, DATA, Codec, frame_bytes, make_origin
from precede.udfs.peers.notes import Announcement, encode
from precede.udfs.peers.streams import ORIGINS_MAX
from tests.kernel.medium import Weather
from tests.kernel.segments import GROUP, KEY, Segments
from tests.signing import publics

CASES = 2_000 if os.environ.get("PRECEDE_EXPLORE") else 120
ON_SEGMENTS = [order for order in ORDERS if order != "total"]


def honest_frames(order: str, seed: int) -> tuple[Segments, list[tuple[bytes, int, int, bytes]]]:
    """Three members who have talked, and the frames that an eavesdropper has of that."""
    segments = Segments("ann", "bob", "cem", weather=Weather(loss=0.05), seed=seed)
    overheard: list[bytes] = []
    segments.medium.overheard = overheard
    segments.together("ann", "bob", "cem", order=order)
    more = {"to": ["ann", "bob", "cem"]} if order in ("causal_p2p", "object") else {}
    for name in ("ann", "bob", "cem", "ann"):
        segments.say(name, "x" * 20, **more)
        segments.say(name, "y" * 3_000, **more)
        segments.run(30)
    segments.leave("cem")
    segments.run(500)
    segments.start("dan")
    segments.until(lambda: segments.is_offered("dan"))
    segments.join("dan")
    segments.run(10_000)
    codec = Codec(7, KEY)
    frames: list[tuple[bytes, int, int, bytes]] = []
    for datagram in overheard:
        origin, found = codec.decode(datagram)
        frames += [(origin, *one) for one in found]
    segments.medium.overheard = None
    return segments, frames


def change(chance: Random, frame: tuple[bytes, int, int, bytes]) -> tuple[bytes, bytes]:
    """The frame under its own origin or another, with some bytes of its body changed."""
    origin, kind, number, body = frame
    changed = bytearray(body)
    for _ in range(chance.randrange(1, 4)):
        if changed:
            changed[chance.randrange(len(changed))] = chance.randrange(256)
    if chance.random() < 0.15:
        del changed[chance.randrange(len(changed) + 1) :]
    if chance.random() < 0.6:
        origin, number = make_origin(b"insider!", 1), chance.randrange(1, 5_000)
    elif chance.random() < 0.5:
        number = max(1, number + chance.choice([-50, -1, 1, 2, 50, 20_000]))
    return origin, frame_bytes(kind, max(number, 1), bytes(changed))


@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("order", ON_SEGMENTS)
def test_no_datagram_stops_a_peer(order: str) -> None:
    seed = Random().randrange(10**6) if os.environ.get("PRECEDE_EXPLORE") else 3
    segments, frames = honest_frames(order, seed)
    chance = Random(seed)
    by_kind: dict[int, list[tuple[bytes, int, int, bytes]]] = {}
    for frame in frames:
        by_kind.setdefault(frame[1], []).append(frame)
    codec = Codec(7, KEY)
    for number in range(CASES):
        origin, frame_ = change(chance, chance.choice(by_kind[chance.choice(list(by_kind))]))
        segments.medium.inject(codec.encode(origin, [frame_]))
        segments.run(1)
        if number % 500 == 499:
            segments.run(5_000)
    segments.run(3_000)
    for name in segments.medium.nodes:
        broadcast = segments[name].broadcast
        assert len(broadcast.streams.by_origin) <= ORIGINS_MAX, f"seed {seed}"
        segments[name].dump()
    assert segments.told["ann"]


def test_a_record_beyond_the_limit_is_refused_in_a_sentence() -> None:
    segments = Segments("ann", "bob")
    segments.together("ann", "bob", order="fifo")
    value = json.dumps({"group": GROUP, "sender": "eve", "seq": 1, "data": "x" * 512 * 1024}).encode()
    bob = segments["bob"].broadcast
    bob.send(DATA, b"\x01G" + value, segments.medium.now_ms)
    segments.medium.poke("bob")
    segments.run(1_000)
    assert segments.refused("ann") == ["oversize"]


def announce(segments: Segments, create: bytes, seq: int) -> None:
    """A stranger says that this record began the group."""
    note = Announcement("eve", False, False, [GroupInfo(GROUP, create, {})])
    frame = frame_bytes(ANNOUNCEMENT, seq, encode(note))
    segments.medium.inject(Codec(7, KEY).encode(make_origin(b"eve.....", 1), [frame]))
    segments.run(1_000)


def test_a_create_that_the_kernel_refuses_takes_no_ones_place() -> None:
    segments = Segments("ann", "bob")
    segments.together("ann", "bob", order="fifo")
    said = [segments.say(name, "x") for name in ("ann", "bob")]
    segments.run(500)
    create = segments["ann"].groups[GROUP].records.create
    assert create is not None
    forged = create.replace(b"fifo", b"fifa")
    assert forged < create
    announce(segments, forged, 1)
    assert segments["ann"].broadcast.counts["bad_create"] == segments["bob"].broadcast.counts["bad_create"] == 1
    said += [segments.say(name, "y") for name in ("ann", "bob")]
    segments.run(500)
    for name in ("ann", "bob"):
        assert segments[name].groups[GROUP].records.create == create
        assert sorted(segments.delivered(name)) == sorted(said)
        assert segments.refused(name) == []


def test_who_could_not_join_under_a_create_joins_under_the_next() -> None:
    segments = Segments("ann", "bob")
    segments.together("ann", "bob", order="fifo")
    head = b'{"group":"G","kind":"create","members":[],"options":{'
    with_keys = head + b'"keys":{"service":"%s"},"order":"fifo"}}' % publics("ann")["ann"].encode()
    announce(segments, with_keys, 1)
    assert not segments["ann"].groups[GROUP].members
    announce(segments, head + b'"digests":9,"order":"fifo"}}', 2)
    segments.run(3_000)
    said = [segments.say(name, "x") for name in ("ann", "bob")]
    segments.run(1_000)
    for name in ("ann", "bob"):
        assert segments[name].groups[GROUP].own_join.joined
        assert segments[name].groups[GROUP].members.keys() == {"ann", "bob"}
        assert sorted(segments.delivered(name)) == sorted(said)
