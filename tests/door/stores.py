"""An object that can be undone, and transactions over three of them."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from precede import CALLER, Call, CallFailed, ReceiveData, SendData
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
