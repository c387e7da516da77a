"""Timura, Tanaka and Takizawa, 2.2, 4.1 and 4.3: how methods of objects commit and abort; a test per claim."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from random import Random
from typing import Any

import msgspec
import pytest

from precede import AnyOf, Call, CallFailed
from tests.door.hosts import Group
from tests.door.stores import Steps, Store, perform, store, stores

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


# ── all of it at random ───────────────────────────────────────────────────────────────────────────────────────────


def drawn(random: Random, number: int) -> Steps:
    """A transaction of several invocations, of which some fail; everything that it adds is its own number."""
    names = ["a", "b", "c"]

    def call() -> Call:
        op = random.choice(["add", "add", "add_at", "fail"] if random.random() < 0.4 else ["add", "add_at"])
        here, there = random.sample(names, 2)
        arguments: tuple[Any, ...] = {"add": (number,), "add_at": (there, number), "fail": ()}[op]
        to = (here, there) if op == "add" and random.random() < 0.3 else here
        return Call(to, op, arguments, wait=random.random() < 0.6)

    for _ in range(random.randint(1, 4)):
        way = random.choice(["one", "all", "any", "caught"])
        if way == "caught":
            with suppress(CallFailed):
                yield call()._replace(wait=True)
        else:
            yield call() if way == "one" else [call(), call()] if way == "all" else AnyOf(call(), call())


def test_whatever_fails_waits_or_is_given_up_a_transaction_leaves_all_or_nothing_and_no_instance_behind() -> None:
    ended = Counter[str]()
    for seed in range(80):
        random = Random(seed)
        table = [("add", "add"), ("add", "add_at"), ("add_at", "add_at")]
        group = stores(conflicts=random.sample(table, random.randint(0, 3)))
        asked = []
        for number in range(1, random.randint(2, 7)):
            asked.append(group.hosts["ann"].perform("transaction", drawn(random, number)))
            while group.taken < len(group.log) and random.random() < 0.7:
                group.step(count=1)
        group.settle()
        while waiting := [one for one in asked if not one.done]:  # for each other
            ended["given up"] += 1
            waiting[0].abort()
            group.settle()
        for number, one in enumerate(asked, 1):
            did = [line for name in "abc" for line in store(group, name).did]
            left = did.count(f"add {number}") - did.count(f"undo {number}") - did.count(f"taken back {number}")
            try:
                _ = one.result
                ended["committed"] += 1
                assert left >= 0, seed
            except CallFailed:
                ended["aborted"] += 1
                assert left == 0, seed
        assert not any(host.running or host.waiting or host.undecided for host in group.hosts.values()), seed
    assert min(ended.values()) > 15, ended
