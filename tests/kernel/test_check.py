"""`precede check` finds whatever is wrong with a stream, names it rightly, and reports nothing of one that is right."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from precede.udfs.orders import ORDERS
from tests.churn import PATIENCE, Churn
from tests.kernel import traffic
from tests.kernel.checking import CATALOGUE, checked
from tests.kernel.effort import seeds
from tests.kernel.feeding import Outcome, Taken, feed
from tests.simulation import Arrival, converse

ROOT = Path(__file__).parent.parent.parent
HONEST = 130
"""So many histories of each order, more than a thousand in all."""
SEEDED = 8
CHURNS = 2


def taken(one: Arrival) -> Taken:
    return one.value, one.key, one.partition, one.offset, one.timestamp_ms


def honest(random: Random, order: str) -> list[Taken]:
    """A conversation over bad paths."""
    options = {"accuracy_ms": 3, "delay_min_ms": 0} if order == "two_clock" else None
    history = converse(
        random, order, messages=random.randint(3, 40), loss=random.choice([0.0, 0.1]), beats=0.3, options=options
    )
    return [taken(one) for one in history.log]


def churned(seed: str, order: str) -> tuple[list[Taken], Outcome]:
    """A group whose members come, go, crash and are evicted."""
    random = Random(seed)
    churn = Churn(random, order, closed=random.random() < 0.5)
    churn.run(120)
    log = [taken(one) for one in churn.log]
    return log, feed(log, order=order, patience=PATIENCE)


@pytest.mark.parametrize("order", ORDERS)
def test_nothing_is_reported_of_honest_histories(order: str) -> None:
    for seed in seeds(HONEST):
        log = honest(Random(f"{order} {seed}"), order)
        outcome = feed(log, order=order)
        report = checked(log, outcome, order)
        assert report.status == 0, (seed, report.violations, report.unjudged)
        alone = checked(log, outcome, order, has_raw=False)
        assert alone.status == 0, (seed, alone.violations, alone.unjudged)


@pytest.mark.parametrize("order", ORDERS)
def test_nothing_is_reported_where_members_come_and_go_and_losses_are_repaired(order: str) -> None:
    for seed in seeds(CHURNS):
        log, outcome = churned(f"check {order} {seed}", order)
        report = checked(log, outcome, order)
        assert report.status == 0, (seed, report.violations)
        assert checked(log, outcome, order, has_raw=False).status == 0


@pytest.mark.parametrize("order", ORDERS)
def test_nothing_is_reported_of_what_the_kernel_makes_of_hostile_traffic(order: str) -> None:
    for seed in seeds(HONEST):
        drawn = traffic.log(Random(f"check {order} {seed}"), order)
        outcome = feed(drawn.records, order=order, limits=drawn.limits)
        report = checked(drawn.records, outcome, order, limits=drawn.limits)
        assert report.status == 0, (seed, drawn, report.violations)


@pytest.mark.parametrize("seed", CATALOGUE)
@pytest.mark.parametrize("order", ORDERS)
def test_whatever_is_wrong_is_found_and_named(order: str, seed: str) -> None:
    played = 0
    for number in seeds(SEEDED):
        random = Random(f"{order} {seed} {number}")
        if number % 4 == 3:
            log, outcome = churned(f"{order} {number}", order)
        else:
            log = honest(random, order)
            outcome = feed(log, order=order)
        broken = CATALOGUE[seed](random, outcome, log, order)
        if broken is None or (broken.ordered == outcome.ordered and broken.dead == outcome.dead):
            continue
        played += 1
        report = checked(log, replace(outcome, ordered=broken.ordered, dead=broken.dead), order)
        assert report.status == 1, (number, "not found")
        found = report.violations[0]
        assert found.guarantee in broken.names, (number, found, broken.names)
        assert found.sentence.endswith(".")
    nothing_to_break = {("total", "released_earlier")} | {(other, "wrong_destination") for other in ORDERS}
    assert played or (order, seed) in nothing_to_break, "a test in which nothing happened proves nothing"
