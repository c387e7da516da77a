"""The registry of orders: one file, one class, one line here."""

from precede.udfs.orders.causal import Causal
from precede.udfs.orders.causal_p2p import CausalPointToPoint
from precede.udfs.orders.fifo import Fifo
from precede.udfs.orders.lamport import Lamport
from precede.udfs.orders.object import ObjectBased
from precede.udfs.orders.order import Order
from precede.udfs.orders.s_b import SemanticallyBefore
from precede.udfs.orders.total import Total
from precede.udfs.orders.two_clock import TwoClock

ORDERS: dict[str, type[Order]] = {
    order.name: order
    for order in (SemanticallyBefore, Fifo, Causal, CausalPointToPoint, Total, Lamport, TwoClock, ObjectBased)
}

__all__ = ["ORDERS", "Order"]
