"""Groups on a segment whose members join, leave, crash and come back, under loss; and a hundred of them."""

from __future__ import annotations

import os
from functools import partial
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from precede.udfs.peers.events import Delivered
from precede.udfs.records.messages import Id, Message
from tests.kernel.effort import effort
from tests.kernel.medium import Weather
from tests.kernel.segments import GROUP, Segments


def is_in(segments: Segments, name: str) -> bool:
    peer = segments[name].groups.get(GROUP)
    return peer is not None and peer.own_join.joined


def in_common(one: list[Id], other: list[Id]) -> tuple[list[Id], list[Id]]:
    """The two sequences, without what only one of them has."""
    both = set(one) & set(other)
    return [id_ for id_ in one if id_ in both], [id_ for id_ in other if id_ in both]


def precedes(one: Message, other: Message) -> bool:
    """The relation of two_clock, with an accuracy and a least delay of 1 ms."""
    if one.sender == other.sender:
        return one.seq < other.seq
    return one.time < other.time and other.clock_ms - one.clock_ms >= 1 - 2  # type: ignore[operator]


@effort(10)
@given(st.integers(0, 100_000), st.floats(0, 0.25))
def test_by_linear_clocks_all_deliver_one_sequence_through_comings_and_goings(seed: int, loss: float) -> None:
    names = ["ann", "bob", "cem", "dee", "eve"]
    segments = Segments(*names, seed=seed, weather=Weather(loss=loss, delay_ms=(0.1, 4)))
    chance = Random(seed)
    segments.run(500)
    segments.together("ann", "bob", order="lamport")
    said: list[Id] = []
    for _ in range(60):
        segments.run(chance.uniform(0, 150))
        name = chance.choice(names)
        peer = segments[name].groups.get(GROUP)
        if peer is None and chance.random() < 0.3 and segments.is_offered(name):
            segments.join(name)
        elif is_in(segments, name):
            if chance.random() < 0.05 and name not in ("ann", "bob"):
                segments.leave(name)
            else:
                said.append(segments.say(name, "x"))
    segments.run(20_000)
    whole = segments.delivered("ann")
    assert set(whole) == set(said)
    for name in names:
        assert segments.refused(name) == []
        heard = segments.delivered(name)
        assert len(heard) == len(set(heard))
        mine, theirs = in_common(whole, heard)
        assert mine == theirs
        peer = segments[name].groups.get(GROUP)
        if peer is not None and peer.own_join.joined:
            assert set(heard) == set(whole)
            assert peer.ordering.held() == []


@effort(10)
@given(st.integers(0, 100_000), st.sampled_from(["s_b", "fifo", "causal"]))
def test_who_crashes_and_comes_back_misses_nothing_and_loses_nothing_that_another_had(seed: int, order: str) -> None:
    names = ["ann", "bob", "cem"]
    segments = Segments(*names, seed=seed, weather=Weather(loss=0.1, delay_ms=(0.1, 4)))
    chance = Random(seed)
    segments.run(500)
    segments.together(*names, order=order)
    for _ in range(40):
        segments.run(chance.uniform(0, 100))
        name = chance.choice(names)
        if name not in segments.medium.nodes:
            segments.start(name)
            segments.told[name].clear()
            segments.until(partial(segments.is_offered, name))
            segments.join(name)
        elif chance.random() < 0.1 and name != "ann":
            segments.medium.crash(name)
        elif is_in(segments, name):
            segments.say(name, "x")
    for name in names:
        if name in segments.medium.nodes:
            assert segments.refused(name) == []
    segments.run(15_000)
    present = list(segments.medium.nodes)
    heard = {name: frozenset(segments.delivered(name)) for name in present}
    assert len(set(heard.values())) == 1
    for name in present:
        assert segments[name].groups[GROUP].ordering.held() == []


def test_by_two_clocks_each_member_delivers_a_linear_extension_of_the_relation() -> None:
    names = ["ann", "bob", "cem"]
    segments = Segments(*names, weather=Weather(loss=0.1, delay_ms=(1, 8)))
    segments.run(300)
    segments.together(*names, order="two_clock", accuracy_ms=1, delay_min_ms=1)
    chance = Random(2)
    for _ in range(80):
        segments.say(chance.choice(names), "x")
        segments.run(chance.uniform(0, 15))
    segments.run(8_000)
    for name in names:
        found = [one.record for one in segments.of(name, Delivered)]
        messages = [one for one in found if isinstance(one, Message)]
        assert len(messages) == 80
        for place, later in enumerate(messages):
            assert not any(precedes(later, earlier) for earlier in messages[:place])


def test_an_hour_of_little_talk_costs_little() -> None:
    segments = Segments("ann", "bob", "cem", weather=Weather(loss=0.05))
    segments.together("ann", "bob", "cem", order="lamport")
    for number in range(60):
        segments.say(("ann", "bob", "cem")[number % 3], "x")
        segments.run(60_000)
    assert len({tuple(segments.delivered(name)) for name in ("ann", "bob", "cem")}) == 1
    assert len(segments.delivered("ann")) == 60
    per_second = sum(node.sent_bytes for node in segments.medium.nodes.values()) / 3_600
    assert per_second < 1_500
    assert segments["ann"].broadcast.sending.sent_frames < 5_000


@pytest.mark.timeout(300)
def test_many_peers_join_speak_and_agree() -> None:
    names = [f"p{number}" for number in range(100 if os.environ.get("PRECEDE_EXPLORE") else 30)]
    segments = Segments(*names, weather=Weather(loss=0.05))
    segments.run(1_000)
    segments.create("p0", order="causal")
    segments.until(lambda: all(segments.is_offered(name) for name in names[1:]))
    for name in names[1:]:
        segments.join(name)
    segments.until(lambda: all(segments.joined(name) for name in names), 5_000)
    for name in names[:20]:
        segments.say(name, "x")
    segments.run(2_000)
    assert {len(segments.delivered(name)) for name in names} == {20}
    assert {len(segments[name].groups[GROUP].members) for name in names} == {len(names)}
