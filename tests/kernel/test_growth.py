"""What a message costs the kernel does not grow with how many are held, counted in lines of Python that run."""

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
"""Five times as many held; what is logarithmic, or belongs to the members, may show, a search through them all not."""


def test_every_order_that_holds_anything_is_watched_while_it_grows() -> None:
    assert {row for row, _, _ in growth.cases().values()} >= ORDERS.keys() - {"total"}


@pytest.mark.parametrize("name", growth.cases())
def test_a_message_costs_the_same_however_many_are_held(name: str) -> None:
    row, log_of, options = growth.cases()[name]
    few, many = (_lines_a_message(row, log_of(row, held), options) for held in (FEW, MANY))
    assert many < MORE_AT_MOST * few


def _lines_a_message(row: str, log: list[bytes], options: dict[str, int]) -> float:
    """How many lines of the kernel run, by the messages."""
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
