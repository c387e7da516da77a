"""`abandon`: giving up on messages that never came (contract, section 3, "Giving up")."""

from __future__ import annotations

import pytest

from precede.udfs.limits import Limits
from tests.kernel.feeding import Tale, parsed


def test_what_waited_for_an_id_given_up_goes_on() -> None:
    tale = Tale().say("B1", "A1").say("C1", "B1")
    assert tale.take(kind="abandon", ids=[["A", 0, 1, 1]]).out == ["(A1)", "B1", "C1"]
    assert tale.held == {}


def test_the_abandoned_record_has_the_id_no_data_and_the_place_of_the_abandon() -> None:
    tale = Tale(group="grüppe").say("A2", "A1")
    tale.take(kind="abandon", ids=[['"é', 7, 3, 3]])
    assert tale.kernel.ordered == [
        '{"group":"grüppe","sender":"\\"é","epoch":7,"seq":3,"position":1,"order":"s_b","status":"abandoned"'
        ',"partition":0,"offset":1,"arrived_ms":10,"released_offset":1,"released_ms":10}'.encode()
    ]


def test_in_fifo_it_keeps_the_place_of_the_abandon_and_is_released_by_its_turn() -> None:
    tale = Tale("fifo").take(kind="abandon", ids=[["A", 0, 2, 2]]).say("A1")
    (_, record) = parsed(tale.kernel.ordered)
    assert (record["offset"], record["arrived_ms"], record["released_offset"], record["released_ms"]) == (0, 0, 1, 10)


@pytest.mark.parametrize("order", ["s_b", "fifo", "total"])
def test_what_comes_after_all_is_late(order: str) -> None:
    tale = Tale(order).take(kind="abandon", ids=[["A", 0, 1, 1]])
    assert tale.say("A1").dead == ["late A1"]
    assert tale.say("A1").dead == ["late A1"]
    assert tale.kernel.duplicates == 0


def test_what_comes_while_its_stand_in_waits_its_turn_is_late_too() -> None:
    tale = Tale("fifo").take(kind="abandon", ids=[["A", 0, 2, 2]])
    assert tale.say("A2").dead == ["late A2"]
    assert tale.say("A1").out == ["A1", "(A2)"]


def test_a_held_message_given_up_is_a_dead_letter_and_gets_its_record_too() -> None:
    tale = Tale().say("B1", "A1").say("C1", "B1")
    tale.take(kind="abandon", ids=[["B", 0, 1, 1]])
    assert (tale.dead, tale.out) == (["abandoned B1"], ["(B1)", "C1"])
    (letter,) = parsed(tale.kernel.dead)
    assert (letter["offset"], letter["arrived_ms"]) == (0, 0)
    assert tale.say("B1", "A1").dead == ["late B1"]


def test_ids_are_given_up_in_the_order_written_each_with_all_it_frees() -> None:
    tale = Tale().say("X1", "B1").say("Y1", "A1").say("Z1", "A2")
    out = tale.take(kind="abandon", ids=[["B", 0, 1, 1], ["A", 0, 1, 2]]).out
    assert out == ["(B1)", "X1", "(A1)", "Y1", "(A2)", "Z1"]


def test_what_is_there_already_is_passed_over() -> None:
    tale = Tale().say("A1").say("A3")
    assert tale.take(kind="abandon", ids=[["A", 0, 1, 4], ["A", 0, 2, 3]]).out == ["(A2)", "(A4)"]


def test_an_abandon_that_gives_up_nothing_is_late_itself() -> None:
    tale = Tale().say("A1")
    assert tale.take(kind="abandon", ids=[["A", 0, 1, 1]]).dead == ["late"]


def test_an_abandon_reaching_more_than_window_past_the_highest_seen_is_seq_jump() -> None:
    tale = Tale(limits=Limits(window=3)).say("A2")
    assert tale.take(kind="abandon", ids=[["A", 0, 1, 6]]).dead == ["seq_jump"]
    assert tale.take(kind="abandon", ids=[["A", 0, 1, 1], ["B", 0, 4, 4]]).dead == ["seq_jump"]
    assert tale.take(kind="abandon", ids=[["A", 0, 1, 5]]).out == ["(A1)", "(A3)", "(A4)", "(A5)"]
    assert tale.say("A8").out == ["A8"]  # an abandoned message counts as seen


def test_the_window_bounds_each_sender_and_not_their_sum() -> None:
    tale = Tale(limits=Limits(window=3))
    out = tale.take(kind="abandon", ids=[["A", 0, 1, 3], ["B", 0, 1, 3], ["A", 0, 2, 3]]).out
    assert out == ["(A1)", "(A2)", "(A3)", "(B1)", "(B2)", "(B3)"]


def test_a_short_record_cannot_ask_for_endless_output(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = [[f"s{at}", 0, 1, 100_000] for at in range(11)]
    assert Tale().take(kind="abandon", ids=ids).dead == ["seq_jump"]
    monkeypatch.setattr("precede.udfs.engine.abandon.ABANDONED_MAX", 4)
    assert len(Tale().take(kind="abandon", ids=[["A", 0, 1, 2], ["B", 0, 1, 2]]).out) == 4
    assert Tale().take(kind="abandon", ids=[["A", 0, 1, 2], ["B", 0, 1, 3]]).dead == ["seq_jump"]


def test_ids_taken_by_a_refusal_are_not_given_up() -> None:
    tale = Tale().say("A1", "A1").say("B1", "A1")
    assert tale.take(kind="abandon", ids=[["A", 0, 1, 2]]).out == ["(A2)"]
    assert tale.say("C1", "A1").dead == ["orphan C1"]
