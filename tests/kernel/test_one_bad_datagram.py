"""Whatever one datagram, one frame or one group raises, the segment goes on, counts it, and has it told once."""

from __future__ import annotations

from typing import Any

import pytest

from precede.udfs.peers.events import Delivered
from precede.udfs.peers.frames import HEARTBEAT, PAGE, Codec, frame_bytes, make_origin, write_heartbeat
from precede.udfs.peers.notes import SyncAnswer, SyncId, encode
from precede.udfs.peers.streams import FORGET_MS, ORIGINS_MAX
from precede.udfs.records.messages import Message
from tests.kernel.segments import GROUP, KEY, Segments

CODEC = Codec(7, KEY)


def a_page(origin: bytes, seq: int) -> bytes:
    """A page for somebody else, with a gap before it where nothing of its origin was heard."""
    page = SyncAnswer("eve", SyncId("dan", 1, GROUP, 1), [], has_more=True)
    return CODEC.encode(origin, [frame_bytes(PAGE, seq, encode(page))])


def test_a_page_whose_origin_is_pushed_out_before_its_turn_stops_no_one() -> None:
    segments = Segments("ann", "bob")
    segments.together("ann", "bob", order="lamport")
    segments.medium.inject(a_page(make_origin(b"attacker", 1), 5))
    for number in range(ORIGINS_MAX):
        origin = make_origin(b"flood%03d" % number, 1)
        for _ in range(2):
            segments.medium.inject(CODEC.encode(origin, [frame_bytes(HEARTBEAT, 1, write_heartbeat(1, []))]))
    segments.run(100)
    id_ = segments.say("ann")
    segments.run(500)
    assert id_ in segments.delivered("bob")
    assert "internal_error" not in segments["bob"].broadcast.counts


def test_a_page_whose_sender_crashed_and_was_forgotten_stops_no_one() -> None:
    segments = Segments("ann", "bob")
    segments.together("ann", "bob", order="lamport")
    segments.run(2_000)
    gone = segments["ann"].broadcast
    segments.medium.crash("ann")
    segments.medium.inject(a_page(gone.origin, gone.sending.seq + 3))
    segments.run(FORGET_MS + 5_000)
    assert gone.origin not in segments["bob"].broadcast.streams.by_origin
    segments.start("dan")
    segments.until(lambda: segments.is_offered("dan"))
    assert "internal_error" not in segments["bob"].broadcast.counts


def two_groups() -> Segments:
    """Ann and bob are in G and in H, and bob's kernel of G is broken from here on."""
    segments = Segments("ann", "bob")
    segments.together("ann", "bob", order="fifo")
    now_ms = segments.medium.now_ms
    segments["ann"].create("H", {"order": "fifo"}, now_ms)
    segments.run(1_000)
    segments["bob"].join("H", segments.medium.now_ms)
    segments.run(1_000)
    return segments


def broken(*_: Any, **__: Any) -> Any:
    raise ZeroDivisionError("a fault of precede")


@pytest.mark.parametrize("at", ["take_all", "due", "deadline_ms"])
def test_a_group_that_raises_does_not_stop_the_others(at: str) -> None:
    segments = two_groups()
    bob = segments["bob"]
    setattr(bob.groups[GROUP], at, broken)
    for number in range(3):
        segments.say("ann", number)
        segments["ann"].send("H", b"%d" % number, now_ms=segments.medium.now_ms)
        segments.medium.poke("ann")
        segments.run(100)
    segments.run(2_000)
    delivered = [one for one in segments.of("bob", Delivered) if one.group == "H"]
    assert sum(isinstance(one.record, Message) for one in delivered) == 3
    assert bob.broadcast.counts["internal_error"] >= 1
    assert bob.broadcast.counts["internal_error"] < 100, "what fails at each look is looked at seldom"
    assert [type(fault) for fault in bob.take_faults()] == [ZeroDivisionError]
    assert bob.take_faults() == []
    segments.run(5_000)
    assert bob.take_faults() == [], "the same fault is told once"


def test_a_frame_that_raises_does_not_stop_what_stands_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    segments = two_groups()
    bob = segments["bob"]
    monkeypatch.setattr(bob.broadcast, "_take_heartbeat", broken)
    id_ = segments.say("ann")
    segments.run(1_000)
    assert id_ in segments.delivered("bob")
    assert bob.broadcast.counts["internal_error"] > 0
    assert [type(fault) for fault in bob.take_faults()] == [ZeroDivisionError]


def test_a_datagram_that_raises_does_not_stop_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    segments = two_groups()
    bob = segments["bob"]
    receive, seen = bob.broadcast.receive, [0]

    def sometimes(datagram: bytes, now_ms: float) -> Any:
        seen[0] += 1
        return broken() if seen[0] == 1 else receive(datagram, now_ms)

    monkeypatch.setattr(bob.broadcast, "receive", sometimes)
    id_ = segments.say("ann")
    segments.run(1_000)
    assert id_ in segments.delivered("bob")
    assert bob.broadcast.counts["internal_error"] == 1
