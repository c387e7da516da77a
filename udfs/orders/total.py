"""`total`: one sequence for all, the log's (lecture notes on message ordering, section 3.1: the sequencer).

Alone because each order is a file, as its page and test are.

Guarantee: messages are numbered as they arrive and nothing waits. It is total but not causal: if a reply reaches the
log before what it answers, it is delivered before it. Loss delays nothing.
Stamp: nothing beside the id; seqs may come in any order.

    arrives a:2   -> a:2
    arrives b:1   -> b:1
    arrives a:1   -> a:1
"""

from collections.abc import Sequence

from precede.udfs.codes import Refusal
from precede.udfs.engine.held import HeldMessage, Watch
from precede.udfs.engine.search import Look
from precede.udfs.orders.order import Order
from precede.udfs.orders.relation import InSequence, Relation
from precede.udfs.records.messages import Id, Message, Options


class Total(Order):
    """Never waits."""

    __slots__ = ()

    name = "total"
    paper = "lecture notes on message ordering, 3.1"
    needs_log = True

    def arrive(self, id_: Id, message: Message) -> Watch | Refusal | None:
        """At once: there is no stamp to look at."""
        return None

    def missing(self, held: HeldMessage, look: Look) -> list[Id]:
        return []

    @classmethod
    def relation(cls, messages: Sequence[Message], options: Options) -> Relation:
        return InSequence(messages)
