"""Hostile peers inside a segment: they have the key, and say what they like. Memory, time and answers stay bounded."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from precede.udfs.peers import kept_messages, notes, sync_schedule
from precede.udfs.peers.directory import MEMBERS_MAX, GroupInfo
from precede.udfs.peers.events import RecordRefused
from precede.udfs.peers.fragments import cut
from precede.udfs.peers.frames import ANNOUNCEMENT, DATA, PAGE, SYNC, Codec, frame_bytes, make_origin
from precede.udfs.peers.notes import Announcement, Have, SyncAnswer, SyncId, SyncRequest
from precede.udfs.peers.segment import OFFERED_BYTES_MAX
from tests.kernel.medium import Weather
from tests.kernel.segments import GROUP, KEY, Segments

PEERS = ("ann", "bob", "cem")

CASES = 100_000 if os.environ.get("PRECEDE_EXPLORE") else 4_000


class Insider:
    """A process with the key that sends payloads of its own making."""

    def __init__(self, segments: Segments) -> None:
        self.segments = segments
        self.origin = make_origin(b"insider!", 1)
        self.seq = 0

    def send(self, kind: int, payload: bytes) -> None:
        self.seq += 1
        datagram = Codec(7, KEY).encode(self.origin, [frame_bytes(kind, self.seq, payload)])
        self.segments.medium.inject(datagram)


def record(**fields: Any) -> bytes:
    return json.dumps({"group": GROUP, **fields}).encode()


def test_random_and_changed_payloads_harm_no_one() -> None:
    segments = Segments("ann", "bob", weather=Weather(loss=0.02))
    segments.together("ann", "bob", order="causal")
    insider, chance = Insider(segments), Random(4)
    good = [
        (DATA, notes.write_data(b"G", record(sender="eve", seq=1, seen=[["eve", 0, 1]]))),
        (DATA, notes.write_data(b"G", record(kind="join", sender="eve", epoch=3))),
        (DATA, notes.write_data(b"G", record(kind="leave", sender="bob", epoch=2, last=0))),
        (DATA, notes.write_data(b"G", record(kind="create", options={"order": "fifo"}, members=[]))),
        (ANNOUNCEMENT, notes.encode(notes.Announcement("eve", False, True, [GroupInfo("H", None, {})]))),
        (ANNOUNCEMENT, notes.encode(notes.JoinAnswer(GROUP, "bob", 2, "eve", 10**15))),
        (ANNOUNCEMENT, notes.encode(notes.InLog(GROUP, "eve", b"{}", []))),
        (SYNC, notes.encode(segments["bob"].groups[GROUP].sync_schedule.synchroniser.ask())),
        (PAGE, b"\x80"),
    ]
    said = []
    for number in range(CASES):
        kind, payload = chance.choice(good)
        changed = bytearray(payload)
        for _ in range(chance.randrange(1, 4)):
            changed[chance.randrange(len(changed))] = chance.randrange(256)
        insider.send(kind, bytes(changed))
        if number % 200 == 0:
            said.append(segments.say("ann", "x"))
        segments.run(1)
    segments.run(10_000)
    assert set(said) <= set(segments.delivered("bob"))
    assert set(said) <= set(segments.delivered("ann"))


def test_a_record_that_is_none_of_this_group_is_refused_in_a_sentence() -> None:
    segments = Segments("ann")
    segments.create("ann", order="fifo")
    segments.run(500)
    insider = Insider(segments)
    insider.send(DATA, notes.write_data(b"G", b"{"))
    insider.send(DATA, notes.write_data(b"G", json.dumps({"group": "H", "sender": "eve", "seq": 1}).encode()))
    insider.send(DATA, notes.write_data(b"G", record(kind="tick")))
    insider.send(DATA, notes.write_data(b"unknown", record(sender="eve", seq=1)))
    insider.send(DATA, b"\xffG")
    insider.send(ANNOUNCEMENT, b"\x00")
    segments.run(500)
    assert [one.code for one in segments.of("ann", RecordRefused)] == ["malformed", "wrong_key"]
    assert all(one.reason.endswith(".") for one in segments.of("ann", RecordRefused))
    assert segments["ann"].groups[GROUP].counts["ticks"] == 1
    assert segments["ann"].broadcast.counts["bad_body"] == 2


def test_requests_and_pages_that_contradict_themselves_are_counted_or_passed_over() -> None:
    segments = Segments("ann")
    segments.create("ann", order="s_b")
    segments.run(500)
    said = segments.say("ann", "x")
    insider = Insider(segments)
    id_ = SyncId("eve", 1, GROUP, 1)
    claims: list[list[Have]] = [
        [("a", 1, 3), ("a", 1, [0, 5, 6])],
        [("a", 1, [3, 2, 1])],
        [("ann", 1, 10**15)],
        [("", -1, 0)],
    ]
    for have in claims:
        insider.send(SYNC, notes.encode(SyncRequest(id_, have)))
        insider.send(PAGE, notes.encode(SyncAnswer("eve", SyncId("ann", 1, GROUP, 1), [], settled=have)))
        insider.send(
            PAGE, notes.encode(SyncAnswer("eve", id_, [(("a", 1, 1), b"{}")], time=10**18, controls=[b"", b"["]))
        )
    segments.run(10_000)
    assert segments["ann"].broadcast.counts["peer_fault"] >= 2
    again = segments.say("ann", "y", after=[said])
    segments.run(100)
    assert segments.delivered("ann") == [said, again]


def test_no_one_can_make_a_member_pass_over_what_was_never_said() -> None:
    segments = Segments("ann", "bob")
    segments.together("ann", "bob", order="fifo")
    segments.run(2_000)
    insider = Insider(segments)
    for name in ("ann", "bob"):
        told: list[Have] = [("ann", 1, 10**6), ("bob", 2, 10**6)]
        insider.send(PAGE, notes.encode(SyncAnswer("eve", SyncId(name, 1, GROUP, 1), [], settled=told)))
    segments.run(10_000)
    said = [segments.say(name, "x") for name in ("ann", "bob", "ann")]
    segments.run(1_000)
    assert set(segments.delivered("ann")) == set(segments.delivered("bob")) == set(said)


def test_what_is_said_to_be_forgotten_takes_bounded_memory_and_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sync_schedule, "FORGOTTEN_MAX", 2_000)
    segments = Segments("ann")
    segments.create("ann", order="s_b")
    segments.run(500)
    insider = Insider(segments)
    for page in range(50):
        many: list[Have] = [(f"{page}.{at}", 1, 5) for at in range(100)]
        insider.send(PAGE, notes.encode(SyncAnswer("eve", SyncId("ann", 1, GROUP, page), [], settled=many)))
        segments.run(1)
    told = segments["ann"].groups[GROUP].sync_schedule._forgotten_since
    assert len(told) == 2_000
    torn: list[Have] = [("eve", 1, [0, *range(2, 10_000)])]
    insider.send(PAGE, notes.encode(SyncAnswer("eve", SyncId("ann", 1, GROUP, 50), [], settled=torn)))
    segments.run(100)
    assert segments["ann"].broadcast.counts["peer_fault"] == 1, "no honest page tears one sender into so many runs"


def test_made_up_senders_and_gaps_are_bounded_so_that_a_request_can_name_all_and_those_who_speak_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kept_messages, "HAVE_BYTES_MAX", 20_000)
    segments = Segments("ann", "bob")
    segments.together("ann", "bob", order="s_b")
    segments.run(2_000)
    first = segments.say("ann", "early")
    insider = Insider(segments)
    for number in range(500):
        names = f"{number}".ljust(200, "x"), "torn"
        for name, seq in zip(names, (1, 2 * number + 2), strict=True):
            said = record(sender=name, seq=seq, after=[])
            insider.send(DATA, notes.write_data(b"G", said))
        segments.run(1)
    segments.run(10_000)
    assert "backpressure" in segments.refused("bob")
    assert len(notes.encode(segments["bob"].groups[GROUP].sync_schedule.synchroniser.ask())) < 30_000
    late = segments.say("ann", "late", after=[first])
    segments.run(500)
    assert {first, late} <= set(segments.delivered("bob"))


def test_made_up_gateways_are_bounded_and_the_true_one_is_still_known() -> None:
    segments = Segments("ann")
    segments.start("gate", is_gateway=True)
    segments.run(1_000)
    insider = Insider(segments)
    for number in range(500):
        insider.send(ANNOUNCEMENT, notes.encode(Announcement(f"gate {number}", True, False, [])))
        segments.run(1)
    assert segments["ann"].announcing.gateways == {"gate", "gate 499"}


def test_made_up_joins_and_groups_are_bounded() -> None:
    segments = Segments("ann")
    segments.create("ann", order="s_b")
    segments.run(500)
    insider = Insider(segments)
    for number in range(3_000):
        insider.send(DATA, notes.write_data(b"G", record(kind="join", sender="eve", epoch=number + 1)))
        many = [GroupInfo(f"H{number}.{at}", None, {}) for at in range(10)]
        insider.send(ANNOUNCEMENT, notes.encode(notes.Announcement("eve", False, False, many)))
        segments.run(1)
    segments.run(20_000)
    peer = segments["ann"].groups[GROUP]
    assert len(peer.records.all()) <= 20
    assert len(peer.waiting._deferred) <= 1_000
    assert len(segments["ann"].directory.rows) <= 10_000
    assert len(segments["ann"].announcing._told) <= 10_000


def test_offers_take_bounded_memory() -> None:
    segments = Segments("ann")
    segments.run(500)
    insider = Insider(segments)
    for number in range(400):
        create = record(group=f"H{number}", kind="create", options={}, members=["x" * 200] * 1_000)
        view = {f"{number} {at}": (0, False) for at in range(50)}
        large = Announcement(
            "eve", False, False, [GroupInfo(f"H{number}", create, view), GroupInfo("same", None, view)]
        )
        for part in cut(ANNOUNCEMENT, notes.encode(large)):
            insider.send(*part)
        segments.run(1)
    segments.run(1_000)
    known = segments["ann"].directory.known
    assert sum(len(info.create or b"") for info in known.values()) <= OFFERED_BYTES_MAX
    assert 100 < len(known) < 400
    assert len(known["same"].view) <= MEMBERS_MAX
    assert segments["ann"].broadcast.counts["offers_crowded_out"] > 0


def asked_by(kind: str, number: int) -> tuple[bytes, bytes]:
    """The origin and the payload of a question that asks for everything."""
    name = "eve" if kind == "one" else f"eve{number}"
    origin = make_origin(b"%8d" % number, 1) if kind == "many origins" else make_origin(b"insider!", 1)
    have: list[Have] = [("zed", 1, 10**6 + number)] if kind == "one" else []
    return origin, notes.encode(SyncRequest(SyncId(name, 1, GROUP, number + 1), have))


def attacked(segments: Segments, datagrams: list[bytes], *, then_ms: float) -> int:
    """What all peers send while these datagrams come, and some time after; an empty one only takes its time."""
    before = sum(node.sent_bytes for node in segments.medium.nodes.values())
    for datagram in datagrams:
        if datagram:
            segments.medium.inject(datagram)
        segments.run(20)
    segments.run(then_ms)
    return sum(node.sent_bytes for node in segments.medium.nodes.values()) - before


def check_drawn(start: Callable[[], Segments], datagrams: list[bytes], *, then_ms: float) -> None:
    """Each peer sends something because of these datagrams, but at most ten bytes for one of theirs."""
    usual = attacked(start(), [b""] * len(datagrams), then_ms=then_ms)
    more = attacked(start(), datagrams, then_ms=then_ms) - usual
    assert 0 < more <= 10 * sum(map(len, datagrams)) * len(PEERS)


@pytest.mark.parametrize("kind", ["one", "many names", "many origins"])
def test_questions_for_everything_draw_at_most_ten_bytes_for_one_from_each_peer(kind: str) -> None:
    def start() -> Segments:
        segments = Segments(*PEERS)
        segments.together(*PEERS, order="s_b")
        for _ in range(300):
            segments.say("ann", "x" * 500)
            segments.run(2)
        segments.run(3_000)
        return segments

    datagrams: list[bytes] = []
    for number in range(200):
        origin, payload = asked_by(kind, number)
        seq = 1 if kind == "many origins" else number + 1
        datagrams.append(Codec(7, KEY).encode(origin, [frame_bytes(SYNC, seq, payload)]))
    check_drawn(start, datagrams, then_ms=20_000)


@pytest.mark.parametrize("kind", ["one", "many origins"])
def test_questions_who_is_there_draw_at_most_ten_bytes_for_one_from_each_peer(kind: str) -> None:
    def start() -> Segments:
        segments = Segments(*PEERS)
        for name in PEERS:
            for number in range(200):
                segments[name].create(f"{name} {number}", {"order": "fifo"}, segments.medium.now_ms)
        segments.run(3_000)
        return segments

    question = notes.encode(Announcement("eve", False, True, []))
    datagrams: list[bytes] = []
    for number in range(200):
        origin = make_origin(b"%8d" % number, 1) if kind == "many origins" else make_origin(b"insider!", 1)
        seq = 1 if kind == "many origins" else number + 1
        datagrams.append(Codec(7, KEY).encode(origin, [frame_bytes(ANNOUNCEMENT, seq, question)]))
    check_drawn(start, datagrams, then_ms=1_000)


def test_copies_of_a_join_draw_at_most_ten_bytes_for_one_from_each_peer() -> None:
    joins = [
        record(kind="join", sender=f"a member with a long name {number}", epoch=0, time=1) for number in range(150)
    ]

    def start() -> Segments:
        segments = Segments(*PEERS)
        segments.together(*PEERS, order="lamport")
        for join in joins:
            for name in PEERS:
                segments[name].groups[GROUP].take(join, segments.medium.now_ms)
        segments.run(5_000)
        return segments

    payload = notes.write_data(b"G", joins[-1])
    origin = make_origin(b"insider!", 1)
    datagrams = [Codec(7, KEY).encode(origin, [frame_bytes(DATA, seq, payload)]) for seq in range(1, 201)]
    check_drawn(start, datagrams, then_ms=5_000)


@pytest.mark.parametrize("count", [300, 5_000])
def test_a_newcomer_pays_for_what_it_is_told_of_and_hears_of_all_groups_soon(count: int) -> None:
    segments = Segments("gate", weather=Weather(loss=0.02))
    for at in range(count):
        create = record(group=f"group {at}", kind="create", options={"order": "fifo"})
        segments["gate"].advertised[f"group {at}"] = GroupInfo(f"group {at}", create, {})
    segments.run(25_000)
    segments.start("ann")
    assert segments.until(lambda: len(segments.offers("ann")) == count) <= 3_000


def test_a_newcomer_pays_for_its_pages_and_still_gets_a_long_history_soon() -> None:
    segments = Segments("ann", "bob", weather=Weather(loss=0.05))
    segments.together("ann", "bob", order="s_b")
    for _ in range(2_000):
        segments.say("ann", "x" * 500)
        segments.run(1)
    segments.run(5_000)
    segments.start("cem")
    segments.until(lambda: segments.is_offered("cem"))
    segments.join("cem")
    assert segments.until(lambda: len(segments.delivered("cem")) == 2_000) <= 5_000
    said = segments.medium.nodes["cem"].sent_bytes
    assert 1_000_000 / 10 <= said <= 1_000_000 / 2


@pytest.mark.parametrize("order", ["causal", "lamport"])
def test_poisoned_clocks_and_vectors_move_no_one(order: str) -> None:
    segments = Segments("ann", "bob")
    segments.together("ann", "bob", order=order)
    insider = Insider(segments)
    for seq in (1, 2, 3):
        stamps = {"seen": [["bob", 2, 10**9], ["eve", 0, seq]], "time": 10**12}
        insider.send(DATA, notes.write_data(b"G", record(sender="eve", seq=seq, **stamps)))
        insider.send(DATA, notes.write_data(b"G", record(kind="heartbeat", sender="bob", epoch=2, seq=1, time=10**12)))
    segments.run(200)
    said = [segments.say(name, "x") for name in ("ann", "bob", "ann")]
    segments.run(1_000)
    assert set(segments.delivered("ann")) == set(segments.delivered("bob")) == set(said)
