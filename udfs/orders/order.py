"""What an order answers. Everything else is the engine's (group.py).

A new order is one file: the partial order it keeps, the dependencies a message declares, and the rules for publishers.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar

from udfs.codes import Refusal
from udfs.held import HeldMessage
from udfs.messages import Id, Message

if TYPE_CHECKING:
    from udfs.group import Group


class Order:
    """The rule of one order for one group; its state is what it keeps on itself, beside the group's senders."""

    __slots__ = ("group",)

    name: ClassVar[str]
    after_seed: ClassVar[str]
    """The document and section the order comes from."""
    depth_first: ClassVar[bool] = False
    """How messages ready together rank: depth first, pre-order, or else lowest offset first."""
    in_turn: ClassVar[bool] = False
    """Whether each sender's messages keep their order, so that an abandoned one waits its turn too."""

    waits_once: ClassVar[bool] = False
    """Whether the first id a message waits for is the only one, so that it is ready as soon as that is settled."""

    def __init__(self, group: "Group") -> None:
        self.group = group

    def fault(self, message: Message) -> Refusal | None:
        """What is wrong with the stamp, judged by the message alone."""
        return None

    def wait(self, id_: Id, message: Message) -> Id | Refusal | None:
        """One unmet id to wait for, a refusal (a fault of the stamp too), or None: ready."""
        return None

    def on_hold(self, held: HeldMessage) -> None:
        """The engine holds this message for the id its `watch` names."""

    def relink(self, held: Iterable[HeldMessage]) -> None:
        """Build anew what `on_hold` built, from all that is held in order of arrival."""

    def missing(self, held: HeldMessage, at_most: int) -> list[Id]:
        """Which ids that are not there a held message waits for."""
        raise NotImplementedError

    @classmethod
    def stamp(cls, *, after: list[Id]) -> dict[str, Any]:
        """The publisher's half: the fields a member adds to a draft."""
        return {}
