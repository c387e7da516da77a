"""The registry of orders: each has one file, one class, and one line here; `register` adds orders from elsewhere."""

import re

from precede.udfs.orders.causal import Causal
from precede.udfs.orders.causal_p2p import CausalPointToPoint
from precede.udfs.orders.fifo import Fifo
from precede.udfs.orders.lamport import Lamport
from precede.udfs.orders.object import ObjectBased
from precede.udfs.orders.order import Order
from precede.udfs.orders.s_b import SemanticallyBefore
from precede.udfs.orders.total import Total
from precede.udfs.orders.two_clock import TwoClock

NAME = re.compile("[a-z][a-z0-9_]{0,63}")

ORDERS: dict[str, type[Order]] = {
    order.name: order
    for order in (SemanticallyBefore, Fifo, Causal, CausalPointToPoint, Total, Lamport, TwoClock, ObjectBased)
}


def register(order_class: type[Order]) -> type[Order]:
    """Add an order of one's own to `Holdback` and `precede replay`, under its `name`; usable as a class decorator.

    Raises TypeError for what is no order, and ValueError for a name that is not usable or belongs to another order.
    """
    if not (isinstance(order_class, type) and issubclass(order_class, Order)):  # type: ignore[redundant-expr]
        raise TypeError(f"register takes a subclass of precede.Order, not {order_class!r}")
    name = getattr(order_class, "name", None)
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise ValueError(
            f"{order_class.__name__}.name is {name!r}: give the order a name of small letters, digits and _"
        )
    if ORDERS.setdefault(name, order_class) is not order_class:
        raise ValueError(f"there is an order {name!r} already: give {order_class.__name__} another name")
    return order_class


def has_destinations(order: str | None) -> bool:
    """Whether every destination of this order has a sequence of its own; not where the order is unknown here."""
    return order in ORDERS and ORDERS[order].has_destinations


__all__ = ["ORDERS", "Order", "has_destinations", "register"]
