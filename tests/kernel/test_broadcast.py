"""Broadcast over a bad medium: everybody gets everything, within the measured bounds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from precede.udfs.errors import Refused
from precede.udfs.peers.asking import GIVE_UP_MS
from precede.udfs.peers.broadcast import QUEUED_BYTES_MAX
from precede.udfs.peers.fragments import PAYLOAD_BYTES_MAX
from precede.udfs.peers.frames import DATA, FRAGMENT, HEARTBEAT
from precede.udfs.peers.repairing import FRAME_COST, FrameStore
from precede.udfs.peers.sending import BUSY_MS, LINGER_MS
from precede.udfs.peers.streams import FORGET_MS
from tests.kernel.broadcasting import Broadcasters
from tests.kernel.effort import effort
from tests.kernel.medium import Weather


def names(count: int) -> list[str]:
    return [f"p{number}" for number in range(count)]


def lost_by_someone(group: Broadcasters, loss: float) -> float:
    """How many frames at least one of the others lost."""
    frames = sum(peer.sending.sent_frames for peer in group.peers)
    return frames * (1 - (1 - loss) ** (len(group.peers) - 1))


def repairs(group: Broadcasters) -> int:
    return sum(peer.repairing.sent for peer in group.peers)


def test_without_loss_each_payload_comes_once_and_nothing_is_asked_for() -> None:
    group = Broadcasters(4)
    group.talk(names(4), per_second=500, seconds=1)
    group.medium.run(1_050)
    assert all(sorted(got) == sorted(group.sent) for got in group.got.values())
    assert sum(peer.asking.entries_sent for peer in group.peers) == 0


def test_eight_peers_recover_from_twenty_percent_loss_with_few_repairs() -> None:
    group = Broadcasters(8, weather=Weather(loss=0.2))
    group.talk(names(8), per_second=500, seconds=1)
    group.medium.run(1_000)
    assert group.medium.run_until(group.all_have_all, 500) <= 500
    lost = lost_by_someone(group, 0.2)
    assert repairs(group) <= 2.5 * lost
    assert sum(peer.asking.entries_sent for peer in group.peers) <= 2 * lost
    assert sum(peer.lost for peer in group.peers) == 0


def test_a_hundred_peers_recover_without_an_implosion_of_repairs() -> None:
    group = Broadcasters(100, weather=Weather(loss=0.2))
    group.talk(names(100), per_second=4, seconds=0.5)
    group.medium.run(500)
    assert group.medium.run_until(group.all_have_all, 1_000) <= 500
    assert repairs(group) <= 5 * lost_by_someone(group, 0.2)


def test_the_last_frame_of_a_peer_is_missed_by_its_heartbeat() -> None:
    group = Broadcasters(3)
    group.medium.run(50)
    group.medium.dropped = lambda datagram: b"the last" in datagram
    group.say("p0", b"the last")
    group.medium.run(60)
    group.medium.dropped = lambda datagram: False
    assert group.medium.run_until(group.all_have_all, 100) <= 60


def test_a_frame_of_a_crashed_peer_is_repaired_by_another_that_has_it() -> None:
    group = Broadcasters(4)
    group.medium.run(50)
    group.medium.cut(["p0", "p1"], ["p2", "p3"])
    group.say("p0", b"heard by one")
    group.medium.run(60)
    group.medium.crash("p0")
    group.medium.heal()
    assert group.medium.run_until(group.all_have_all, 2_000) <= 1_500
    assert group.peer("p1").repairing.sent >= 1


def test_a_cut_of_half_the_peers_heals() -> None:
    group = Broadcasters(8, weather=Weather(loss=0.02))
    group.talk(names(8), per_second=100, seconds=7)
    group.medium.at(1_000, group.medium.cut, names(4), ["p4", "p5", "p6", "p7"])
    group.medium.at(6_000, group.medium.heal)
    group.medium.run(7_000)
    assert group.medium.run_until(group.all_have_all, 5_000) <= 4_000
    assert sum(peer.lost for peer in group.peers) == 0


def test_peers_that_forgot_each_other_in_a_long_cut_keep_some_frames_anew_and_go_on_beyond_the_room_for_them() -> None:
    group = Broadcasters(2, store_bytes_max=40_000)
    group.talk(names(2), per_second=20, seconds=2)
    group.medium.run(3_000)
    group.medium.cut(["p0"], ["p1"])
    group.medium.run(3_000 + FORGET_MS + 5_000)
    group.medium.heal()
    group.medium.run(group.medium.now_ms + 1_000)
    group.talk(names(2), per_second=100, seconds=2)
    group.medium.run(group.medium.now_ms + 2_000)
    group.medium.run_until(group.all_have_all, 1_000)


def test_a_frame_that_is_kept_anew_takes_its_room_once() -> None:
    store = FrameStore(10_000)
    for size in (300, 100, 200):
        for seq in range(1, 11):
            store.put(b"origin", seq, DATA, bytes(size))
    assert store.size == 10 * (200 + FRAME_COST)
    for seq in range(11, 101):
        store.put(b"origin", seq, DATA, bytes(200))
    assert store.size <= 10_000
    assert (store.get(b"origin", 10), store.get(b"origin", 100)) == (None, (DATA, bytes(200)))


def test_a_bundle_may_be_kept_where_some_of_its_frames_are_kept_already() -> None:
    store = FrameStore(10_000)
    store.put(b"origin", 2, DATA, bytes(300))
    store.put_next(b"origin", 1, [(DATA, bytes(200))] * 3)
    store.put_next(b"origin", 4, [(DATA, bytes(200))] * 3)
    assert store.size == 6 * (200 + FRAME_COST)
    assert [store.get(b"origin", seq) for seq in range(1, 7)] == [(DATA, bytes(200))] * 6
    store.put_next(b"origin", 7, [(DATA, bytes(200))] * 100)
    assert store.size <= 10_000
    assert store.first_kept(b"origin") == 106 - store.size // (200 + FRAME_COST) + 1


def test_who_says_little_waits_little_and_who_says_much_fills_the_datagrams() -> None:
    little, much = Broadcasters(2), Broadcasters(2)
    little.medium.run(100)
    sent = little.medium.nodes["p0"].sent
    little.say("p0", b"x" * 125)
    assert little.medium.run_until(little.all_have_all, 5, step_ms=0.1) <= LINGER_MS + 0.7
    assert little.medium.nodes["p0"].sent == sent + 1
    much.talk(["p0"], per_second=5_000, seconds=0.5)
    much.medium.run(500)
    assert much.medium.run_until(much.all_have_all, 10, step_ms=0.1) <= LINGER_MS + BUSY_MS + 0.7
    assert much.peer("p0").sending.sent_frames / much.medium.nodes["p0"].sent > 7


def test_a_record_of_the_largest_size_arrives_soon_and_whole() -> None:
    for loss, limit_ms in ((0.0, 50), (0.05, 150)):
        group = Broadcasters(4, weather=Weather(loss=loss))
        group.medium.run(100)
        group.say("p0", bytes(range(256)) * (PAYLOAD_BYTES_MAX // 256))
        assert group.medium.run_until(group.all_have_all, 1_000, step_ms=1) <= limit_ms


def test_a_newcomer_gets_what_is_sent_from_then_on() -> None:
    group = Broadcasters(3, weather=Weather(loss=0.1))
    group.talk(names(3), per_second=200, seconds=1)
    group.medium.run(1_100)
    before = len(group.sent)
    group.start("new")
    group.medium.run(1_600)
    group.talk(["p0", "new"], per_second=100, seconds=1)
    group.medium.run(2_700)
    group.medium.run(3_200)
    assert set(group.got["new"]) >= set(group.sent[before:])
    assert set(group.got["p1"]) == set(group.sent)


def test_a_peer_that_starts_again_is_another_origin_and_loses_nothing() -> None:
    group = Broadcasters(3)
    group.say("p0", b"before")
    group.medium.run(100)
    group.start("p0")
    group.say("p0", b"after")
    group.medium.run(200)
    assert group.got["p1"] == [b"before", b"after"]


def test_overload_slows_the_sender_and_is_refused_at_the_limit() -> None:
    group = Broadcasters(2)
    group.medium.run(100)
    payload = bytes(100_000)
    accepted = int(QUEUED_BYTES_MAX * 0.99) // len(payload)
    for _ in range(accepted):
        group.peer("p0").send(DATA, payload, 100)
    with pytest.raises(Refused, match="wait to be sent"):
        group.peer("p0").send(DATA, bytes(PAYLOAD_BYTES_MAX), 100)
    group.medium.poke("p0")
    group.medium.run_until(lambda: len(group.got["p1"]) == accepted, 5_000)
    in_flight = [peer.sending.seq - peer.sending.confirmed(group.medium.now_ms) for peer in group.peers]
    assert max(in_flight) <= 1_024


def test_a_silent_peer_stops_no_other_for_longer_than_the_stall() -> None:
    group = Broadcasters(3)
    group.medium.run(100)
    group.talk(["p0"], per_second=4_000, seconds=2)
    group.medium.at(300, group.medium.cut, ["p0", "p1"], ["p2"])
    group.medium.run(2_200)
    group.medium.run_until(lambda: set(group.got["p1"]) >= set(group.sent), 1_000)
    assert len(group.sent) == 8_000


def test_payloads_that_keep_their_turn_are_not_overtaken_by_later_ones_of_their_sender() -> None:
    group = Broadcasters(3, weather=Weather(loss=0.2), keeps_turn=lambda _kind, payload: b"in turn" in payload)
    for number in range(400):
        word = "in turn" if number % 2 else "as it comes"
        group.medium.at(5 * number, group.say, "p0", f"{number:03} {word}".encode())
    group.medium.run(2_100)
    group.medium.run_until(group.all_have_all, 500)
    for name in ("p1", "p2"):
        got = group.got[name]
        for place, payload in enumerate(got):
            is_early = not set(group.sent[: int(payload[:3])]) <= set(got[:place])
            assert not (is_early and b"in turn" in payload)
        assert got != sorted(got), "nothing came early"


def test_what_keeps_its_turn_waits_until_the_frames_before_it_are_given_up() -> None:
    group = Broadcasters(2, keeps_turn=lambda _kind, _payload: True)
    group.medium.run(50)
    group.medium.dropped = lambda datagram: b"never heard" in datagram
    group.say("p0", b"never heard")
    group.medium.run(60)
    group.say("p0", b"the next")
    group.medium.run(GIVE_UP_MS / 2)
    assert not group.got["p1"]
    group.medium.run_until(lambda: group.got["p1"] == [b"the next"], GIVE_UP_MS)
    assert group.peer("p1").lost == 1


def test_a_payload_of_a_wrong_kind_is_refused() -> None:
    group = Broadcasters(1)
    for kind in (FRAGMENT, HEARTBEAT, 200):
        with pytest.raises(ValueError, match="one of the kinds"):
            group.peer("p0").send(kind, b"", 0)


@effort(15)
@given(
    seed=st.integers(0, 10_000),
    count=st.integers(2, 6),
    loss=st.floats(0, 0.4),
    repeat=st.floats(0, 0.3),
    jitter=st.floats(0, 20),
    cut_ms=st.integers(0, 900),
    sizes=st.lists(st.sampled_from([1, 100, 1_376, 1_377, 5_000]), min_size=1, max_size=5),
)
def test_whatever_the_weather_every_honest_peer_gets_everything(
    seed: int, count: int, loss: float, repeat: float, jitter: float, cut_ms: int, sizes: list[int]
) -> None:
    group = Broadcasters(count, seed=seed, weather=Weather(loss=loss, repeat=repeat, delay_ms=(0.1, 0.2 + jitter)))
    group.medium.run(200)
    for size in sizes:
        group.talk(names(count), per_second=20, seconds=1, size=size)
    group.medium.at(300, group.medium.cut, ["p0"], names(count)[1:])
    group.medium.at(300 + cut_ms, group.medium.heal)
    group.medium.run(1_300)
    group.medium.run_until(group.all_have_all, 20_000)
    assert sum(peer.lost for peer in group.peers) == 0
