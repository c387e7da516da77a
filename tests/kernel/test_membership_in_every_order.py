"""Each sentence of the contract on membership, in every order (section 3, "Membership")."""

from __future__ import annotations

from typing import Any

import pytest

from precede.udfs.orders import ORDERS
from tests.kernel.feeding import Tale, parsed

every_order = pytest.mark.parametrize("order", ORDERS)


def message(name: str, seq: int, epoch: int = 0) -> dict[str, Any]:
    """A message with the stamps of every order; it waits at most for earlier messages of its sender."""
    stamps = {"after": [], "seen": [[name, epoch, seq]], "to": ["A", "B"], "sent": {}}
    return {"sender": name, "epoch": epoch, "seq": seq, "time": 10 * seq, "clock_ms": 10 * seq, **stamps}


def group(order: str, *, closed: bool = True) -> Tale:
    tale = Tale().take(kind="create", options={"order": order, "closed": closed}, members=["A", "B"])
    assert out(tale) == {"create"}
    return tale


def out(tale: Tale) -> set[str]:
    """What the last record delivered, without the destination that some orders put first."""
    return {name.rpartition(":")[2] for name in tale.out}


def held(tale: Tale) -> dict[str, list[str]]:
    return {name.rpartition(":")[2]: waits for name, waits in tale.held.items()}


def dead(tale: Tale) -> set[str]:
    """The dead letters of the last record, without destinations."""
    return {" ".join(part.rpartition(":")[2] for part in letter.split()) for letter in tale.dead}


def counts(tale: Tale) -> bool:
    """Whether the last record was accepted: delivered or held, without a dead letter."""
    return tale.dead == []


@every_order
def test_a_create_after_anything_else_of_its_group_is_bad_stamp(order: str) -> None:
    assert group(order).take(kind="create", options={"order": order}).dead == ["bad_stamp"]
    assert Tale(order).take(**message("A", 1)).take(kind="create").dead == ["bad_stamp"]


@every_order
def test_create_join_leave_and_evict_take_the_next_position_when_they_arrive(order: str) -> None:
    tale = group(order)
    last: dict[str | None, int] = {}
    for fields in (
        {"kind": "join", "sender": "C"},
        {"kind": "leave", "sender": "C", "last": 0},
        {"kind": "evict", "member": ["B", 0], "cut": 0},
    ):
        tale.take(**fields)
        records = parsed(tale.kernel.ordered)
        assert records, f"{fields} has no place"
        assert {one["kind"] for one in records} == {fields["kind"]}
        for one in records:
            assert one["released_offset"] == one["offset"] == tale.offset - 1
            where = one.get("destination")
            assert one["position"] == last.get(where, one["position"] - 1) + 1
            last[where] = one["position"]


@every_order
def test_after_a_leave_later_seqs_are_fenced_and_what_was_in_flight_below_still_counts(order: str) -> None:
    tale = group(order).take(kind="leave", sender="B", last=2)
    assert tale.take(**message("B", 3)).dead == ["fenced B3"]
    assert counts(tale.take(**message("B", 1)))
    assert counts(tale.take(**message("B", 2)))
    assert tale.take(**message("B", 3)).dead == ["fenced B3"]


@every_order
def test_after_an_evict_later_seqs_are_fenced_and_what_was_in_flight_below_still_counts(order: str) -> None:
    tale = group(order).take(kind="evict", member=["B", 0], cut=1)
    assert tale.take(**message("B", 2)).dead == ["fenced B2"]
    assert counts(tale.take(**message("B", 1)))


@every_order
def test_after_a_join_with_a_larger_epoch_later_seqs_of_the_old_one_are_fenced(order: str) -> None:
    tale = group(order).take(**message("B", 1))
    assert out(tale.take(kind="join", sender="B", epoch=2)) >= {"join"}
    assert tale.take(**message("B", 2)).dead == ["fenced B2"]
    assert tale.take(**message("B", 1, epoch=1)).dead == ["fenced B1@1"]
    assert counts(tale.take(**message("B", 1, epoch=2) | {"time": 100}))


@every_order
def test_held_ones_above_the_cut_are_fenced_with_the_record_that_sets_it(order: str) -> None:
    tale = group(order).take(**message("C", 1)).take(**message("C", 2))
    assert set(held(tale)) == {"C1", "C2"}
    tale.take(kind="evict", member=["C", 0], cut=1)
    assert dead(tale) == {"fenced C1", "fenced C2"}, "it never joined, so nothing of it counts"
    assert held(tale) == {}


@every_order
def test_join_of_who_is_in_is_bad_stamp_and_of_an_older_epoch_fenced(order: str) -> None:
    tale = group(order)
    assert tale.take(kind="join", sender="B").dead == ["bad_stamp"]
    tale.take(kind="join", sender="B", epoch=3)
    assert tale.take(kind="join", sender="B", epoch=3, time=7).dead == ["bad_stamp"]
    assert tale.take(kind="join", sender="B", epoch=2).dead == ["fenced"]
    tale.take(kind="leave", sender="B", epoch=3, last=0)
    assert tale.take(kind="join", sender="B", epoch=3, time=7).dead == ["fenced"]


@every_order
def test_a_membership_record_that_repeats_the_last_one_of_its_kind_byte_for_byte_is_a_copy(order: str) -> None:
    create: dict[str, Any] = {"kind": "create", "options": {"order": order}, "members": ["A", "B"]}
    leave: dict[str, Any] = {"kind": "leave", "sender": "A", "last": 0}
    evict: dict[str, Any] = {"kind": "evict", "member": ["B", 0], "cut": 0}
    join: dict[str, Any] = {"kind": "join", "sender": "A"}
    joins = [join | {"epoch": epoch, "time": 5 * epoch} for epoch in (1, 2)]
    tale = Tale(order)
    for record in (create, leave, evict, *joins):
        tale.take(**record)
        assert out(tale) == {record["kind"]}
        assert is_copy(tale.restart(), record)
    assert all(is_copy(tale, record) for record in (create, leave, evict, joins[1]))
    assert tale.take(**joins[0]).dead == ["fenced"]  # another join of that name took effect since
    assert tale.take(**create | {"members": ["A"]}).dead == ["bad_stamp"]


def is_copy(tale: Tale, record: dict[str, Any]) -> bool:
    """Whether a record is dropped and counted."""
    before = tale.kernel.duplicates
    tale.take(**record)
    return (tale.out, tale.dead, tale.kernel.duplicates) == ([], [], before + 1)


@every_order
def test_leave_or_evict_of_somebody_never_seen_is_unknown_member(order: str) -> None:
    tale = group(order)
    assert tale.take(kind="leave", sender="Z", last=0).dead == ["unknown_member"]
    assert tale.take(kind="evict", member=["Z", 0], cut=0).dead == ["unknown_member"]
    assert tale.take(kind="evict", member=["A", 1], cut=0).dead == ["unknown_member"]


@every_order
def test_in_a_closed_group_who_is_no_member_is_held_until_its_join(order: str) -> None:
    tale = group(order).take(**message("C", 1))
    assert held(tale) == {"C1": ["C"]}
    tale.take(kind="join", sender="C")
    assert counts(tale)
    assert held(tale).get("C1") != ["C"]


@every_order
def test_given_up_on_who_never_joined_is_not_member_and_a_record_stands_for_it(order: str) -> None:
    tale = group(order).take(**message("A", 1))  # a member names the destinations; a stranger's message does not
    tale.take(**message("C", 1))
    tale.take(kind="abandon", ids=[["C", 0, 1, 1]])
    assert dead(tale) == {"not_member C1"}
    assert out(tale) == {"(C1)"}
    assert dead(tale.take(**message("C", 1))) == {"late C1"}
