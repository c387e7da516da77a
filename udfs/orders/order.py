"""What an order answers. Everything else is the engine's (group.py).

A new order is one file: the partial order it keeps, the dependencies a message declares, and the rules for publishers.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from precede.udfs.analysis.relation import ByNamedIds, Relation
from precede.udfs.codes import Refusal
from precede.udfs.engine.held import WALK_MAX, HeldMessage, Watch
from precede.udfs.engine.search import Search
from precede.udfs.orders.stamps import Stamps
from precede.udfs.records.messages import Id, Message, Options

if TYPE_CHECKING:
    from precede.udfs.engine.group import Group
    from precede.udfs.release.by_destination import Destinations


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

    takes_id: ClassVar[frozenset[str]] = frozenset()
    """The refusals that take the id for ever; every other one leaves no trace."""

    by_clocks: ClassVar[bool] = False
    """Whether messages are let go by clocks (by_clocks.py), so that any record may free any message."""

    destinations: "Destinations | None" = None
    """Where every destination has a sequence of its own: all of them."""

    def __init__(self, group: "Group") -> None:
        self.group = group

    def fault(self, message: Message) -> Refusal | None:
        """What is wrong with the stamp, judged by the message alone."""
        return None

    def poison(self, id_: Id, message: Message) -> Refusal | None:
        """Whether a clock of the stamp lies further ahead than the window allows."""
        return None

    def arrive(self, id_: Id, message: Message) -> Watch | Refusal | None:
        """Judge a message that arrives and is in no way unusual; an order overrides it for speed alone."""
        return self.fault(message) or self.poison(id_, message) or self.wait(id_, message)

    def wait(self, id_: Id, message: Message) -> Watch | Refusal | None:
        """One unmet id to wait for, a refusal, or None: ready. Asked again whenever the id it gave is settled."""
        return None

    def asks_no_more(self, watch: Watch) -> bool:
        """Whether a message that waits for this is ready as soon as it happens, and need not be judged again."""
        return self.waits_once and len(watch) == 3

    def on_hold(self, held: HeldMessage) -> None:
        """The engine holds this message for the id its `watch` names."""

    def relink(self, held: Iterable[HeldMessage]) -> None:
        """Build anew what `on_hold` built, from all that is held in order of arrival."""

    def dump(self) -> Any:
        """What the order keeps, as plain data; None where it keeps nothing."""
        return None

    def load(self, dumped: Any) -> None:
        """Take what `dump` gave."""

    def missing(self, held: HeldMessage, at_most: int) -> list[Id]:
        """Which ids that are not there a held message waits for."""
        raise NotImplementedError

    def missing_among(self, held: HeldMessage, unmet: Callable[[HeldMessage], Iterable[Id]], at_most: int) -> list[Id]:
        """The ids not there that `unmet` names, with their senders' earlier ones where each keeps its turn.

        A vector names all there is to wait for, so only where all that is here and held, what those wait for; a list of
        direct predecessors does not, so there the search goes on below what is held in any case.
        """
        search = Search(self.group, at_most)
        walk = [held]
        level_end = held
        walked = {held.id}
        for one in walk:  # grows while it is walked
            if one.watch is not None and len(one.watch) == 2:
                search.found.add(one.id)
                named: list[Id] = []
            else:
                named = [*([] if one.message is None else unmet(one)), *([one.id] if self.in_turn else [])]
            for id_ in named:
                for below in self._under(search, id_, one):
                    if below.id not in walked and len(walk) < WALK_MAX:
                        walked.add(below.id)
                        walk.append(below)
            if one is level_end:
                if search.found and self.in_turn:
                    break
                level_end = walk[-1]
        return sorted(search.found)[:at_most]

    def _under(self, search: Search, id_: Id, one: HeldMessage) -> Iterable[HeldMessage]:
        """The held messages that one waits for because of this id; what is not here is noted."""
        name, epoch, seq = id_
        if self.in_turn:
            return search.up_to(name, epoch, seq - 1 if id_ == one.id else seq)
        return search.at(id_)

    def silent(self, held: HeldMessage, at_most: int) -> list[str]:
        """Which members a held message waits to hear from."""
        return []

    @classmethod
    def follows(cls, message: Message) -> list[Id]:
        """What the stamp puts before this message; in orders that keep turns, what each of these follows too."""
        return []

    @classmethod
    def relation(cls, messages: Sequence[Message], options: Options) -> Relation:
        """Which of these messages of one group, given in the log's order, this order puts before which."""
        return ByNamedIds(messages, cls.follows, in_turn=cls.in_turn)

    @classmethod
    def stamps_of(cls, name: str, epoch: int = 0) -> Stamps:
        """What a member of this name keeps to stamp what it says."""
        return Stamps(name, epoch, cls.stamp)

    @classmethod
    def stamp(cls, *, after: list[Id]) -> dict[str, Any]:
        """The fields that a draft alone decides, in the orders whose members keep nothing."""
        return {}
