"""Hostile datagrams: what they cost is bounded, and the good traffic beside them is unharmed."""

from __future__ import annotations

import os
from random import Random

import pytest

from precede.udfs.peers.asking import GIVE_UP_MS, Asking
from precede.udfs.peers.broadcast import Broadcast
from precede.udfs.peers.fragments import HEAD, PENDING_BYTES_MAX
from precede.udfs.peers.frames import (
    DATA,
    FRAGMENT,
    FRAGMENT_BYTES,
    FRAME,
    HEARTBEAT,
    REPAIR,
    REQUEST,
    REQUEST_ENTRY,
    Codec,
    VectorEntry,
    frame_bytes,
    make_origin,
    write_heartbeat,
    write_repair,
    write_request,
)
from precede.udfs.peers.streams import ORIGINS_MAX, Streams
from tests.kernel.broadcasting import KEY, SEGMENT, Broadcasters
from tests.kernel.medium import Weather

CASES = 200_000 if os.environ.get("PRECEDE_EXPLORE") else 6_000


def names(count: int) -> list[str]:
    return [f"p{number}" for number in range(count)]


def check_bounds(peer: Broadcast) -> None:
    """All that a peer keeps is within its limits."""
    assert len(peer.streams.by_origin) <= ORIGINS_MAX
    assert peer._reassembly.size <= PENDING_BYTES_MAX
    assert sum(len(stream.wanted) for stream in peer.streams.by_origin.values()) <= 16_384 + 128 * ORIGINS_MAX
    assert all(len(stream.runs.beyond) <= 20_100 for stream in peer.streams.by_origin.values())
    assert len(peer.repairing._pending) <= 10_000


def heard_datagrams(group: Broadcasters) -> list[bytes]:
    """Some datagrams of honest peers, as an eavesdropper would have them."""
    heard: list[bytes] = []
    group.medium.overheard = heard
    group.talk(names(len(group.peers)), per_second=100, seconds=0.3)
    group.medium.run(group.medium.now_ms + 500)
    group.medium.overheard = None
    return heard


@pytest.mark.timeout(900)
def test_random_and_changed_datagrams_neither_harm_nor_grow() -> None:
    for key in (KEY, None):
        group = Broadcasters(3, key=key)
        heard = heard_datagrams(group)
        chance = Random(5)
        group.talk(names(3), per_second=200, seconds=CASES / 6_000)
        begun_ms = group.medium.now_ms
        for number in range(CASES):
            datagram = bytearray(chance.choice(heard))
            for _ in range(chance.randrange(4)):
                datagram[chance.randrange(len(datagram))] = chance.randrange(256)
            if chance.random() < 0.1:
                datagram = bytearray(chance.randbytes(chance.randrange(1_500)))
            elif chance.random() < 0.2:
                del datagram[chance.randrange(len(datagram)) :]
            when_ms = begun_ms + number / 6
            group.medium.at(when_ms, group.medium.inject, bytes(datagram))
        group.medium.run(begun_ms + CASES / 6 + 100)
        group.medium.run_until(group.all_have_all, 3_000)
        for peer in group.peers:
            check_bounds(peer)


def test_a_forged_frame_under_a_true_seq_does_not_hide_the_true_one() -> None:
    for key in (KEY, None):
        group = Broadcasters(3, key=key)
        group.talk(["p0"], per_second=100, seconds=0.1)
        group.medium.run(200)
        victim = group.peer("p0")
        forger = Codec(SEGMENT, None if key is None else b"another segment's")
        coming = range(victim.sending.seq + 1, victim.sending.seq + 20)
        forged = [frame_bytes(DATA, seq, b"forged") for seq in coming]
        repaired = [frame_bytes(REPAIR, seq, write_repair(victim.origin, DATA, b"forged")) for seq in coming]
        group.medium.inject(forger.encode(victim.origin, forged))
        group.medium.inject(forger.encode(make_origin(b"somebody", 1), repaired))
        group.medium.run(210)
        group.talk(["p0"], per_second=100, seconds=0.2)
        group.medium.run(500)
        group.medium.run_until(group.all_have_all, 1_000)
        assert (b"forged" in group.got["p1"]) == (key is None)
        assert (group.total("forged") > 0) == (key is not None)


def test_forged_requests_draw_at_most_ten_bytes_for_one() -> None:
    group = Broadcasters(4, key=None)
    group.talk(names(4), per_second=300, seconds=1, size=1_000)
    group.medium.run(6_000)
    before = {name: node.sent_bytes for name, node in group.medium.nodes.items()}
    idle = Broadcasters(4, key=None)
    idle.medium.run(6_000)
    idle_before = sum(node.sent_bytes for node in idle.medium.nodes.values())
    spent = 0
    for number in range(500):
        asker = make_origin(number.to_bytes(8, "big") if number % 2 else b"the same", 1)
        entries = [(peer.origin, 1, 300) for peer in group.peers]
        datagram = Codec(SEGMENT).encode(asker, [frame_bytes(REQUEST, 0, write_request(entries))])
        spent += len(datagram)
        group.medium.at(6_000 + number * 4, group.medium.inject, datagram)
    group.medium.run(9_000)
    idle.medium.run(9_000)
    usual = sum(node.sent_bytes for node in idle.medium.nodes.values()) - idle_before
    drawn = sum(node.sent_bytes - before[name] for name, node in group.medium.nodes.items()) - 2 * usual
    assert 0 < drawn <= 10 * spent
    assert group.total("repairs_not_earned") > 0


def test_forged_claims_draw_at_most_ten_bytes_for_one_from_each_peer() -> None:
    group = Broadcasters(4, key=None)
    group.medium.run(2_000)
    before = {name: node.sent_bytes for name, node in group.medium.nodes.items()}
    spent = 0
    for number in range(100):
        origin = make_origin(b"claimant", number % 10)
        beat = write_heartbeat(1, [VectorEntry(group.peer("p1").origin, 5_000, 9_000)])
        datagram = Codec(SEGMENT).encode(origin, [frame_bytes(HEARTBEAT, 9_000 + number, beat)])
        spent += len(datagram)
        group.medium.at(2_000 + number * 10, group.medium.inject, datagram)
    group.medium.run(40_000)
    idle = Broadcasters(4, key=None)
    idle.medium.run(40_000)
    for name, node in group.medium.nodes.items():
        usual = idle.medium.nodes[name].sent_bytes
        assert node.sent_bytes - before[name] - usual <= 10 * spent


def test_a_flood_of_origins_pushes_out_itself_and_not_those_that_speak() -> None:
    group = Broadcasters(3, key=None)
    group.medium.run(2_000)
    group.talk(names(3), per_second=100, seconds=1)
    for number in range(2_000):
        origin = make_origin(number.to_bytes(8, "big"), 1)
        body = frame_bytes(DATA, 10**9, b"x") + frame_bytes(HEARTBEAT, 10**9, write_heartbeat(1, []))
        datagram = Codec(SEGMENT).encode(origin, [body])
        group.medium.at(2_000 + number / 2, group.medium.inject, datagram)
    group.medium.run(3_100)
    group.medium.run_until(group.all_have_all, 1_000)
    for peer in group.peers:
        check_bounds(peer)
        assert {other.origin for other in group.peers} - {peer.origin} <= set(peer.streams.by_origin)


def test_an_origin_that_begins_again_is_asked_for_each_frame_once_and_given_up_once() -> None:
    streams = Streams()
    asking = Asking(streams, Random(1))
    stream = streams.heard(make_origin(b"restless", 1), 0.0)
    for _ in "ab":  # a heartbeat that says less than it said before makes it begin again
        stream.begin(1)
        stream.claim(5)
        asking.notice(stream, 0.0)
    stream.earn(10_000)
    ((frame, *_),) = asking.due(50.0)
    assert len(frame) == FRAME.size + REQUEST_ENTRY.size
    asking.due(GIVE_UP_MS + 1)
    assert (asking.given_up, stream.wanted) == (5, {})


def test_made_up_origins_that_say_they_have_nothing_slow_no_one_down() -> None:
    group = Broadcasters(3, key=None)
    group.medium.run(2_000)
    lacks_all = write_heartbeat(1, [VectorEntry(peer.origin, 0, 0) for peer in group.peers])
    for number in range(1_000):
        origin = make_origin((1_000 + number).to_bytes(8, "big"), 1)
        datagram = Codec(SEGMENT).encode(origin, [frame_bytes(HEARTBEAT, 1, lacks_all)])
        group.medium.at(2_000 + number, group.medium.inject, datagram)
    group.talk(names(3), per_second=500, seconds=1)
    group.medium.run(3_000)
    assert [peer.peers for peer in group.peers] == [3, 3, 3]
    assert group.medium.run_until(group.all_have_all, 1_000) < 50


def test_fragments_that_never_end_stop_no_large_record() -> None:
    group = Broadcasters(3, key=None, weather=Weather(loss=0.02))
    group.medium.run(100)
    chance = Random(3)
    for number in range(9_000):
        body = HEAD.pack(DATA, 0, 300, chance.getrandbits(32)) + bytes(FRAGMENT_BYTES)
        datagram = Codec(SEGMENT).encode(
            make_origin(b"unending", number % 9), [frame_bytes(FRAGMENT, number + 1, body)]
        )
        group.medium.at(100 + number / 18, group.medium.inject, datagram)
    group.medium.at(300, group.say, "p0", bytes(400_000))
    group.medium.run(310)
    group.medium.run_until(group.all_have_all, 1_000)
    group.medium.run(700)
    assert group.total("crowded_out") > 0
    for peer in group.peers:
        check_bounds(peer)


def test_replayed_datagrams_are_copies_and_draw_nothing_new() -> None:
    group = Broadcasters(3)
    heard: list[bytes] = []
    group.medium.overheard = heard
    group.talk(names(3), per_second=100, seconds=1)
    group.medium.run(2_000)
    group.medium.overheard = None
    seen = {name: list(got) for name, got in group.got.items()}
    for number, datagram in enumerate(heard):
        group.medium.at(2_000 + number, group.medium.inject, datagram)
    group.medium.run(2_000 + len(heard) + 1_000)
    assert group.got == seen
    assert group.total("copies") > 0
    assert group.total("own") > 0


def test_another_segments_key_is_counted_and_has_no_effect() -> None:
    group = Broadcasters(2)
    group.medium.inject(
        Codec(SEGMENT, b"another segment's").encode(make_origin(b"stranger", 1), [frame_bytes(DATA, 1, b"x")])
    )
    group.medium.inject(Codec(SEGMENT + 1, KEY).encode(make_origin(b"stranger", 1), [frame_bytes(DATA, 1, b"x")]))
    group.medium.run(1_000)
    assert (group.total("forged"), group.total("other_segment")) == (2, 2)
    assert all(len(peer.streams.by_origin) == 1 for peer in group.peers)
