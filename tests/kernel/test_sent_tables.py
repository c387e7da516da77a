"""`causal_p2p` on the members' side: printed rules against rulings, the table, and an exhaustive small scope."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import combinations, permutations, product
from random import Random
from typing import Any

import pytest

from precede.udfs.holdback import Holdback
from precede.udfs.orders.causal_p2p import CausalPointToPoint, PointToPointStamps
from tests.kernel.effort import EXPLORE, seeds
from tests.kernel.feeding import Tale, feed, parsed
from tests.simulation import converse

Stamp = dict[str, Any]


# ── the printed rules against the rulings ─────────────────────────────────────────────────────────────────────────


class StampThenIncrement(PointToPointStamps):
    """As printed: the clock is copied first and incremented afterwards."""

    def fields(self, **draft: Any) -> dict[str, Any]:
        self.seq -= 1
        made = super().fields(**draft)
        self.seq += 1
        return made


class WithoutCoDestinations(PointToPointStamps):
    """As printed: a recipient learns nothing about the other destinations."""

    def observe(self, record: Any) -> None:
        super().observe({**record, "to": [self.name]})


class WithoutOwnEntry(PointToPointStamps):
    """As printed: the entry for the sender itself is dropped."""

    def observe(self, record: Any) -> None:
        super().observe(record)
        self.sent.pop(self.name, None)


def figure_2_2(kind: type[PointToPointStamps]) -> list[str]:
    one, two = kind("1"), kind("2")
    m1, m2 = one.stamp(to=["3"]), one.stamp(to=["2"])
    two.observe(m2)
    m3 = two.stamp(to=["3"])
    for made in (m1, m2, m3):  # the central receiver always requires the sender's own seqs
        made["seen"] = [entry for entry in made["seen"] if entry[0] != made["sender"]] + [
            [made["sender"], 0, made["seq"]]
        ]
        made["sent"] = {name: [entry for entry in clock if entry[2]] for name, clock in made["sent"].items()}
    tale = Tale("causal_p2p")
    return [name for made in (m3, m1) for name in tale.take(**made).out]


def test_stamp_then_increment_lets_m3_overtake_m1_and_increment_first_does_not() -> None:
    assert figure_2_2(StampThenIncrement) == ["3:21", "3:11"]
    assert figure_2_2(PointToPointStamps) == ["3:11", "3:21"]


def own_entry_case(kind: type[PointToPointStamps]) -> list[str]:
    one, two, three = kind("x"), kind("y"), kind("z")
    a = one.stamp(to=["y"])
    two.observe(a)
    b = two.stamp(to=["z"])
    three.observe(b)
    c = three.stamp(to=["y"])
    tale = Tale("causal_p2p")
    return [name for made in (c, b, a) for name in tale.take(**made).out if name.startswith("y:")]


def test_three_members_are_enough_to_show_that_a_member_must_keep_the_entry_of_itself() -> None:
    assert own_entry_case(WithoutOwnEntry) == ["y:z1", "y:x1"]
    assert own_entry_case(PointToPointStamps) == ["y:x1", "y:z1"]


def violations(monkeypatch: pytest.MonkeyPatch, kind: type[PointToPointStamps]) -> int:
    """How many causal pairs to one destination arrive in the wrong order, in random multicast."""
    with monkeypatch.context() as patch:
        patch.setattr(CausalPointToPoint, "stamps_of", kind)
        count = 0
        for seed in seeds(60):
            history = converse(Random(seed), "causal_p2p", peers=4, messages=14, delay=60)
            number = {
                (one["sender"], one["seq"], one["destination"]): at
                for at, one in enumerate(parsed(feed(history.log, order="causal_p2p").ordered))
            }
            for (name, seq, at), mine in number.items():
                past = history.said[name, 0, seq].past
                count += sum(1 for other, _, before in past if number.get((other, before, at), -1) > mine)
        return count


def test_without_co_destinations_or_the_own_entry_random_multicast_violates_causality_and_with_them_never(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert violations(monkeypatch, WithoutCoDestinations) > 0
    assert violations(monkeypatch, WithoutOwnEntry) > 0
    assert violations(monkeypatch, PointToPointStamps) == 0


# ── the publisher's table ─────────────────────────────────────────────────────────────────────────────────────────


def test_an_entry_is_forgotten_when_the_ordered_topic_shows_that_its_destination_has_all_of_it() -> None:
    a = CausalPointToPoint.stamps_of("a")
    first = a.stamp(to=["b"])
    second = a.stamp(to=["b", "c"])
    assert second["sent"] == {"b": [["a", 0, 1]]}
    a.observe({**first, "destination": "b", "position": 1})
    assert set(a.sent) == {"b", "c"}, "b has not received the second one"
    a.observe({**second, "destination": "b", "position": 2})
    assert set(a.sent) == {"c"}
    assert a.delivered == {}, "messages to others are not delivered here"
    assert a.stamp(to=["b"])["sent"] == {"c": [["a", 0, 2]]}


def test_what_was_given_up_on_leaves_no_mark_in_a_member_s_clock() -> None:
    b = CausalPointToPoint.stamps_of("b")
    b.observe({"sender": "a", "epoch": 0, "seq": 1, "status": "abandoned", "destination": "b"})
    b.observe({"kind": "join", "sender": "c", "destination": "b"})
    assert (b.delivered, b.sent) == ({}, {})


# ── small scope ───────────────────────────────────────────────────────────────────────────────────────────────────────


def every_history() -> Iterator[tuple[dict[str, tuple[set[str], list[str]]], list[Stamp]]]:
    """All ways in which three members can send three messages, each to one or two, received at once or never.

    For each message: what it follows, and its destinations.
    """
    choices = [(sender, to) for sender in "abc" for count in (1, 2) for to in combinations("abc", count)]
    for said in product(choices, repeat=3):
        if said[0][0] != "a":
            continue  # the same up to renaming
        hearings: list[list[tuple[str, ...]]] = [[(), to] for _, to in said[:2]]
        for heard in product(*hearings):
            members = {name: CausalPointToPoint.stamps_of(name) for name in "abc"}
            knows: dict[str, set[str]] = {name: set() for name in "abc"}
            history: dict[str, tuple[set[str], list[str]]] = {}
            records: list[tuple[str, Stamp]] = []
            for (sender, to), hearers in zip(said, (*heard, ()), strict=True):
                made = members[sender].stamp(to=list(to))
                name = f"{sender}{made['seq']}"
                history[name] = set(knows[sender]), list(to)
                knows[sender].add(name)
                for hearer in hearers:
                    before = [one for one in records if one[0] in history[name][0] and hearer in one[1]["to"]]
                    for _, record in [*before, (name, made)]:
                        members[hearer].observe(record)
                    knows[hearer] |= {name} | history[name][0]
                records.append((name, made))
            yield history, [record for _, record in records]


def test_every_history_of_three_messages_cut_everywhere_in_arrival_orders_by_turns() -> None:
    for number, (history, records) in enumerate(every_history()):
        arrivals = list(permutations(records))
        for arrival in arrivals if EXPLORE else arrivals[number % 6 : number % 6 + 1]:
            got: dict[str, list[str]] = {"a": [], "b": [], "c": []}
            kernel = Holdback(order="causal_p2p")
            for offset, record in enumerate(arrival):
                kernel.receive(json.dumps({"group": "g", **record}).encode(), offset=offset)
                for one in parsed(kernel.ordered):
                    got[one["destination"]].append(f"{one['sender']}{one['seq']}")
                blobs = dict(kernel.dump())
                kernel = Holdback(order="causal_p2p")
                kernel.load(blobs)
            for at, names in got.items():
                assert sorted(names) == sorted(name for name, (_, to) in history.items() if at in to)
                for place, name in enumerate(names):
                    assert {one for one in history[name][0] if at in history[one][1]} <= set(names[:place])
