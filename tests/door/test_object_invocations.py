"""Timura, Tanaka and Takizawa, 2.1: how methods invoke others, wait, and exchange data; a test per claim."""

from __future__ import annotations

import pytest

from precede import CALLER, AnyOf, Call, CallFailed, ReceiveData, SendData, Started, Unconfirmed
from tests.door.hosts import Group, Speaker
from tests.door.stores import Steps, perform, store, stores

# ── 2.1: synchronous, asynchronous, one-way ───────────────────────────────────────────────────────────────────────


def test_a_synchronous_caller_blocks_while_what_it_invoked_is_performed() -> None:
    group, went_on = stores(), []

    def steps() -> Steps:
        went_on.append((yield Call("a", "add", (1,))))

    perform(group, steps(), settle=False)
    assert went_on == []
    group.settle()
    assert went_on == [1]


def test_an_asynchronous_caller_goes_on_and_receives_the_response_eventually() -> None:
    group, went_on = stores(), []

    def steps() -> Steps:
        started = yield Call("a", "add", (1,), wait=False)
        went_on.append(started.done)
        with pytest.raises(RuntimeError, match="add is not answered yet"):
            _ = started.result
        return (yield started)

    asked = perform(group, steps(), settle=False)
    assert went_on == [False]
    assert not asked.done
    group.settle()
    assert asked.result == 1


def test_a_one_way_caller_does_not_wait_and_the_two_are_performed_independently() -> None:
    group = stores()

    def steps() -> Steps:
        started = yield Call("a", "fail", answer=False)
        with pytest.raises(ValueError, match="fail was invoked one-way"):
            yield started
        yield Call("b", "add", (1,), answer=False)
        return "done"

    asked = perform(group, steps(), settle=False)
    assert asked.result == "done", "its end depends on nothing that was invoked one-way"
    group.settle()
    assert store(group, "b").number == 1


def test_one_that_was_invoked_one_way_stays_done_when_its_caller_aborts() -> None:
    group = stores()

    def steps() -> Steps:
        yield Call("a", "add", (1,), answer=False)
        yield Call("b", "fail")

    with pytest.raises(CallFailed, match="it cannot be counted"):
        _ = perform(group, steps()).result
    assert (store(group, "a").number, group.hosts["a"].undecided) == (1, [])


# ── 2.1: the and-wait and the or-wait ─────────────────────────────────────────────────────────────────────────────


def test_the_and_wait_blocks_until_all_responses_are_received() -> None:
    group, seen = stores(), []

    def steps() -> Steps:
        first = yield Call("a", "add", (1,), wait=False)
        seen.append((yield [first, Call("b", "add", (2,)), Call("c", "add", (3,), answer=False)]))

    perform(group, steps(), settle=False)
    group.step(count=1)  # a has executed, and answers
    group.step(count=3)
    assert seen == []
    group.settle()
    assert seen == [[1, 2, None]]


def test_the_or_wait_goes_on_once_one_response_is_received() -> None:
    group, seen = stores(conflicts=[("add_at", "show")]), []

    def steps() -> Steps:
        slow = yield Call("a", "add_at", ("b", 1), wait=False)
        quick = yield Call("c", "add", (2,), wait=False)
        first = yield AnyOf(slow, quick)
        seen.append((first is quick, first.result, slow.done))
        seen.append((yield slow))

    perform(group, steps())
    assert seen == [(True, 2, False), 1]


def test_the_or_wait_starts_what_it_is_given_as_calls() -> None:
    group = stores()

    def steps() -> Steps:
        first = yield AnyOf(Call("a", "add", (1,)), Call("b", "add", (2,)))
        assert isinstance(first, Started)
        return first.call.to, first.result

    assert perform(group, steps()).result == ("a", 1)
    assert store(group, "b").number == 2


def test_what_an_or_wait_did_not_wait_for_must_end_well_all_the_same_before_the_caller_commits() -> None:
    group = stores()

    def steps() -> Steps:
        yield AnyOf(Call("a", "add", (1,)), Call("b", "fail"))
        return "one is enough"

    asked = perform(group, steps())
    with pytest.raises(CallFailed, match="it cannot be counted"):
        _ = asked.result
    assert store(group, "a").did == ["add 1", "undo 1"]


# ── 2.1: the exchange of data ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("answer", [True, False], ids=["asynchronous", "one-way"])
def test_an_instance_exchanges_data_with_what_it_invoked_without_waiting(answer: bool) -> None:
    group, seen = stores(), []

    def steps() -> Steps:
        started = yield Call("a", "double", answer=answer, wait=False)
        for number in (3, 4):
            yield SendData(started, number)
            seen.append((yield ReceiveData(started)))
        yield SendData(started, 0)
        if answer:
            seen.append((yield started))

    asked = perform(group, steps())
    assert asked.done
    assert seen == [6, 8, *(["enough"] if answer else [])]
    assert group.hosts["a"].running == []


def test_data_of_several_replicas_come_with_their_names() -> None:
    group = stores()

    def steps() -> Steps:
        started = yield Call(("a", "b"), "double", wait=False)
        yield SendData(started, 5)
        found = [(yield ReceiveData(started)), (yield ReceiveData(started))]
        yield SendData(started, 0)
        return dict(found)

    assert perform(group, steps()).result == {"a": 10, "b": 10}


def test_data_for_an_instance_that_has_to_wait_are_there_when_it_starts() -> None:
    group = stores(conflicts=[("add_at", "read_caller")])
    slow = group.hosts["ann"].invoke("a", "add_at", "b", 1)

    def steps() -> Steps:
        started = yield Call("a", "read_caller", wait=False)
        yield SendData(started, "early")
        return (yield started)

    asked = perform(group, steps(), settle=False)
    group.step()
    assert len(group.hosts["a"].waiting) == 1
    group.settle()
    assert (slow.result, asked.result) == (1, "early")


def test_data_are_not_exchanged_where_the_invocation_is_synchronous() -> None:
    group = stores()
    asked = group.hosts["ann"].invoke("a", "read_caller")
    group.settle()
    with pytest.raises(CallFailed, match="the caller of this method waits for its answer"):
        _ = asked.result

    def steps() -> Steps:
        try:
            yield ReceiveData(CALLER)
        except ValueError:
            return "nobody called"

    assert perform(group, steps()).result == "nobody called"


def test_data_that_never_come_because_the_other_has_ended_are_a_failure() -> None:
    group = stores()

    def steps() -> Steps:
        started = yield Call("a", "add", (1,), wait=False)
        yield ReceiveData(started)

    with pytest.raises(CallFailed, match="the other method ended and sent no more data"):
        _ = perform(group, steps()).result
    assert store(group, "a").number == 0


def test_data_of_a_stranger_reach_no_instance() -> None:
    group = stores()
    ann = group.hosts["ann"].perform("transaction", (one for one in [Call("a", "read_caller", wait=False)]))
    group.step()
    (request,) = group.hosts["a"].running
    for outcome in ({"value": "mine"}, {"outcome": "abort", "of": [request]}, {"outcome": "commit", "of": [request]}):
        data = {"no": 0, "vector": {}, "about": request} | outcome
        stamp = {"instance": [9, "mallory"], "op": "read_caller", "type": "data"}
        group.say("mallory", data, after=[], to=["a"], object=stamp)
    group.settle()
    assert group.hosts["a"].running == [request]
    assert not ann.done


# ── where Kafka does not answer ───────────────────────────────────────────────────────────────────────────────────────


def speaker(group: Group, name: str) -> Speaker:
    found = group.hosts[name]._member
    assert isinstance(found, Speaker)
    return found


def test_what_kafka_did_not_confirm_counts_as_said_and_is_committed_with_the_rest() -> None:
    group = stores()
    speaker(group, "ann").unconfirmed = 1

    def steps() -> Steps:
        first = yield Call("a", "add", (1,), wait=False)
        second = yield Call("b", "add", (2,), wait=False)
        return (yield [first, second])

    assert perform(group, steps()).result == [1, 2]
    assert [group.hosts[name].undecided for name in ("a", "b")] == [[], []]


def test_an_answer_that_kafka_did_not_confirm_arrives_with_the_next_message_of_its_object() -> None:
    group = stores()
    speaker(group, "a").unconfirmed = 1
    first = group.hosts["ann"].invoke("a", "add", 1)
    group.settle()
    assert not first.done
    second = group.hosts["ann"].invoke("a", "add", 2)
    group.settle()
    assert (first.result, second.result) == (1, 3)
    assert group.hosts["a"].undecided == []


def test_where_kafka_confirms_nothing_the_caller_of_the_host_is_told() -> None:
    group = stores()
    speaker(group, "ann").unconfirmed = 2

    def steps() -> Steps:
        yield Call("a", "add", (1,), wait=False)
        yield Call("b", "add", (2,), wait=False)

    with pytest.raises(Unconfirmed):
        perform(group, steps())
