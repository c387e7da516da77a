"""`total` (lecture notes on message ordering, section 3.1, the sequencer): one test per claim."""

from __future__ import annotations

from random import Random

from tests.kernel.effort import seeds
from tests.kernel.feeding import Tale, feed, parsed
from tests.simulation import converse


def test_messages_are_numbered_as_they_arrive_and_nothing_waits() -> None:
    tale = Tale("total")
    for name in ("A2", "B1", "A1", "C7"):
        assert tale.say(name).out == [name]
        assert tale.held == {}


def test_everybody_gets_the_one_sequence_of_the_log() -> None:
    for seed in seeds(50):
        history = converse(Random(seed), "total", loss=0.2)
        places = [one["offset"] for one in parsed(feed(history.log, order="total").ordered)]
        assert places == sorted(history.first_arrivals().values())


def test_it_is_total_but_not_causal() -> None:
    # Section 1.3: m2 reaches the sequencer before m1, which it follows.
    tale = Tale("total")
    assert tale.say("P2", "P1").out == ["P2"]
    assert tale.say("P1").out == ["P1"]


def test_no_stamp_is_needed_and_none_is_judged() -> None:
    assert Tale("total").take(sender="A", seq=1).out == ["A1"]
    assert Tale("total").say("A1", "A1").out == ["A1"]
    assert Tale("total").take(sender="A", seq=1, after=[["B", 0, 1], ["C", 0, 1]]).out == ["A1"]


def test_loss_delays_nothing_and_giving_up_fills_the_place() -> None:
    tale = Tale("total").say("A3")
    assert tale.take(kind="abandon", ids=[["A", 0, 1, 2]]).out == ["(A1)", "(A2)"]
    assert tale.say("A1").dead == ["late A1"]
