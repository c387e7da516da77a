"""Runs of numbers: vector IV-1, the paper's four misprints, and a plain set as oracle."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from precede.udfs.engine.runs import Runs
from tests.kernel.effort import effort, seeds

VECTORS = {one["id"]: one for one in json.loads((Path(__file__).parent / "vectors.json").read_text())}
BUGS: dict[str, Any] = VECTORS["IV-1"]["paper_bugs"]


def of(pairs: list[list[int]]) -> Runs:
    runs = Runs()
    for low, high in pairs:
        for number in range(low, high + 1):
            runs.add(number)
    assert listed(runs) == pairs
    return runs


def listed(runs: Runs) -> list[list[int]]:
    return [list(run) for run in runs.runs()]


def test_vector_iv_1_gives_the_runs_it_lists_after_each_insertion() -> None:
    runs = Runs()
    for step in VECTORS["IV-1"]["steps"]:
        runs.add(step["insert"])
        assert listed(runs) == step["runs"]


def test_algorithm_1_line_3_compares_the_right_way_round() -> None:
    runs = of(BUGS["alg1_line3"]["runs"])
    assert 3 in runs  # as printed, absent
    assert 9 not in runs  # as printed, present


@pytest.mark.parametrize("bug", ["prose_bridge", "alg2_line8", "alg2_dup"])
def test_where_the_paper_misprints_an_insertion_the_ruling_stands(bug: str) -> None:
    runs = of(BUGS[bug]["runs"])
    runs.add(BUGS[bug]["insert"])
    assert listed(runs) == BUGS[bug]["correct"] != BUGS[bug]["paper"]


@pytest.mark.parametrize("number", [0, -1])
def test_seqs_begin_at_1_so_nothing_below_is_ever_in_a_run(number: int) -> None:
    assert number not in of([[1, 5]])
    assert not of([[3, 5]]).opens_run(number)


def test_section_vi_d_there_is_one_run_more_than_there_are_gaps_and_one_at_quiescence() -> None:
    numbers = list(range(1, 200))
    Random(7).shuffle(numbers)
    runs = Runs()
    inside: set[int] = set()
    for number in numbers:
        runs.add(number)
        inside.add(number)
        assert runs.run_count() == sum(1 for one in inside if one - 1 not in inside)
    assert listed(runs) == [[1, 199]]


@effort(150)
@given(
    numbers=st.lists(st.integers(1, 40), max_size=60),
    first=st.integers(1, 45),
    length=st.integers(0, 45),
    ranges=st.lists(st.tuples(st.integers(1, 40), st.integers(0, 5)), max_size=4),
)
def test_runs_are_the_set_of_what_was_inserted(
    numbers: list[int], first: int, length: int, ranges: list[tuple[int, int]]
) -> None:
    runs = Runs()
    for number in numbers:
        runs.add(number)
    inside = set(numbers)
    begins = {one for one in inside if one - 1 not in inside}
    ends = {one for one in inside if one + 1 not in inside}
    assert listed(runs) == [list(pair) for pair in zip(sorted(begins), sorted(ends), strict=True)]
    last = first + length - 1
    absent = [number for number in range(first, last + 1) if number not in inside]
    assert list(runs.missing(first, last)) == absent
    assert runs.missing_count(first, last) == len(absent)
    for number in range(-1, 45):
        assert (number in runs) == (number in inside)
        alone = number > 0 and not {number - 1, number, number + 1} & inside
        assert runs.opens_run(number) == alone
    together = inside | {number for low, more in ranges for number in range(low, low + more + 1)}
    counted = runs.run_count_with([(low, low + more) for low, more in ranges])
    assert counted == sum(1 for one in together if one - 1 not in together)
    again = Runs()
    again.fill(runs.dump())
    assert listed(again) == listed(runs)


def test_runs_stay_right_over_many_insertions_far_apart() -> None:
    for seed in seeds(20):
        random = Random(seed)
        runs, inside = Runs(), set[int]()
        for _ in range(300):
            number = random.choice([random.randint(1, 2**53 - 1), random.randint(1, 100)])
            runs.add(number)
            inside.add(number)
        assert sum(high - low + 1 for low, high in runs.runs()) == len(inside)
        assert all(number in runs for number in inside)
