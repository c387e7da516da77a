"""What `Member` and `Peer` have in common, so that a program that is written for one runs on the other."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Self

from precede.reading.delivery import IDLE_S, DeliveredMessage, Delivery
from precede.udfs.orders import ORDERS, has_destinations
from precede.udfs.records.identifiers import as_name


class GroupMember(ABC):
    """One name in one group: it iterates over what is delivered."""

    group: str
    name: str
    _patience_s: float | None
    _records: bool
    _own: bool

    @property
    @abstractmethod
    def order(self) -> str:
        """The group's order."""

    @abstractmethod
    def poll(self, timeout_s: float) -> DeliveredMessage | None:
        """The next message, or None if none came in that time.

        With `records` it may also be an `Abandoned` or a `View`, which has no id: `isinstance` tells.
        """

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> DeliveredMessage:
        while True:
            delivery = self.poll(IDLE_S if self._patience_s is None else self._patience_s)
            if delivery is not None:
                return delivery
            if self._patience_s is not None:
                raise StopIteration

    def _is_wanted(self, delivery: Delivery) -> bool:
        if not self._own and delivery.sender == self.name and delivery.kind == "message":
            return False
        return self._records or delivery.__class__ is DeliveredMessage

    def _destinations(self, to: Iterable[str] | None) -> list[str] | None:
        order = self.order
        if to is None:
            if has_destinations(order):
                raise ValueError(f"in {order} a message needs `to`, the members it is for")
            return None
        if order in ORDERS and not ORDERS[order].takes_to:
            raise ValueError(f"in {order} every message is for the whole group: leave `to` out")
        if isinstance(to, str):
            raise ValueError(f"`to` is a list of members: write [{to!r}]")
        return [as_name("a member in `to`", name) for name in to]
