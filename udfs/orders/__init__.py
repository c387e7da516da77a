"""The registry of orders: one file, one class, one line here."""

from udfs.orders.fifo import Fifo
from udfs.orders.order import Order
from udfs.orders.s_b import SemanticallyBefore
from udfs.orders.total import Total

ORDERS: dict[str, type[Order]] = {order.name: order for order in (SemanticallyBefore, Fifo, Total)}

__all__ = ["ORDERS", "Order"]
