"""Laws of the orders by clocks against what really happened: several gateways, a bad network, wrong clocks."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest

from precede.udfs.holdback import Holdback
from tests.kernel.clock_rules import ClockRule, LamportRule, TwoClockRule
from tests.kernel.effort import seeds
from tests.kernel.feeding import Id, feed, id_of, parsed
from tests.simulation import GROUP, Arrival, History, converse

every_order = pytest.mark.parametrize("order", ["lamport", "two_clock"])
DELAY, SKEW = 20, 15


def conversation(random: Random, order: str, *, loss: float = 0.0, **options: Any) -> History:
    return converse(
        random,
        order,
        peers=random.randint(1, 5),
        messages=random.randint(1, 25),
        gateways=random.randint(1, 3),
        loss=loss,
        delay=DELAY,
        replies=random.choice([0.3, 0.7, 1.0]),
        beats=random.choice([0.0, 0.5]),
        skew=SKEW,
        least=options.get("delay_min_ms", 0),
        options=options if order == "two_clock" else None,
    )


def drawn_options(random: Random) -> dict[str, int]:
    """The options of a two_clock group about its clocks and network; they are true here."""
    options = random.choice([{}, {"accuracy_ms": SKEW}])
    if options and random.random() < 0.5:
        options["delay_min_ms"] = random.choice([5, 40, 100])
    if options and random.random() < 0.5:
        options["delay_max_ms"] = DELAY
    return options


def with_last_words(history: History) -> list[Arrival]:
    """The log, then a final heartbeat of every member that leaves nothing open."""
    at, now = len(history.log), history.log[-1].timestamp_ms
    return history.log + [
        Arrival(value, GROUP.encode(), 0, at + number, now) for number, value in enumerate(history.final_heartbeats)
    ]


def delivered(log: list[Arrival], order: str) -> list[Id]:
    outcome = feed(log, order=order)
    assert outcome.dead == []
    return [id_of(one) for one in parsed(outcome.ordered) if "kind" not in one]


@every_order
def test_once_everybody_has_spoken_all_is_delivered_and_after_all_that_really_came_before_it(order: str) -> None:
    for seed in seeds(150):
        random = Random(f"{order} {seed}")
        history = conversation(random, order, **drawn_options(random))
        sequence = delivered(with_last_words(history), order)
        assert sorted(sequence) == sorted(history.said), seed
        for at, id_ in enumerate(sequence):
            assert history.said[id_].past <= set(sequence[:at]), (seed, id_)


@every_order
def test_whatever_was_lost_nothing_is_delivered_before_what_is_there_and_came_before_it(order: str) -> None:
    for seed in seeds(150):
        random = Random(f"{order} {seed}")
        history = conversation(random, order, loss=0.2, **drawn_options(random))
        sequence = delivered(with_last_words(history), order)
        place = {id_: at for at, id_ in enumerate(sequence)}
        for id_ in sequence:
            for before in history.said[id_].past & place.keys():
                assert place[before] < place[id_], (seed, before, id_)
            of_sender = history.earlier_of_sender(id_)
            assert of_sender <= place.keys(), (seed, id_)


def test_lamport_gives_the_one_sequence_by_time_and_sender_whatever_way_the_messages_took() -> None:
    for seed in seeds(150):
        random = Random(seed)
        log = with_last_words(conversation(random, "lamport"))
        shuffled = [log[0], *random.sample(log[1:], len(log) - 1)]
        again = [one._replace(offset=at) for at, one in enumerate(shuffled)]
        sequence = delivered(log, "lamport")
        assert delivered(again, "lamport") == sequence
        time_of = {id_of(one): one["time"] for one in (json.loads(each.value) for each in log[1:]) if "kind" not in one}
        assert sequence == sorted(sequence, key=lambda id_: (time_of[id_], id_))


@every_order
def test_each_message_goes_in_the_very_step_in_which_the_rule_lets_it_go_and_no_earlier(order: str) -> None:
    for seed in seeds(150):
        random = Random(f"{order} {seed}")
        options = drawn_options(random)
        options.pop("delay_max_ms", None)
        history = conversation(random, order, loss=random.choice([0.0, 0.2]), **options)
        members = json.loads(history.log[0].value)["members"]
        margin = 2 * options["accuracy_ms"] - options.get("delay_min_ms", 0) if "accuracy_ms" in options else None
        rule: ClockRule = LamportRule(members) if order == "lamport" else TwoClockRule(members, margin)
        kernel = Holdback(order=order)
        for arrival in with_last_words(history):
            kernel.receive(*arrival)
            if arrival.offset:
                records = [one for one in parsed(kernel.ordered) if "kind" not in one]
                assert [(one["sender"], one["seq"]) for one in records] == rule.take(json.loads(arrival.value)), seed
            kernel.clear()


def test_the_timed_release_holds_nothing_longer_than_clocks_and_network_can_be_wrong() -> None:
    for seed in seeds(150):
        random = Random(seed)
        options = {"accuracy_ms": SKEW, "delay_max_ms": DELAY}
        history = conversation(random, "two_clock", **options)
        kernel = Holdback()
        for arrival in history.log:
            kernel.receive(*arrival)
        late = history.log[-1].timestamp_ms + SKEW + 4 * SKEW + DELAY + 1
        kernel.receive(b'{"kind":"tick"}', None, 0, len(history.log), late)
        sequence = [id_of(one) for one in parsed(kernel.ordered) if "kind" not in one]
        assert sorted(sequence) == sorted(history.said), "silence holds no message for longer"
        assert kernel.dead == []
        for at, id_ in enumerate(sequence):
            assert history.said[id_].past <= set(sequence[:at]), (seed, id_)


@every_order
def test_a_silent_member_is_named_until_it_is_put_out_and_then_all_goes(order: str) -> None:
    for seed in seeds(120):
        random = Random(f"{order} {seed}")
        history = conversation(random, order)
        kernel = Holdback(order=order)
        for arrival in history.log:
            kernel.receive(*arrival)
        at = len(history.log)
        while held := list(kernel.held()):
            assert not any(one.missing for one in held), "nothing was lost"
            silent = next(one.silent for one in held if one.silent)
            highest = max((seq for name, _, seq in history.said if name == silent[0]), default=0)
            evict = {"group": GROUP, "kind": "evict", "member": [silent[0], 0], "cut": highest}
            kernel.receive(json.dumps(evict).encode(), GROUP.encode(), 0, at, 0)
            at += 1
        sequence = [id_of(one) for one in parsed(kernel.ordered) if "kind" not in one]
        assert sorted(sequence) == sorted(history.said)
        assert kernel.dead == []


@every_order
def test_giving_up_on_all_that_is_missing_frees_all_once_everybody_has_spoken(order: str) -> None:
    for seed in seeds(120):
        random = Random(f"{order} {seed}")
        history = conversation(random, order, loss=0.3)
        log = with_last_words(history)
        kernel = Holdback(order=order)
        for arrival in log:
            kernel.receive(*arrival)
        at = len(log)
        while held := list(kernel.held()):
            missing = sorted({id_ for one in held for id_ in one.missing})
            assert missing, "held, although every member has sent and nothing is missing"
            abandon = {"group": GROUP, "kind": "abandon", "ids": [[*id_, id_[2]] for id_ in missing]}
            kernel.receive(json.dumps(abandon).encode(), GROUP.encode(), 0, at, 0)
            at += 1
        records = [one for one in parsed(kernel.ordered) if "kind" not in one]
        assert {id_of(one) for one in records if one["status"] == "delivered"} == set(history.first_arrivals())
        assert kernel.dead == []
