"""The cost of a message does not grow with the number of held ones, counted in executed lines of Python."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from bench import growth, stamped
from precede.udfs.holdback import Holdback
from precede.udfs.member.objects import Conflicts, InstanceQueue, ObjectClient
from precede.udfs.orders import ORDERS
from precede.udfs.records.messages import Id

FEW, MANY = 200, 1_000
MORE_AT_MOST = 1.3
"""With five times as many held, logarithmic cost or cost per member may show, but no search through all."""


def test_every_order_that_holds_anything_is_watched_while_it_grows() -> None:
    assert {row for row, _, _ in growth.cases().values()} >= ORDERS.keys() - {"total"}


@pytest.mark.parametrize("name", growth.cases())
def test_a_message_costs_the_same_however_many_are_held(name: str) -> None:
    row, log_of, options = growth.cases()[name]
    few, many = (_lines_a_message(row, log_of(row, held), options) for held in (FEW, MANY))
    assert many < MORE_AT_MOST * few


QUEUES = {
    "one after the other": [("close", "close")],
    "after many that run": [("open", "close"), ("close", "close")],
    "undecided": [("open", "close")],
}


@pytest.mark.parametrize("name", QUEUES)
def test_a_request_costs_the_same_however_many_instances_run_or_wait(name: str) -> None:
    few, many = (_lines_a_request(name, size) for size in (FEW, MANY))
    assert many < MORE_AT_MOST * few


def test_a_message_of_an_object_costs_the_same_however_many_compatible_ones_are_on_their_way() -> None:
    few, many = (_lines_a_send(size) for size in (FEW, MANY))
    assert many < MORE_AT_MOST * few


def _lines_a_send(size: int) -> float:
    """How many lines run for a message of an instance that commits then, where so many before it are in flight."""
    client = ObjectClient("teller", Conflicts([("deposit", "close")]))

    def play(first: int, last: int) -> None:
        for number in range(first, last):
            instance = client.start("deposit")
            for draft in instance.drafts("deposit", "request", ["account"]):
                instance.sent(draft, ("teller", 0, number))
            instance.commit()

    play(1, size)
    return _lines_of(lambda: play(size, size + 100)) / 100


def _lines_a_request(name: str, size: int) -> float:
    """How many lines of the queue of an object run for each request, from its arrival to its end."""
    queue = InstanceQueue(Conflicts(QUEUES[name]))
    ids = [("x", 0, number) for number in range(2 * size)]
    ready: list[Id] = []

    def play() -> None:
        for id_ in ids:
            op = "close" if name == "one after the other" or id_[2] >= size else "open"
            if queue.arrive(id_, op, id_):
                ready.append(id_)
        for id_ in ready:  # grows while it is walked
            if name == "undecided":
                ready.extend(queue.keep_undecided(id_))
            ready.extend(queue.finish(id_))

    lines = _lines_of(play)
    assert ready == ids
    return lines / len(ids)


def _lines_a_message(row: str, log: list[bytes], options: dict[str, int]) -> float:
    """How many lines of the kernel run per message."""
    kernel = Holdback(order=stamped.order_of(row))
    kernel.receive(stamped.created(row, growth.NAMES, **options), stamped.GROUP)

    def play() -> None:
        for offset, value in enumerate(log):
            kernel.receive(value, stamped.GROUP, 0, offset + 1, offset)

    lines = _lines_of(play)
    assert kernel.dead == []
    return lines / len(log)


def _lines_of(play: Callable[[], None]) -> int:
    """How many lines run."""
    count = 0

    def line(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        count += event == "line"
        return line

    before = sys.gettrace()
    sys.settrace(line)
    try:
        play()
    finally:
        sys.settrace(before)
    return count
