"""What a group knows of one message agrees with what came out, in random logs of every order and after every cut."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from precede.udfs.engine.inspection import KnownMessage, known_message
from precede.udfs.engine.snapshot import outline
from precede.udfs.engine.state import NO_OPTIONS
from precede.udfs.holdback import Holdback
from precede.udfs.limits import Patience
from precede.udfs.orders import ORDERS
from tests.kernel import traffic
from tests.kernel.effort import seeds
from tests.kernel.feeding import Id, Tale, parsed

GROUPS = ("g", "h")


def ids_of(records: list[dict[str, Any]], group: str) -> set[Id]:
    """The ids of the messages of a group among these records."""
    return {
        (one["sender"], one.get("epoch") or 0, one["seq"])
        for one in records
        if one["group"] == group and one.get("kind", "message") == "message" and isinstance(one.get("seq"), int)
    }


def known(kernel: Holdback, group: str, id_: Id) -> KnownMessage | None:
    found = kernel.group(group)
    return None if found is None else known_message(found, id_, kernel.patience)


def taken(log: traffic.Log) -> Holdback:
    kernel = Holdback(order=log.order, limits=log.limits)
    for record in log.records:
        kernel.receive(*record)
    return kernel


def check(kernel: Holdback, group: str, ids: set[Id]) -> None:
    """Compare what is known of these ids with what the kernel wrote and holds."""
    ordered = parsed(kernel.ordered)
    delivered = ids_of([one for one in ordered if one["status"] == "delivered"], group)
    abandoned = ids_of([one for one in ordered if one["status"] == "abandoned"], group)
    refused = {(one["sender"], one["epoch"] or 0, one["seq"]) for one in parsed(kernel.dead) if one["group"] == group}
    held: dict[Id, list[Any]] = {}
    for one in kernel.held(group):
        id_ = one.sender, one.epoch, one.seq
        held.setdefault(id_, []).append((one.destination, one.missing, one.silent))
    missing = {(gap.sender, gap.epoch, seq) for gap in kernel.gaps(group) for seq in range(gap.first, gap.last + 1)}
    for id_ in ids | delivered | abandoned | held.keys() | missing:
        found = known(kernel, group, id_)
        if found is None:
            assert id_ not in delivered | abandoned | held.keys() | missing
            continue
        assert (found.standing == "held") == (id_ in held), id_
        assert (found.standing == "missing") == (id_ in missing and id_ not in abandoned), id_
        if found.standing == "held":
            waits = [
                (one.destination, one.missing, one.joins + [who.sender for who in one.silent]) for one in found.waits
            ]
            assert [(to, missing, sorted(names)) for to, missing, names in waits] == [
                (to, missing, sorted(set(names))) for to, missing, names in held[id_]
            ]
        elif found.standing == "settled" and not found.by_destination:
            assert id_ in delivered
        elif found.standing == "refused":
            assert id_ in refused
        elif found.standing in ("unseen", "missing"):
            assert id_ not in abandoned
            assert found.by_destination or id_ not in delivered


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("seed", seeds(40))
def test_what_is_known_of_each_message_agrees_with_what_was_written_and_is_held(order: str, seed: int) -> None:
    log = traffic.log(Random(f"{order} {seed}"), order)
    kernel = taken(log)
    everything = {(sender, epoch, seq) for sender in traffic.SENDERS for epoch in (0, 1, 2) for seq in range(1, 14)}
    for group in GROUPS:
        check(kernel, group, everything)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("seed", seeds(10))
def test_it_is_the_same_after_the_state_was_written_and_read(order: str, seed: int) -> None:
    kernel = taken(traffic.log(Random(f"{order} {seed}"), order))
    again = Holdback(order=kernel.order, limits=kernel.limits)
    again.load(kernel.dump())
    for group in GROUPS:
        for id_ in [(sender, 0, seq) for sender in traffic.SENDERS for seq in range(1, 14)]:
            assert known(kernel, group, id_) == known(again, group, id_)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("seed", seeds(10))
def test_the_outline_of_a_state_says_what_the_whole_of_it_says(order: str, seed: int) -> None:
    kernel = taken(traffic.log(Random(f"{order} {seed}"), order))
    for key, blob in kernel.dump().items():
        group, found = kernel.group(key.decode()), outline(key, blob)
        assert group is not None
        assert (found.order, found.partition, found.position) == (group.order.name, group.partition, group.position)
        assert found.members == group.members
        assert (NO_OPTIONS if found.options is None else found.options) == group.options
        assert (found.options is None) == (group.options is NO_OPTIONS)


def test_a_gap_says_when_it_is_given_up_and_that_a_group_may_hold_for_ever() -> None:
    patience = Patience(ask_after_ms=100, give_up_ms=5_000)
    tale = Tale("fifo", patience=patience).say("A2")
    found = known(tale.kernel, "g", ("A", 0, 1))
    assert found is not None
    opened_ms = found.gaps[0].since_ms
    assert (found.standing, found.gaps[0].gives_up_ms) == ("missing", opened_ms + 5_000)
    tale = Tale("fifo", patience=patience).take(kind="create", options={"order": "fifo", "loss": "hold"}).say("A2")
    found = known(tale.kernel, "g", ("A", 0, 1))
    assert found is not None
    assert [gap.gives_up_ms for gap in found.gaps] == [None]
