"""`precede.ObjectHost` without Kafka: methods invoked by messages, the kernel between the hosts."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

from precede import Call, CallFailed, ObjectHost
from tests.door.hosts import Group, Speaker


class Counter:
    def __init__(self) -> None:
        self.count = 0

    def add(self, number: int = 1) -> int:
        self.count += number
        return self.count

    def show(self) -> int:
        return self.count

    def fail(self) -> None:
        raise ArithmeticError("it cannot be counted")

    def odd(self) -> set[int]:
        return {1}

    def _secret(self) -> int:
        return 42

    def add_by_way_of(self, other: str, number: int) -> Generator[Any, Any, int]:
        found = yield Call(other, "add", (number,))
        self.count += found
        return self.count

    def total_of(self, *others: str) -> Generator[Any, Any, int]:
        found = yield [Call(other, "show") for other in others]
        return self.count + int(sum(found))

    def tell(self, other: str) -> Generator[Any, Any, str]:
        yield Call(other, "add", (5,), answer=False)
        return "told"

    def careful(self, other: str) -> Generator[Any, Any, str]:
        try:
            yield Call(other, "fail")
        except CallFailed as error:
            return f"no: {error}"
        return "yes"

    def wrong(self) -> Generator[Any, Any, None]:
        yield "something"


def test_a_method_is_invoked_and_its_result_comes_back() -> None:
    group = Group("ann", counter=Counter())
    asked = group.hosts["ann"].invoke("counter", "add", 3)
    with pytest.raises(RuntimeError, match="not answered yet"):
        _ = asked.result
    group.settle()
    assert (asked.done, asked.result) == (True, 3)


def test_replicas_are_invoked_together_and_answer_each_for_itself() -> None:
    group = Group("ann", east=Counter(), west=Counter())
    asked = group.hosts["ann"].invoke(("east", "west"), "add")
    group.settle()
    assert asked.result == {"east": 1, "west": 1}


@pytest.mark.parametrize(
    ("op", "sentence"),
    [
        ("fail", "ArithmeticError: it cannot be counted"),
        ("nothing", "counter has no method 'nothing'"),
        ("_secret", "counter has no method '_secret'"),
        ("odd", "counter cannot say its result"),
        ("wrong", "a method yields a Call"),
    ],
)
def test_what_goes_wrong_in_a_method_is_its_answer_and_stops_nobody_else(op: str, sentence: str) -> None:
    group = Group("ann", counter=Counter(), conflicts=[(op, "add")])
    failed, good = group.hosts["ann"].invoke("counter", op), group.hosts["ann"].invoke("counter", "add")
    group.settle()
    with pytest.raises(CallFailed, match=sentence):
        _ = failed.result
    assert good.result == 1


def test_a_method_that_invokes_others_is_given_their_results_or_their_errors() -> None:
    group = Group("ann", one=Counter(), two=Counter(), three=Counter())
    ann = group.hosts["ann"]
    by_way = ann.invoke("one", "add_by_way_of", "two", 4)
    group.settle()
    total = ann.invoke("three", "total_of", "one", "two")
    told = ann.invoke("three", "tell", "one")
    careful = ann.invoke("three", "careful", "two")
    group.settle()
    assert (by_way.result, total.result, told.result) == (4, 8, "told")
    assert careful.result == "no: ArithmeticError: it cannot be counted"
    assert group.hosts["one"].running == []


def test_while_an_instance_waits_for_an_answer_conflicting_ones_wait_and_compatible_ones_run() -> None:
    group = Group("ann", one=Counter(), two=Counter(), conflicts=[("add_by_way_of", "show")])
    ann, one = group.hosts["ann"], group.hosts["one"]
    slow = ann.invoke("one", "add_by_way_of", "two", 1)
    group.step()
    look, other = ann.invoke("one", "show"), ann.invoke("one", "add", 10)
    group.step()  # `two` has executed the call of `slow`, and its answer is on its way
    assert (len(one.running), len(one.waiting)) == (1, 1)
    group.settle()
    assert (other.result, slow.result, look.result) == (10, 11, 11)


def test_a_transaction_of_several_invocations_is_written_like_a_method() -> None:
    group = Group("ann", one=Counter(), two=Counter())

    def move() -> Generator[Any, Any, list[int]]:
        yield Call("one", "add", (-2,))
        return (yield [Call("two", "add", (2,)), Call("one", "show")])  # type: ignore[no-any-return]

    asked = group.hosts["ann"].perform("move", move())
    group.settle()
    assert asked.result == [2, -2]


def test_records_of_another_kind_and_of_foreign_shape_are_passed_over() -> None:
    host = ObjectHost(Speaker("counter", Group(), []), Counter())
    for record in (
        b"not JSON",
        b'{"group":"g","kind":"join","sender":"ann","position":1,"status":"delivered"}',
        b'{"group":"g","sender":"ann","seq":1,"after":[],"data":"hello","object":{},"position":2,"status":"delivered"}',
        b'{"group":"g","sender":"ann","seq":2,"after":[],"data":{"no":0,"vector":{}},"object":{"op":"add"},"status":"x"}',
    ):
        host.deliver(record)
    assert (host.running, host.waiting) == ([], [])


class Safe(dict[str, int]):
    """A target with more that can be called than its own methods."""

    def __init__(self) -> None:
        super().__init__(gold=3)
        self.alarm = lambda: "rings"

    def look(self) -> int:
        return self["gold"]

    def take(self) -> int:
        return self.pop("gold")


def test_only_methods_that_the_class_of_a_target_defines_are_invoked() -> None:
    group = Group("ann", safe=Safe())
    asked = {op: group.hosts["ann"].invoke("safe", op) for op in ("look", "clear", "alarm", "__len__")}
    group.settle()
    assert asked.pop("look").result == 3
    for op, one in asked.items():
        with pytest.raises(CallFailed, match=f"safe has no method {op!r}"):
            _ = one.result


def test_where_methods_are_named_only_these_are_invoked() -> None:
    group = Group("ann", "safe")
    group.hosts["safe"] = ObjectHost(Speaker("safe", group, []), Safe(), methods=["look"])
    look, take = (group.hosts["ann"].invoke("safe", op) for op in ("look", "take"))
    group.settle()
    assert look.result == 3
    with pytest.raises(CallFailed, match="safe has no method 'take'"):
        _ = take.result
    with pytest.raises(ValueError, match="Safe has no such method"):
        ObjectHost(Speaker("safe", group, []), Safe(), methods=["open"])


def test_a_host_takes_its_name_and_the_conflicts_of_its_group_from_the_member() -> None:
    group = Group("ann")
    host = ObjectHost(Speaker("counter", group, [("add", "show")]), Counter())
    assert host.name == "counter"
    group.hosts["counter"] = host
    asked = [group.hosts["ann"].invoke("counter", op) for op in ("add", "show")]
    group.settle()
    assert [one.result for one in asked] == [1, 1]


class Account:
    def __init__(self) -> None:
        self.balance = 0
        self.closed_with: int | None = None

    def deposit(self, amount: int) -> int:
        assert self.closed_with is None, "it is closed"
        self.balance += amount
        return self.balance

    def close(self) -> int:
        self.closed_with = self.balance
        return self.balance


def test_close_after_25_deposits_closes_with_25_in_a_log_that_reorders() -> None:
    group = Group("ann", account=Account(), conflicts=[("deposit", "close"), ("close", "close")])
    ann = group.hosts["ann"]
    deposits = [ann.invoke("account", "deposit", 1) for _ in range(25)]
    closed = ann.invoke("account", "close")
    group.log.reverse()
    group.settle()
    assert sorted(one.result for one in deposits) == list(range(1, 26))
    assert closed.result == 25
