"""`fifo` (lecture notes on message ordering, section 1): one test per claim."""

from __future__ import annotations

from itertools import permutations
from time import process_time

from precede.udfs.holdback import Holdback
from tests.kernel.feeding import Tale


def test_each_sender_s_messages_come_in_its_order_whatever_the_arrival() -> None:
    for arrival in permutations(["A1", "A2", "A3", "B1", "B2"]):
        tale = Tale("fifo")
        delivered = []
        for name in arrival:
            delivered += tale.say(name).out
        assert [name for name in delivered if name[0] == "A"] == ["A1", "A2", "A3"]
        assert [name for name in delivered if name[0] == "B"] == ["B1", "B2"]
        assert tale.held == {}


def test_nothing_is_ordered_between_senders() -> None:
    tale = Tale("fifo").say("A2")
    assert tale.say("B1").out == ["B1"]
    assert tale.held == {"A2": ["A1"]}


def test_a_message_waits_for_its_sender_s_previous_one_and_no_longer() -> None:
    tale = Tale("fifo").say("A3").say("A2")
    assert tale.held == {"A2": ["A1"], "A3": ["A1"]}
    assert tale.say("A1").out == ["A1", "A2", "A3"]


def test_epochs_are_counted_each_for_itself() -> None:
    tale = Tale("fifo").take(sender="A", epoch=1, seq=1)
    assert tale.out == ["A1@1"]
    assert tale.say("A2").out == []
    assert tale.take(sender="A", epoch=1, seq=2).out == ["A2@1"]


def test_after_is_not_needed_and_not_obeyed() -> None:
    assert Tale("fifo").say("A1", "B7").out == ["A1"]
    assert Tale("fifo").take(sender="A", seq=1).out == ["A1"]


def test_a_loss_holds_only_the_messages_of_its_sender_until_it_is_given_up() -> None:
    tale = Tale("fifo").say("A1").say("A3").say("B1")
    assert tale.held == {"A3": ["A2"]}
    assert tale.take(kind="abandon", ids=[["A", 0, 2, 2]]).out == ["(A2)", "A3"]
    assert tale.say("A2").dead == ["late A2"]


def test_one_given_up_waits_its_turn_as_a_message_would() -> None:
    tale = Tale("fifo").take(kind="abandon", ids=[["A", 0, 2, 3]])
    assert (tale.out, tale.held) == ([], {})
    assert tale.say("A4").out == []
    assert tale.held == {"A4": ["A1"]}
    assert tale.say("A1").out == ["A1", "(A2)", "(A3)", "A4"]


def test_at_most_20_missing_ids_are_listed_the_lowest_first() -> None:
    tale = Tale("fifo").say("A3").say("A40")
    expected = ["A1", "A2", *(f"A{seq}" for seq in range(4, 22))]
    assert tale.held == {"A3": ["A1", "A2"], "A40": expected}


def test_looking_at_a_long_held_run_costs_one_walk() -> None:
    kernel = Holdback(order="fifo")
    for seq in range(20_000, 1, -1):
        kernel.receive(b'{"group":"g","sender":"a","seq":%d}' % seq, b"g", 0, 20_000 - seq, 0)
    begun = process_time()
    assert all(one.missing == [("a", 0, 1)] for one in kernel.held("g"))
    assert process_time() - begun < 5  # a walk for each of them takes ten times as long
