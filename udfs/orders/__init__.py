"""The registry of orders: one file, one class, one line here."""

from udfs.orders.causal import Causal
from udfs.orders.causal_p2p import CausalPointToPoint
from udfs.orders.fifo import Fifo
from udfs.orders.lamport import Lamport
from udfs.orders.object import ObjectBased
from udfs.orders.order import Order
from udfs.orders.s_b import SemanticallyBefore
from udfs.orders.total import Total
from udfs.orders.two_clock import TwoClock

ORDERS: dict[str, type[Order]] = {
    order.name: order
    for order in (SemanticallyBefore, Fifo, Causal, CausalPointToPoint, Total, Lamport, TwoClock, ObjectBased)
}

__all__ = ["ORDERS", "Order"]
