"""A group that changes for a long time: joins, leaves, crashes, zombies, losses and repairs, in every order."""

from __future__ import annotations

import os
from collections import Counter
from random import Random

import pytest

from precede.udfs.orders import ORDERS
from precede.udfs.peers.views import members
from tests.churn import PATIENCE, Churn
from tests.kernel.feeding import feed, id_of, parsed
from tests.simulation import Id

RUNS = int(os.environ.get("PRECEDE_CHURN", "3"))
"""How many runs of each order; `make test-churn` takes many."""
STEPS = 250


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.timeout(3600 if RUNS > 3 else 60)
def test_after_joins_leaves_crashes_losses_and_repairs_all_who_are_left_hold_one_sequence_and_nothing_waits(
    order: str,
) -> None:
    did: Counter[str] = Counter()
    for seed in range(RUNS):
        random = Random(f"{order} {seed}")
        churn = Churn(random, order, closed=random.random() < 0.5)
        churn.run(STEPS)
        did += churn.did
        all_hold_one_sequence(churn)
        who_is_left_was_refused_nothing_but_what_was_given_up(churn)
        nothing_of_who_was_put_out_came_after_its_end(churn)
        whoever_depends_comes_after(churn)
        cuts = random.sample(range(len(churn.log)), len(churn.log) // 4)
        whole = feed(churn.log, order=order, patience=PATIENCE)
        again = feed(churn.log, order=order, patience=PATIENCE, cuts=cuts)
        assert again == whole
        assert whole.ordered == churn.ordered
        assert whole.held == []
    # A run in which none of this happened would prove nothing.
    assert all(did[what] for what in ("joined", "left", "crashed", "evicted", "lost", "zombies spoke")), did
    assert order == "total" or did["repaired"], did


def all_hold_one_sequence(churn: Churn) -> None:
    """In `causal_p2p` each destination has its own sequence; in every other order all share one."""
    records = parsed(churn.ordered)
    for destination in {one.get("destination") for one in records}:
        positions = [one["position"] for one in records if one.get("destination") == destination]
        assert positions == list(range(1, len(positions) + 1))
    assert len(churn.alive) >= 2
    for member in churn.alive.values():
        for_it = [
            value
            for one, value in zip(records, churn.ordered, strict=True)
            if one.get("destination", member.name) == member.name
        ]
        assert member.sequence == for_it[member.begins :]
    assert members(churn.view) == {name: churn.alive[name].epoch for name in sorted(churn.alive)}


def who_is_left_was_refused_nothing_but_what_was_given_up(churn: Churn) -> None:
    given_up = {id_of(one) for one in parsed(churn.ordered) if one["status"] == "abandoned"}
    for letter in churn.dead:
        member = churn.alive.get(letter["sender"])
        if member is not None and member.epoch == letter["epoch"] and letter["seq"] is not None:
            assert letter["code"] in ("late", "abandoned", "not_member"), letter
            assert id_of(letter) in given_up


def nothing_of_who_was_put_out_came_after_its_end(churn: Churn) -> None:
    cuts: dict[tuple[str, int], int] = {}
    for one in parsed(churn.ordered):
        if one.get("kind") == "evict":
            cuts[one["member"][0], one["member"][1]] = one["cut"]
        elif one.get("kind") == "leave":
            cuts[one["sender"], one["epoch"]] = one["last"]
        elif one.get("kind", "message") == "message" and one["status"] == "delivered":
            assert one["seq"] <= cuts.get((one["sender"], one.get("epoch", 0)), one["seq"])


def whoever_depends_comes_after(churn: Churn) -> None:
    """The true predecessors: the question of an answer, in causal its whole past, in fifo its sender's earlier ones."""
    places: dict[str | None, dict[Id, int]] = {}
    for at, one in enumerate(parsed(churn.ordered)):
        # A destination need not wait for the stand-in of a message to others.
        if one.get("seq") and (one["status"] == "delivered" or "destination" not in one):
            places.setdefault(one.get("destination"), {})[id_of(one)] = at
    for place in places.values():
        for id_, at in place.items():
            needed = needs(churn, id_)
            given_up = b'"status":"abandoned"' in churn.ordered[at]
            assert given_up or all(place[one] <= at for one in needed if one in place)


def needs(churn: Churn, id_: Id) -> set[Id]:
    parent = churn.parents[id_]
    match churn.order:
        case "s_b" | "object":
            return {parent} if parent else set()
        case "causal" | "causal_p2p":
            return set(churn.pasts[id_])
        case "fifo":
            return {(*id_[:2], seq) for seq in range(1, id_[2])}
    return set()
