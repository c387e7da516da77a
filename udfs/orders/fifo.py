"""`fifo`: each sender's messages in its order (lecture notes on message ordering, section 1: FIFO channels).

Alone because each order is a file, as its page and test are.

Guarantee: the messages of one sender and epoch come in the order 1, 2, 3, ...; between senders there is no order. With
loss, a sender's later messages wait until the missing one comes or is abandoned; other senders are untouched.
Stamp: nothing beside the id, whose seq is dense.

    arrives a:2   -> held, waits for a:1
    arrives b:1   -> b:1
    arrives a:1   -> a:1, a:2
"""

from precede.udfs.codes import Refusal
from precede.udfs.engine.held import HeldMessage
from precede.udfs.engine.search import Look
from precede.udfs.orders.order import Order
from precede.udfs.records.messages import Id, Message


class Fifo(Order):
    """Waits for the sender's previous message."""

    __slots__ = ()

    name = "fifo"
    paper = "lecture notes on message ordering, 1: FIFO channels"
    in_turn = True
    waits_once = True

    def wait(self, id_: Id, message: Message) -> Id | Refusal | None:
        return self.group.turn(id_)

    def arrive(self, id_: Id, message: Message) -> Id | Refusal | None:
        return self.group.turn(id_)

    def missing(self, held: HeldMessage, look: Look) -> list[Id]:
        return look.missing_before(held.id)
