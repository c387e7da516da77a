"""A segment without a log: groups are created, discovered, joined and left, and every order is kept."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from precede.udfs.errors import Refused
from precede.udfs.limits import Limits
from precede.udfs.orders import ORDERS
from precede.udfs.peers.events import Delivered, Event, MessageHeld, ViewChanged
from precede.udfs.peers.speaking import Speaking
from precede.udfs.records.messages import Id, Message
from tests.kernel.effort import effort
from tests.kernel.medium import Weather
from tests.kernel.segments import GROUP, Segments

ON_A_SEGMENT = [order for order in ORDERS if order != "total"]


def say_something(segments: Segments, name: str, order: str, chance: Random, names: list[str]) -> Id:
    """A message with whatever the order asks for."""
    more: dict[str, Any] = {}
    heard = segments.delivered(name)
    if order in ("s_b", "object") and heard and chance.random() < 0.7:
        more["after"] = [chance.choice(heard[-5:])]
    if order == "causal_p2p":
        more["to"] = sorted(chance.sample(names, chance.randint(1, len(names))))
    return segments.say(name, "x", **more)


def test_a_group_is_created_discovered_offered_and_joined_and_its_messages_reach_all() -> None:
    segments = Segments("ann", "bob")
    segments.run(100)
    segments.create("ann", order="s_b")
    segments.run(100)
    assert segments.offers("bob") == [GROUP]
    segments.join("bob")
    segments.run(500)
    assert segments.joined("bob")
    question = segments.say("ann", "Who is in?")
    segments.run(50)
    answer = segments.say("bob", "I am.", after=[question])
    segments.run(50)
    assert segments.delivered("ann") == segments.delivered("bob") == [question, answer]
    assert list(segments["ann"].groups[GROUP].members) == ["ann", "bob"]


def test_what_is_said_in_a_row_is_delivered_once_in_order_and_reaches_all() -> None:
    segments = Segments("ann", "bob")
    segments.together("ann", "bob", order="fifo")
    segments.run(100)
    ann, now_ms = segments["ann"], segments.medium.now_ms
    said = [ann.send(GROUP, b'"x"', now_ms=now_ms) for _ in range(150)]
    assert not ann.is_confirmed(now_ms)
    assert ann.deadline_ms() <= now_ms
    assert [id_of(event) for event in ann.take_events()] == said
    said.append(ann.send(GROUP, b'"y"', now_ms=now_ms))
    assert ann.dump()["groups"][GROUP]["speaking"]["stamps"]["seq"] == 151
    segments.medium.poke("ann")
    segments.run(200)
    assert segments.delivered("bob") == said
    assert segments.delivered("ann") == said[150:]
    assert ann.is_confirmed(segments.medium.now_ms)


def id_of(event: Event) -> Id:
    assert isinstance(event, Delivered)
    assert isinstance(event.record, Message)
    return event.record.sender, event.record.epoch, event.record.seq  # type: ignore[return-value]


def test_a_raw_record_travels_byte_for_byte() -> None:
    segments = Segments("ann", "bob")
    segments.together("ann", "bob", order="fifo")
    segments.say("ann", {"a": [1.5, "é"]})
    segments.run(100)
    mine, theirs = ([one.value for one in segments.of(name, Delivered)][-1] for name in ("ann", "bob"))
    assert mine == theirs
    assert theirs.endswith(b',"data":{"a": [1.5, "\\u00e9"]}}')


@pytest.mark.parametrize("order", ON_A_SEGMENT)
def test_in_every_order_all_members_get_everything_once_through_loss(order: str) -> None:
    segments = Segments("ann", "bob", "cem", "dee", weather=Weather(loss=0.2, delay_ms=(0.1, 3), repeat=0.1))
    names = ["ann", "bob", "cem", "dee"]
    segments.run(500)
    segments.together(*names, order=order)
    chance = Random(3)
    said: list[Id] = []
    for _ in range(60):
        said.append(say_something(segments, chance.choice(names), order, chance, names))
        segments.run(chance.uniform(0, 20))
    segments.run(3_000)
    for name in names:
        heard = segments.delivered(name)
        assert len(heard) == len(set(heard))
        if order != "causal_p2p":
            assert set(heard) == set(said)
        assert segments.refused(name) == []
        assert segments[name].groups[GROUP].ordering.held() == []
    if order == "lamport":
        assert len({tuple(segments.delivered(name)) for name in names}) == 1
    if order in ("fifo", "causal", "lamport", "two_clock"):
        for name in names:
            for sender in names:
                seqs = [seq for who, _, seq in segments.delivered(name) if who == sender]
                assert seqs == sorted(seqs)


def test_total_and_declared_conflicts_need_the_log_and_are_refused_in_a_sentence() -> None:
    segments = Segments("ann")
    with pytest.raises(Refused, match="needs the log"):
        segments.create("ann", order="total")
    with pytest.raises(Refused, match="need the log"):
        segments.create("ann", order="object", conflicts=[["op", "op"]])
    with pytest.raises(Refused, match="There is no order"):
        segments.create("ann", order="alphabetical")
    with pytest.raises(Refused, match="join it first"):
        segments.say("ann")
    with pytest.raises(Refused, match="discover first"):
        segments.join("ann")


def test_a_newcomer_gets_the_history_page_by_page_and_is_then_synced() -> None:
    segments = Segments("ann", "bob", weather=Weather(loss=0.1))
    segments.together("ann", "bob", order="causal")
    for _ in range(300):
        segments.say("ann", "x" * 1_000)
        segments.say("bob", "y" * 1_000)
        segments.run(5)
    segments.run(1_000)
    segments.start("new")
    segments.until(lambda: segments.is_offered("new"))
    segments.join("new")
    segments.run(10_000)
    assert segments.synced("new")
    assert set(segments.delivered("new")) == set(segments.delivered("ann"))
    assert len(segments.delivered("new")) == 600
    pages = [segments[name].groups[GROUP].sync_schedule.pages_sent for name in ("ann", "bob")]
    assert 10 <= sum(pages) <= 40


@pytest.mark.parametrize("order", ["s_b", "fifo", "causal", "lamport"])
def test_what_is_forgotten_holds_up_no_newcomer(order: str) -> None:
    segments = Segments()
    for name in ("ann", "bob"):
        segments.start(name, kept_bytes_max=20_000)
    segments.together("ann", "bob", order=order)
    for _ in range(200):
        segments.say("ann", "x" * 200)
        segments.run(3)
    segments.say("bob", "last")
    segments.run(1_000)
    segments.start("new", kept_bytes_max=20_000)
    segments.run(500)
    segments.join("new")
    segments.run(6_000)
    heard = segments.delivered("new")
    assert sorted(heard) == sorted(segments.delivered("ann")[-len(heard) :])
    assert 5 <= len(heard) < 100
    assert segments["new"].groups[GROUP].ordering.held() == []
    segments.say("ann", "and on it goes")
    segments.say("new", "with me")
    segments.run(500)
    assert len(segments.delivered("new")) == len(heard) + 2
    assert len(segments.delivered("ann")) == 203


def test_in_a_group_by_clocks_a_join_counts_once_every_present_member_has_answered() -> None:
    segments = Segments("ann", "bob", "cem")
    segments.together("ann", "bob", order="lamport")
    segments.medium.cut(["ann", "cem"], ["bob"])
    segments.run(100)
    segments.join("cem")
    segments.run(1_500)
    assert not segments.joined("cem"), "bob was heard just before, and has not answered"
    with pytest.raises(Refused, match="not in G yet"):
        segments.say("cem")
    segments.medium.heal()
    segments.run(3_000)
    assert segments.joined("cem")
    for name in ("ann", "bob", "cem"):
        segments.say(name)
    segments.run(1_000)
    assert segments.delivered("ann") == segments.delivered("bob") == segments.delivered("cem")
    assert len(segments.delivered("ann")) == 3


def test_a_member_that_leaves_is_waited_for_no_longer() -> None:
    segments = Segments("ann", "bob")
    segments.together("ann", "bob", order="lamport")
    segments.say("bob", "bye")
    segments.leave("bob")
    segments.run(500)
    segments.medium.crash("bob")
    last = segments.say("ann", "alone")
    segments.run(500)
    assert segments.delivered("ann")[-1] == last
    assert segments.of("ann", ViewChanged)[-1].members.keys() == {"ann"}


def test_a_crashed_member_that_starts_anew_comes_with_a_larger_epoch_and_nothing_is_lost() -> None:
    segments = Segments("ann", "bob")
    segments.together("ann", "bob", order="causal")
    segments.say("bob", "before")
    segments.run(200)
    segments.medium.crash("bob")
    segments.start("bob")
    segments.run(500)
    segments.join("bob")
    segments.run(2_000)
    segments.say("bob", "after")
    segments.run(300)
    assert [(sender, seq) for sender, _, seq in segments.delivered("ann")] == [("bob", 1), ("bob", 1)]
    epochs = [epoch for _, epoch, _ in segments.delivered("ann")]
    assert epochs[0] < epochs[1]
    assert segments.refused("ann") == []


@pytest.mark.parametrize("leaves", [False, True])
@pytest.mark.parametrize("order", ["lamport", "two_clock"])
def test_who_crashed_under_clocks_holds_the_others_up_until_it_starts_again_without_its_state(
    order: str, leaves: bool
) -> None:
    segments = Segments("ann", "bob", "cem")
    segments.together("ann", "bob", "cem", order=order)
    segments.run(1_000)
    segments.medium.crash("cem")
    said = [segments.say(name, "x") for name in ("ann", "bob", "ann", "bob")]
    segments.run(30_000)
    assert len(segments.delivered("ann")) < len(said)
    assert {name for one in segments["ann"].held(GROUP) for name in one.silent} == {"cem"}
    segments.told["cem"].clear()
    segments.start("cem")
    segments.until(lambda: segments.is_offered("cem"))
    segments.join("cem")
    segments.until(lambda: segments.joined("cem"))
    if leaves:
        segments.leave("cem")
    segments.until(lambda: sorted(segments.delivered("ann")) == sorted(segments.delivered("bob")) == sorted(said))
    said.append(segments.say("ann", "z"))
    segments.until(lambda: sorted(segments.delivered("ann")) == sorted(segments.delivered("bob")) == sorted(said))


@pytest.mark.parametrize("order", ["s_b", "causal", "lamport"])
def test_a_clean_state_is_gone_on_with_and_an_old_one_takes_a_new_epoch(order: str) -> None:
    segments = Segments("ann", "bob")
    segments.together("ann", "bob", order=order)
    first = segments.say("bob", 1)
    segments.run(300)
    state = msgspec.msgpack.decode(msgspec.msgpack.encode(segments["bob"].dump()))
    segments.medium.crash("bob")
    segments.say("ann", "while bob is away")
    segments.run(100)
    segments.start("bob", state=state)
    segments.run(2_000)
    second = segments.say("bob", 2)
    assert second == (*first[:2], 2)
    segments.run(1_000)
    assert set(segments.delivered("ann")) == set(segments.delivered("bob"))
    assert len(segments.delivered("bob")) == 3
    segments.medium.crash("bob")
    segments.start("bob", state=state, is_clean=False)
    segments.run(4_000)
    third = segments.say("bob", 3)
    assert third[1] > first[1]
    assert third[2] == 1
    segments.run(1_000)
    assert third in segments.delivered("ann")


def test_a_record_of_the_largest_size_reaches_a_newcomer_of_a_large_group_too() -> None:
    segments = Segments("ann")
    segments.create("ann", order="s_b")
    segments.run(1_000)
    for number in range(80):
        join = {"group": GROUP, "kind": "join", "sender": f"member number {number} of the whole department"}
        segments["ann"].groups[GROUP].take(json.dumps(join).encode(), segments.medium.now_ms)
    large = segments.say("ann", "x" * (Limits().record_bytes_max - 100))
    segments.run(3_000)
    segments.start("bob")
    segments.until(lambda: segments.is_offered("bob"))
    segments.join("bob")
    segments.until(lambda: segments.synced("bob"))
    assert segments.delivered("bob") == [large]
    assert len(segments["bob"].groups[GROUP].members) == 82


@pytest.mark.parametrize("is_clean", [True, False])
def test_a_peer_that_stops_before_its_own_join_counts_starts_again_and_joins(is_clean: bool) -> None:
    segments = Segments("ann", "bob")
    segments.create("ann", order="fifo")
    segments.run(300)
    said = segments.say("ann", "history")
    segments.until(lambda: segments.is_offered("bob"))
    segments.join("bob")
    state = segments["bob"].dump()
    assert not segments.joined("bob")
    segments.medium.crash("bob")
    segments.start("bob", state=state, is_clean=is_clean)
    segments.until(lambda: segments.joined("bob"))
    answer = segments.say("bob", "here I am", after=[said])
    segments.run(300)
    assert segments.delivered("ann") == [said, answer]


def test_a_member_that_left_may_be_offered_the_group_again_and_come_back_with_a_larger_epoch() -> None:
    segments = Segments("ann", "bob")
    segments.together("ann", "bob", order="fifo")
    first = segments.say("bob", 1)
    segments.leave("bob")
    segments.run(500)
    assert segments["bob"].is_confirmed(segments.medium.now_ms)
    with pytest.raises(Refused, match="has left G"):
        segments.say("bob", 2)
    with pytest.raises(Refused, match="discover first"):
        segments.join("bob")
    segments.told["bob"].clear()
    segments["bob"].discover(segments.medium.now_ms)
    segments.until(lambda: segments.is_offered("bob"))
    segments.join("bob")
    segments.run(3_000)
    second = segments.say("bob", 2)
    segments.run(500)
    assert second[1] > first[1]
    assert segments.delivered("ann") == [first, second]
    assert segments.refused("ann") == segments.refused("bob") == []


def test_wrong_arguments_are_refused_at_once() -> None:
    segments = Segments("ann", "bob")
    segments.together("ann", "bob", order="causal_p2p")
    with pytest.raises(ValueError, match="needs `to`"):
        segments.say("ann")
    with pytest.raises(ValueError, match="has not been delivered to ann"):
        segments.say("ann", to=["bob"], after=[("bob", 2, 1)])
    other = Segments("ann")
    other.create("ann", order="fifo")
    other.run(100)
    with pytest.raises(ValueError, match="leave `to` out"):
        other.say("ann", to=["bob"])
    with pytest.raises(Refused, match=r"are allowed: send less at once"):
        other.say("ann", "x" * 600_000)
    assert other.say("ann", "x")[2] == 1, "the seq was not used"
    with pytest.raises(Refused, match="There is a group G"):
        other.create("ann")


def test_what_is_held_and_for_what_can_be_asked() -> None:
    segments = Segments("ann", "bob", "cem")
    segments.together("ann", "bob", "cem", order="s_b")
    segments.medium.cut(["ann", "bob"], ["cem"])
    question = segments.say("ann", "?")
    segments.run(50)
    segments.medium.crash("ann")
    segments.medium.heal()
    segments.medium.dropped = lambda datagram: b'"?"' in datagram
    answer = segments.say("bob", "!", after=[question])
    segments.run(300)
    assert [one.id for one in segments.of("cem", MessageHeld)] == [answer]
    (held,) = segments["cem"].held(GROUP)
    assert held.missing == [question]
    segments.medium.dropped = lambda datagram: False
    segments.run(10_000)
    assert segments.delivered("cem") == [question, answer]
    assert [one.waited_ms > 250 for one in segments.of("cem", Delivered)][-2:] == [False, True]


def test_two_sides_that_created_the_same_group_agree_on_one_create() -> None:
    segments = Segments("ann", "bob", "cem")
    segments.run(200)
    segments.medium.cut(["ann", "cem"], ["bob"])
    segments.create("ann", order="s_b")
    segments.create("bob", order="s_b", window=5_000)
    segments.run(100)
    segments.join("cem")
    segments.run(500)
    for name in ("ann", "bob", "cem"):
        segments.say(name, "on my side")
    segments.run(500)
    segments.medium.heal()
    segments.run(40_000)
    creates = {segments[name].groups[GROUP].records.create for name in ("ann", "bob", "cem")}
    assert len(creates) == 1
    assert all(len(segments.delivered(name)) == 3 for name in ("ann", "bob", "cem"))
    segments.say("bob", "together")
    segments.run(500)
    assert all(len(segments.delivered(name)) == 4 for name in ("ann", "bob", "cem"))


@effort(8)
@given(
    seed=st.integers(0, 10_000),
    order=st.sampled_from(ON_A_SEGMENT),
    loss=st.floats(0, 0.3),
    cut_ms=st.integers(0, 3_000),
    crash=st.booleans(),
)
def test_whatever_happens_those_who_stay_reachable_agree(
    seed: int, order: str, loss: float, cut_ms: int, crash: bool
) -> None:
    names = ["ann", "bob", "cem", "dee"]
    segments = Segments(*names, seed=seed, weather=Weather(loss=loss, delay_ms=(0.1, 5), repeat=0.05))
    chance = Random(seed)
    segments.run(500)
    segments.together(*names, order=order)
    segments.run(2_000)
    begun_ms = segments.medium.now_ms
    segments.medium.at(begun_ms + 300, segments.medium.cut, ["ann", "bob"], ["cem", "dee"])
    segments.medium.at(begun_ms + 300 + cut_ms, segments.medium.heal)
    for _ in range(40):
        say_something(segments, chance.choice(names), order, chance, names)
        segments.run(chance.uniform(0, 30))
    if crash and order not in ("lamport", "two_clock"):
        segments.medium.crash("dee")
        names.remove("dee")
    segments.run(cut_ms + 30_000)
    heard = {name: segments.delivered(name) for name in names}
    for name in names:
        assert len(heard[name]) == len(set(heard[name]))
        assert segments.refused(name) == []
    if order != "causal_p2p":
        assert len({frozenset(found) for found in heard.values()}) == 1
    if order == "lamport":
        assert len({tuple(found) for found in heard.values()}) == 1


def test_a_message_that_is_too_large_with_its_stamps_uses_no_seq() -> None:
    speaking = Speaking("G", "ann", 0, ORDERS["causal"], None)
    for number in range(4_000):
        sender = f"m{number}" + "x" * 60
        speaking.stamps.observe({"order": "causal", "status": "delivered", "sender": sender, "seq": 1, "seen": []})
    with pytest.raises(Refused, match="are allowed: send less at once"):
        speaking.message(b'"' + b"x" * 250_000 + b'"', [], None, None, None, 0)
    assert speaking.message(b"1", [], None, None, None, 0)[0] == ("ann", 0, 1)
