"""`Order.arrive` gives the same answer as `fault`, `poison` and `wait`, in every order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from random import Random

import pytest

from precede.udfs.codes import Refusal
from precede.udfs.engine.held import Watch
from precede.udfs.engine.senders import sender_key
from precede.udfs.orders import ORDERS
from precede.udfs.orders.order import Order
from precede.udfs.records.messages import Id, Message
from tests.kernel import traffic
from tests.kernel.effort import seeds
from tests.kernel.feeding import feed
from tests.simulation import converse

Verdict = Refusal | Watch | None

every_order = pytest.mark.parametrize("order", ORDERS)


def slowly(order: Order, id_: Id, message: Message) -> Verdict:
    """The answer as CONTRIBUTING's recipe defines it."""
    return order.fault(message) or order.poison(id_, message) or order.wait(id_, message)


def is_unmet(order: Order, watch: Watch) -> bool:
    """Whether an awaited id is not settled yet."""
    name, epoch, seq = watch  # type: ignore[misc]
    sender = order.group.senders.get(sender_key(name, epoch))
    return sender is None or seq not in sender


def is_the_same(order: Order, fast: Verdict, slow: Verdict) -> bool:
    """Whether the answers agree; for several awaited ids each way may name a different one first."""
    if isinstance(fast, Refusal) and isinstance(slow, Refusal):
        return (fast.code, fast.reason) == (slow.code, slow.reason)
    if fast == slow:
        return True
    if order.waits_once or not (isinstance(fast, tuple) and isinstance(slow, tuple)):
        return False
    return len(fast) == len(slow) == 3 and is_unmet(order, fast) and is_unmet(order, slow)


@contextmanager
def compared(order: str) -> Iterator[Counter[str]]:
    """Compares both ways at each call, and counts the kinds of answers."""
    kinds: Counter[str] = Counter()
    with pytest.MonkeyPatch.context() as patch:
        class_ = ORDERS[order]
        arrive = class_.arrive

        def both(self: Order, id_: Id, message: Message) -> Verdict:
            slow = slowly(self, id_, deepcopy(message))  # either way may reduce the stamp to its unmet part
            fast = arrive(self, id_, message)
            assert is_the_same(self, fast, slow), f"{id_}: arrive answers {fast}, the slow way {slow}"
            kinds["ready" if fast is None else "refused" if isinstance(fast, Refusal) else "waits"] += 1
            return fast

        patch.setattr(class_, "arrive", both)
        yield kinds


@every_order
def test_arrive_answers_as_fault_poison_and_wait_do_on_hostile_logs(order: str) -> None:
    with compared(order) as kinds:
        for seed in seeds(100):
            log = traffic.log(Random(f"{order} {seed}"), order, length=60)
            feed(log.records, order=order, limits=log.limits)
    assert sum(kinds.values()) > 500


@every_order
def test_arrive_answers_as_fault_poison_and_wait_do_in_honest_conversations(order: str) -> None:
    with compared(order) as kinds:
        for seed in seeds(60):
            history = converse(Random(f"{order} {seed}"), order, messages=25, loss=0.1, delay=60)
            feed(history.log, order=order)
    assert sum(kinds.values()) > 500
    assert kinds["refused"] == 0


@every_order
def test_arrive_leaves_the_group_as_fault_poison_and_wait_would(order: str, monkeypatch: pytest.MonkeyPatch) -> None:
    logs = [traffic.log(Random(f"{order} {seed}"), order, length=60) for seed in seeds(60)]
    fast = [feed(log.records, order=order, limits=log.limits) for log in logs]
    monkeypatch.setattr(ORDERS[order], "arrive", slowly)
    for log, before in zip(logs, fast, strict=True):
        slow = feed(log.records, order=order, limits=log.limits)
        assert (slow.ordered, slow.dead, slow.own) == (before.ordered, before.dead, before.own)
        assert (slow.held, slow.duplicates) == (before.held, before.duplicates)


def test_an_order_that_says_only_what_it_waits_for_is_asked_when_a_message_arrives() -> None:
    class Waits(Order):
        __slots__ = ()

        def wait(self, id_: Id, message: Message) -> Id:
            return "somebody", 0, 1

    message = Message(group="g", sender="a", seq=1)
    assert Waits(None).arrive(("a", 0, 1), message) == ("somebody", 0, 1)  # type: ignore[arg-type]
