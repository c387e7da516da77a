"""`precede check` finds whatever is wrong with a stream, names it rightly, and reports nothing of one that is right."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from precede.udfs.orders import ORDERS
from precede.udfs.records.messages import Id
from precede.udfs.records.signatures import sign
from precede.udfs.records.wire import encode_message
from tests.churn import PATIENCE, Churn
from tests.kernel import traffic
from tests.kernel.checking import CATALOGUE, checked, object_history, with_field
from tests.kernel.effort import seeds
from tests.kernel.feeding import Outcome, Taken, feed
from tests.signing import private, publics
from tests.simulation import Arrival, converse

ROOT = Path(__file__).parent.parent.parent
HONEST = 130
"""So many histories of each order, more than a thousand in all."""
SEEDED = 8
CHURNS = 2


def taken(one: Arrival) -> Taken:
    return one.value, one.key, one.partition, one.offset, one.timestamp_ms


def honest(random: Random, order: str) -> list[Taken]:
    """A conversation over bad paths; half of those in `object` are of instances that invoke each other."""
    if order == "object" and random.random() < 0.5:
        return object_history(random, random.randint(3, 40))
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


def test_a_circle_of_dependencies_that_was_delivered_is_named() -> None:
    values = [encode_message("g", "A", 0, 1, after=[("C", 0, 1)]), encode_message("g", "B", 0, 1, after=[("A", 0, 1)])]
    values.append(encode_message("g", "C", 0, 1, after=[("B", 0, 1)]))
    log = [(value, b"g", 0, offset, offset) for offset, value in enumerate(values)]
    assert feed(log, order="object").ordered == []
    ordered = [with_field(value, "released_offset", 2) for value in _delivered(values)]
    (found,) = checked(log, Outcome(ordered=ordered), "object", has_raw=False).violations
    assert found.guarantee == "object"
    assert found.sentence.startswith("A:1 (position 1, offset 0:0) comes before C:1 (position 3, offset 0:2), on which")
    assert found.sentence.endswith(", on which it depends, and which depends on it in turn: a circle.")


def _delivered(values: list[bytes]) -> list[bytes]:
    """These messages as if nothing had to wait."""
    free = [re.sub(rb'"after":\[.*?\]\]', b'"after":[]', value) for value in values]
    outcome = feed([(value, b"g", 0, offset, offset) for offset, value in enumerate(free)], order="object")
    return [value[:-1] + one[len(plain) - 1 :] for value, plain, one in zip(values, free, outcome.ordered, strict=True)]


def test_what_follows_a_message_that_was_given_up_on_may_come_before_what_that_one_followed() -> None:
    stamp = {"instance": [1, "A"], "op": "add", "sender_op": "client", "type": "request"}
    said = [encode_message("g", "A", 0, seq, after=after, to=["B"], object=stamp) for seq, after in CHAIN]
    give_up = b'{"kind":"abandon","group":"g","sender":"B","ids":[["A",0,2,2]]}'
    values = [b'{"kind":"create","group":"g","options":{"order":"object"}}', said[2], give_up, said[0]]
    log = [(value, b"g", 0, offset, offset) for offset, value in enumerate(values)]
    outcome = feed(log, order="object")
    assert [json.loads(one)["seq"] for one in outcome.ordered[1:]] == [2, 3, 1]
    assert checked(log, outcome, "object").status == checked(log, outcome, "object", has_raw=False).status == 0


@pytest.mark.parametrize("code", ["forged", "not_member"])
def test_a_signed_message_that_was_refused_as_forged_is_found(code: str) -> None:
    options = {"order": "fifo", "closed": True, "keys": publics("A", "B")}
    create = {"kind": "create", "group": "g", "sender": "A", "members": ["A", "B"], "options": options}
    said = [("A", "A", 1), ("B", "A", 2), ("B", "B", 1), ("C", "B", 2), ("B", "B", 2)]
    values = [sign(encode_message("g", name, 0, seq), private(by)) for by, name, seq in said]
    values.insert(0, sign(json.dumps(create).encode(), private("A")))
    log = [(value, b"g", 0, offset, offset) for offset, value in enumerate(values)]
    outcome = feed(log, order="fifo")
    assert [json.loads(one)["code"] for one in outcome.dead] == ["forged", "forged"]
    assert checked(log, outcome, "fifo").status == 0
    letter = json.dumps({"code": code, "partition": 0, "offset": 5, "group": "g"}).encode()
    broken = replace(outcome, ordered=outcome.ordered[:-1], dead=[*outcome.dead, letter])
    (found,) = checked(log, broken, "fifo").violations
    assert found.guarantee == "refused"
    why = "a key of B has signed it" if code == "forged" else "nothing was in the way of its delivery"
    assert found.sentence == f"B:2 (offset 0:5) was refused as {code}, though {why}."


CHAIN: list[tuple[int, list[Id]]] = [(1, []), (2, [("A", 0, 1)]), (3, [("A", 0, 2)])]
"""What one instance says: each message names the one before."""


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
        changed = log if broken.log is None else broken.log
        report = checked(changed, replace(outcome, ordered=broken.ordered, dead=broken.dead), order)
        assert report.status == 1, (number, "not found")
        found = report.violations[0]
        assert found.guarantee in broken.names, (number, found, broken.names)
        assert found.sentence.endswith(".")
        assert ("which is a circle" in found.sentence) == (seed == "circle_of_conflicts")
    only_some = ("wrong_destination", "unnamed_conflict", "circle_of_conflicts")
    nothing_to_break = {("total", "released_earlier")} | {(other, each) for other in ORDERS for each in only_some}
    nothing_to_break -= {("causal_p2p", "wrong_destination"), *(("object", each) for each in only_some[1:])}
    assert played or (order, seed) in nothing_to_break, "a test in which nothing happened proves nothing"
