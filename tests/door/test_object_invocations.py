"""Timura, Tanaka and Takizawa: how methods invoke others, wait, exchange data, commit and abort; a test per claim."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import msgspec
import pytest

from precede import CALLER, AnyOf, Call, CallFailed, ReceiveData, SendData, Started
from tests.door.hosts import Group

Steps = Generator[Any, Any, Any]


class Store:
    """A number that can be undone, and what was done in which order."""

    def __init__(self) -> None:
        self.number = 0
        self.did: list[str] = []

    def add(self, number: int) -> int:
        self.number += number
        self.did.append(f"add {number}")
        return self.number

    def _undo_add(self, result: int, number: int) -> None:
        assert isinstance(result, int)
        self.number -= number
        self.did.append(f"undo {number}")

    def show(self) -> int:
        self.did.append("show")
        return self.number

    def fail(self) -> None:
        raise ArithmeticError("it cannot be counted")

    def add_at(self, other: str, number: int) -> Steps:
        """Adds here and there; what was added here is taken back if that fails while it runs."""
        self.number += number
        self.did.append(f"add {number}")
        try:
            found = yield Call(other, "add", (number,))
        except CallFailed:
            self.number -= number
            self.did.append(f"taken back {number}")
            raise
        return found

    def _undo_add_at(self, result: int, other: str, number: int) -> None:
        self._undo_add(result, number)

    def double(self) -> Steps:
        """Data from the caller, doubled, and back, until there is a 0."""
        while number := (yield ReceiveData(CALLER)):
            yield SendData(CALLER, 2 * number)
        return "enough"

    def read_caller(self) -> Steps:
        return (yield ReceiveData(CALLER))


def perform(group: Group, steps: Steps, *, settle: bool = True) -> Any:
    asked = group.hosts["ann"].perform("transaction", steps)
    if settle:
        group.settle()
    return asked


def stores(**more: Any) -> Group:
    return Group("ann", a=Store(), b=Store(), c=Store(), **more)


def store(group: Group, name: str) -> Any:
    return group.targets[name]


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


# ── 2.2: commit and abort ─────────────────────────────────────────────────────────────────────────────────────────


def test_a_method_commits_only_if_all_methods_that_it_invoked_complete_and_is_undone_otherwise() -> None:
    group = stores()

    def steps(last: str) -> Steps:
        yield Call("a", "add", (1,))
        yield Call("b", "add", (2,))
        yield Call("c", last, (3,) if last == "add" else ())

    assert perform(group, steps("add")).result is None
    assert [store(group, name).number for name in "abc"] == [1, 2, 3]
    failed = perform(group, steps("fail"))
    with pytest.raises(CallFailed, match="ArithmeticError"):
        _ = failed.result
    assert [store(group, name).number for name in "abc"] == [1, 2, 3]
    assert store(group, "a").did == ["add 1", "add 1", "undo 1"]


def test_commit_and_abort_go_as_messages_of_the_instance_that_invoked() -> None:
    for last, outcome in (("add", "commit"), ("fail", "abort")):
        group = stores()

        def steps(last: str = last) -> Steps:
            yield [Call("a", "add", (1,)), Call("b", "add", (1,))]
            yield Call("c", last, (1,) if last == "add" else ())

        perform(group, steps())
        said = [msgspec.json.decode(record) for record in group.log]
        ends = [one for one in said if "outcome" in one["data"]]
        (end,) = ends
        assert (end["sender"], end["object"]["type"], end["data"]["outcome"]) == ("ann", "data", outcome)
        assert end["to"] == (["a", "b", "c"] if last == "add" else ["a", "b"]), "what failed has ended by itself"
        assert not any(host.undecided or host.running for host in group.hosts.values())


def test_where_nothing_can_be_undone_no_message_more_is_sent() -> None:
    group = stores()
    group.hosts["ann"].invoke("a", "show")
    group.settle()
    assert len(group.log) == 2


def test_until_it_is_decided_what_conflicts_with_an_executed_method_waits_and_sees_no_more_than_stays() -> None:
    group = stores(conflicts=[("add", "show"), ("add", "add")])

    def steps() -> Steps:
        yield Call("a", "add", (1,))
        yield Call("b", "fail")

    asked = perform(group, steps(), settle=False)
    group.step()
    look = group.hosts["ann"].invoke("a", "show")
    group.step()
    assert (len(group.hosts["a"].undecided), len(group.hosts["a"].waiting)) == (1, 1)
    group.settle()
    assert (look.result, asked.done) == (0, True)
    assert store(group, "a").did == ["add 1", "undo 1", "show"]


def test_methods_of_one_transaction_do_not_wait_for_its_end_nor_for_others_that_do() -> None:
    group = stores(conflicts=[("add", "add")])

    def steps() -> Steps:
        yield [Call("a", "add", (1,)), Call("a", "add", (2,))]
        yield Call("a", "add", (3,))
        return "done"

    first = perform(group, steps(), settle=False)
    group.step(count=1)
    other = group.hosts["ann"].invoke("a", "add", 10)
    group.settle()
    assert (first.result, other.result) == ("done", 16)
    assert store(group, "a").did == ["add 1", "add 2", "add 3", "add 10"]


def test_an_abort_goes_down_to_all_that_was_invoked_in_turn_the_last_first() -> None:
    group = stores()

    def steps() -> Steps:
        yield Call("a", "add", (1,))
        yield Call("a", "add_at", ("b", 2))
        yield Call("c", "fail")

    with pytest.raises(CallFailed):
        _ = perform(group, steps()).result
    assert store(group, "a").did == ["add 1", "add 2", "undo 2", "undo 1"]
    assert store(group, "b").did == ["add 2", "undo 2"]
    assert not any(host.undecided for host in group.hosts.values())


def test_a_method_that_runs_when_its_caller_aborts_is_told_and_what_it_invoked_is_undone() -> None:
    group = stores(conflicts=[("add", "show")])
    group.hosts["ann"].invoke("b", "add", 100)  # so that `show` of b waits for its commit

    def steps() -> Steps:
        yield [Call("a", "add_at", ("b", 2), wait=False), Call("c", "fail")]

    asked = perform(group, steps(), settle=False)
    group.step()
    assert len(group.hosts["a"].running) == 1
    asked.abort()
    assert asked.done
    group.settle()
    assert store(group, "a").did == ["add 2", "taken back 2"]
    assert store(group, "b").number == 100
    assert not any(host.undecided or host.running for host in group.hosts.values())
    with pytest.raises(RuntimeError, match="cannot be aborted any more"):
        asked.abort()


def test_an_abort_frees_two_transactions_that_wait_for_each_other() -> None:
    group = stores(conflicts=[("add", "add")])

    def both(first: str, second: str) -> Steps:
        yield Call(first, "add", (1,))
        yield Call(second, "add", (1,))
        return "done"

    one, other = perform(group, both("a", "b"), settle=False), perform(group, both("b", "a"), settle=False)
    group.settle()
    assert (one.done, other.done) == (False, False)
    one.abort()
    group.settle()
    with pytest.raises(CallFailed, match="aborted by its caller"):
        _ = one.result
    assert other.result == "done"
    assert (store(group, "a").number, store(group, "b").number) == (1, 1)


def test_a_failure_that_the_caller_catches_is_as_if_it_had_not_invoked() -> None:
    group = stores()

    def steps() -> Steps:
        yield Call("a", "add", (1,))
        try:
            yield Call("b", "fail")
        except CallFailed:
            return (yield Call("c", "add", (2,)))

    assert perform(group, steps()).result == 2
    assert [store(group, name).number for name in "abc"] == [1, 0, 2]


def test_a_call_that_fails_at_one_replica_is_undone_at_the_others_even_if_the_caller_catches_it() -> None:
    group = stores()

    def steps() -> Steps:
        try:
            yield Call(("a", "c", "gone"), "add", (1,))
        except CallFailed:
            return "caught"

    group.add_host("gone", Failing())
    assert perform(group, steps()).result == "caught"
    assert (store(group, "a").did, store(group, "c").did) == (["add 1", "undo 1"], ["add 1", "undo 1"])


class Failing:
    def add(self, number: int) -> None:
        raise LookupError("the disk is full")


# ── 4.1: the object vector ────────────────────────────────────────────────────────────────────────────────────────


def test_if_an_instance_commits_its_object_knows_what_it_knew_and_if_it_aborts_the_vector_is_not_changed() -> None:
    for last, knows in (("add", True), ("fail", False)):
        group = stores()
        group.add_host("bob")

        def steps(last: str = last) -> Steps:
            yield Call("a", "add", (1,))
            yield Call("b", last, (1,) if last == "add" else ())

        perform(group, steps())
        group.hosts["bob"].invoke("a", "add_at", "c", 1)
        group.settle()
        said = [msgspec.json.decode(record) for record in group.log]
        (stamped,) = [one for one in said if one["sender"] == "a" and one["object"]["type"] == "request"]
        assert ("ann" in stamped["data"]["vector"]) == knows


def test_every_replica_that_is_handed_the_same_records_does_the_same() -> None:
    group = Group("ann", "bob", east=Store(), west=Store(), c=Store(), conflicts=[("add", "show"), ("add", "add")])

    def steps(number: int) -> Steps:
        yield Call(("east", "west"), "add", (number,))
        yield Call("c", "fail" if number % 3 == 0 else "show")
        return number

    asked = []
    for number in range(12):
        asked.append(group.hosts["ann" if number % 2 else "bob"].perform("pay", steps(number)))
        group.hosts["bob"].invoke(("east", "west"), "show")
        group.step()
    group.settle()
    assert all(one.done for one in asked)
    assert store(group, "east").did == store(group, "west").did
    assert store(group, "east").number == sum(number for number in range(12) if number % 3)
