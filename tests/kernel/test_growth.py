"""The cost of a message does not grow with the number of held ones, counted in executed lines of Python."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import pytest

from bench import growth, stamped
from precede.udfs.holdback import Holdback
from precede.udfs.orders import ORDERS

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


def _lines_a_message(row: str, log: list[bytes], options: dict[str, int]) -> float:
    """How many lines of the kernel run per message."""
    kernel = Holdback(order=stamped.order_of(row))
    kernel.receive(stamped.created(row, growth.NAMES, **options), stamped.GROUP)
    count = 0

    def line(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        count += event == "line"
        return line

    before = sys.gettrace()
    sys.settrace(line)
    try:
        for offset, value in enumerate(log):
            kernel.receive(value, stamped.GROUP, 0, offset + 1, offset)
    finally:
        sys.settrace(before)
    assert kernel.dead == []
    return count / len(log)
