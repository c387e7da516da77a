"""`object` (the object-based protocol OBG, sections 3 and 4) in the kernel: one test per claim."""

from __future__ import annotations

from itertools import permutations, product
from typing import Any

import pytest

from tests.kernel.feeding import Tale
from tests.kernel.histories import vectors


def say(tale: Tale, name: str, *after: str) -> list[str]:
    return tale.take(sender=name[0], seq=int(name[1:]), after=[[one[0], 0, int(one[1:])] for one in after]).out


@pytest.mark.parametrize("arrangement", ["deliver_if_conflict", "deliver_otherwise"])
def test_fig_4_and_table_2(arrangement: str) -> None:
    (vector,) = vectors("obg")
    # m1 and m3 are of object i, m2 of object j; if op4 and op5 conflict, m1 is m2's direct significant predecessor.
    names = {"m1": "i1", "m2": "j1", "m3": "i2"}
    after = {"m2": ["i1"]} if arrangement == "deliver_if_conflict" else {}
    tale = Tale("object")
    delivered = [say(tale, names[one], *after.get(one, [])) for one in vector["arrivals_at_k"]]
    assert delivered == [[names[one] for one in step] for step in vector[arrangement]]


def test_a_message_waits_for_each_of_its_predecessors_and_for_nothing_else() -> None:
    tale = Tale("object")
    assert say(tale, "c1", "a1", "b1") == []
    assert tale.held == {"c1": ["a1", "b1"]}
    assert say(tale, "c2") == ["c2"]  # not its sender's order
    assert say(tale, "b1") == ["b1"]
    assert tale.held == {"c1": ["a1"]}
    assert say(tale, "a1") == ["a1", "c1"]


def test_compatible_requests_never_wait_for_each_other() -> None:
    for arrival in permutations(["a1", "b1", "a2", "b2"]):
        tale = Tale("object")
        assert [say(tale, name) for name in arrival] == [[name] for name in arrival]


def test_what_is_not_there_is_found_through_all_that_is_held_in_between() -> None:
    tale = Tale("object")
    say(tale, "d1", "c1", "b1")
    say(tale, "c1", "a1")
    assert tale.held == {"c1": ["a1"], "d1": ["a1", "b1"]}


def test_a_circle_is_held_until_one_of_it_is_given_up_on() -> None:
    tale = Tale("object")
    say(tale, "a1", "b1")
    assert say(tale, "b1", "a1") == []
    assert tale.held == {"a1": [], "b1": []}
    assert tale.take(kind="abandon", ids=[["a", 0, 1, 1]]).out == ["(a1)", "b1"]
    assert tale.dead == ["abandoned a1"]


def test_naming_oneself_is_refused_and_leaves_no_trace() -> None:
    tale = Tale("object")
    assert (say(tale, "a1", "b1", "a1"), tale.dead) == ([], ["self_parent a1"])
    assert say(tale, "a1") == ["a1"]


def test_a_stamp_that_is_missing_is_refused_and_what_names_it_waits_for_a_good_one() -> None:
    tale = Tale("object").take(sender="a", seq=1)
    assert tale.dead == ["missing_stamp a1"]
    say(tale, "b1", "a1")
    assert say(tale, "a1") == ["a1", "b1"]


def test_destinations_and_the_object_s_own_fields_are_for_the_members_and_may_be_left_out() -> None:
    stamp = {"instance": [1, "i"], "op": "add", "sender_op": "pay", "type": "request"}
    assert Tale("object").take(sender="a", seq=1, after=[], to=["b"], object=stamp).out == ["a1"]


def test_with_loss_only_what_depends_on_the_lost_message_waits() -> None:
    tale = Tale("object")
    say(tale, "b1", "a1")
    say(tale, "c1", "b1")
    assert say(tale, "d1") == ["d1"]
    assert tale.take(kind="abandon", ids=[["a", 0, 1, 1]]).out == ["(a1)", "b1", "c1"]


# ── the printed rule against the ruling ───────────────────────────────────────────────────────────────────────────


def test_conflict_closed_transitively_makes_two_increments_conflict_and_a_symmetric_table_does_not() -> None:
    table = {("increment", "show"), ("decrement", "show")}
    symmetric = table | {(two, one) for one, two in table}
    closed = set(symmetric)
    while more := {(a, d) for (a, b), (c, d) in product(closed, closed) if b == c} - closed:
        closed |= more
    assert ("increment", "increment") in closed
    assert ("increment", "decrement") in closed
    assert ("increment", "increment") not in symmetric
    assert ("increment", "decrement") not in symmetric


def test_cid_forgets_the_older_of_two_compatible_instances_and_the_table_does_not() -> None:
    # A starts, B (compatible with both) starts, A ends, C (in conflict with A) starts while B runs.
    conflicts = {("A", "C"), ("C", "A")}
    cid: dict[str, str] = {"A": "A"}
    cid["B"] = cid["A"]  # B starts while A runs
    cid["C"] = cid["B"]  # C starts while B runs
    assert cid["C"] == cid["A"]  # so the printed rule leaves A and C unordered
    assert ("A", "C") in conflicts  # and the ruling orders them


def _graphs(count: int) -> list[tuple[tuple[int, ...], ...]]:
    """Every choice of at most two earlier messages for each."""
    choices: list[Any] = []
    for at in range(count):
        few = [()] + [(one,) for one in range(at)] + [(one, two) for one in range(at) for two in range(one)]
        choices.append(few)
    return list(product(*choices))


def test_every_graph_of_four_messages_in_every_arrival_order_is_delivered_as_soon_as_it_can_be() -> None:
    for graph in _graphs(4):
        for arrival in permutations(range(4)):
            tale = Tale("object")
            there: set[int] = set()
            done: set[int] = set()
            for at in arrival:
                delivered = say(tale, f"m{at + 1}", *(f"m{one + 1}" for one in graph[at]))
                there.add(at)
                now = set(done)
                while more := {one for one in there - now if now >= set(graph[one])}:
                    now |= more
                assert {int(name[1:]) - 1 for name in delivered} == now - done
                done = now
