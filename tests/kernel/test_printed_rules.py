"""Rules as the documents print them, on conversations whose truth is known: each fails where the ruling holds.

Others are tested with their orders: the relation with a cycle (test_two_clock.py), runs of numbers (test_runs.py), the
sender's own copy (test_causal.py).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from random import Random
from typing import Any

from tests.kernel.effort import seeds
from tests.simulation import NAMES, History, Id, converse

ACCURACY, DELAY = 5, 40


def histories(order: str, **more: Any) -> Iterator[History]:
    for seed in seeds(60):
        yield converse(Random(seed), order, delay=DELAY, **more)


def causal_pairs(history: History) -> Iterator[tuple[Id, Id]]:
    """Pairs (earlier, later), as they really happened."""
    for id_, said in history.said.items():
        yield from ((before, id_) for before in said.past)


def stamp_of(history: History, id_: Id) -> dict[str, Any]:
    stamp: dict[str, Any] = json.loads(history.said[id_].value)
    return stamp


def test_with_stamp_then_increment_a_reply_looks_like_what_it_answers_and_with_increment_first_it_never_does() -> None:
    printed_misses = 0
    for history in histories("causal"):
        printed: dict[Id, tuple[int, ...]] = {}
        clocks = {name: dict.fromkeys(NAMES, 0) for name in NAMES}
        for id_, said in history.said.items():
            clock = clocks[id_[0]]
            for before in said.past:  # on receipt the maximum of both
                clock.update(
                    {name: max(clock[name], count) for name, count in zip(NAMES, printed[before], strict=True)}
                )
            printed[id_] = tuple(clock.values())  # stamp
            clock[id_[0]] += 1  # then increment
        for first, second in causal_pairs(history):
            earlier, later = printed[first], printed[second]
            printed_misses += not (earlier != later and all(a <= b for a, b in zip(earlier, later, strict=True)))
            by_ruling = {(name, epoch): seq for name, epoch, seq in stamp_of(history, second)["seen"]}
            assert all(by_ruling.get((name, epoch), 0) >= seq for name, epoch, seq in stamp_of(history, first)["seen"])
            assert stamp_of(history, first)["seen"] != stamp_of(history, second)["seen"]
    assert printed_misses


def test_with_the_printed_receive_rule_a_reply_may_carry_the_time_of_what_it_answers_and_with_ours_never() -> None:
    printed_misses = 0
    for history in histories("lamport"):
        printed: dict[Id, int] = {}
        clocks = dict.fromkeys(NAMES, 0)
        for id_, said in history.said.items():
            name = id_[0]
            clocks[name] = max([clocks[name], *(printed[before] for before in said.past)])  # printed: no + 1 on receipt
            printed[id_] = clocks[name]
            clocks[name] += 1
        for first, second in causal_pairs(history):
            printed_misses += printed[first] >= printed[second]
            assert stamp_of(history, first)["time"] < stamp_of(history, second)["time"]
    assert printed_misses


def test_rule_1b_as_printed_misses_causal_pairs_of_two_sources_and_of_one_and_the_ruling_misses_none() -> None:
    other_source = same_source = 0
    for history in histories("two_clock", skew=ACCURACY):
        for first, second in causal_pairs(history):
            one, two = stamp_of(history, first), stamp_of(history, second)
            apart = two["clock_ms"] - one["clock_ms"]
            if first[0] == second[0]:
                same_source += apart <= 2 * ACCURACY  # printed: nothing about pairs of one source
                assert one["seq"] < two["seq"]
            else:
                other_source += apart <= 2 * ACCURACY
                assert one["time"] < two["time"]
                assert apart >= -2 * ACCURACY
    assert other_source
    assert same_source


def test_the_converse_of_property_7_as_section_5_uses_it_is_false_and_its_true_half_holds() -> None:
    converse_fails = 0
    for history in histories("two_clock", skew=ACCURACY, least=3):
        for first, second in causal_pairs(history):
            apart = stamp_of(history, second)["clock_ms"] - stamp_of(history, first)["clock_ms"]
            converse_fails += apart <= 3 + DELAY + 2 * ACCURACY  # printed: a causal pair is further apart than this
            if first[0] != second[0]:
                assert apart >= 3 - 2 * ACCURACY
    assert converse_fails
