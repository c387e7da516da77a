"""The judge sees one thing that is wrong, whatever it is."""

from __future__ import annotations

import pytest

from tests.segments.judge import Truth, check_lawful, check_positions, check_same


def truth_of(order: str) -> Truth:
    """Ann says a1, and a2 later; bob has seen a1 when he says b1; cem has seen b1 when she says c1."""
    truth = Truth(order)
    truth.say("a1", "ann", [], None)
    truth.say("b1", "bob", ["a1"], "a1")
    truth.say("a2", "ann", ["a1"], None)
    truth.say("c1", "cem", ["b1"], None)
    return truth


@pytest.mark.parametrize(
    ("order", "texts"),
    [
        ("s_b", ["a2", "c1", "a1", "b1"]),
        ("fifo", ["c1", "b1", "a1", "a2"]),
        ("causal", ["a1", "b1", "c1", "a2"]),
        ("object", ["c1", "a2", "b1", "a1"]),
    ],
)
def test_what_an_order_allows_is_lawful(order: str, texts: list[str]) -> None:
    check_lawful(truth_of(order), texts, "ann")


@pytest.mark.parametrize(
    ("order", "texts"),
    [
        ("s_b", ["a2", "c1", "b1", "a1"]),
        ("fifo", ["c1", "b1", "a2", "a1"]),
        ("causal", ["a1", "c1", "b1", "a2"]),
        ("causal", ["c1", "a1", "a2"]),
        ("fifo", ["a1", "a1"]),
        ("fifo", ["a1", "z1"]),
    ],
)
def test_what_it_forbids_is_named(order: str, texts: list[str]) -> None:
    with pytest.raises(AssertionError, match="ann has"):
        check_lawful(truth_of(order), texts, "ann")


def test_what_somebody_lacks_or_has_alone_is_named() -> None:
    truth = truth_of("causal")
    check_same(truth, {"ann": ["a1", "b1"]}, ["b1", "a1"])
    with pytest.raises(AssertionError, match="ann lacks 1"):
        check_same(truth, {"ann": ["a1"]}, ["b1", "a1"])
    with pytest.raises(AssertionError, match="ann has 1"):
        check_same(truth, {"ann": ["a1", "b1"]}, ["b1"])


def test_what_was_sent_to_some_is_due_to_them_alone_and_comes_after_what_its_sender_had_sent() -> None:
    truth = Truth("causal_p2p")
    truth.say("a1", "ann", [], None, ["bob", "cem"])
    truth.say("a2", "ann", [], None, ["cem"])
    check_same(truth, {"bob": ["a1"], "cem": ["a1", "a2"], "ann": []}, ["a1", "a2"])
    with pytest.raises(AssertionError, match="bob has 1"):
        check_same(truth, {"bob": ["a1", "a2"]}, ["a1", "a2"])
    with pytest.raises(AssertionError, match="cem has"):
        check_lawful(truth, ["a2", "a1"], "cem")


@pytest.mark.parametrize("positions", [[1, 3], [2, 3], [1, 1, 2], [2, 1]])
def test_a_hole_in_the_positions_is_seen(positions: list[int]) -> None:
    check_positions([{"position": 1}, {"position": 2}])
    with pytest.raises(AssertionError, match="hole"):
        check_positions([{"position": one} for one in positions])
