"""What an order answers. Everything else is the engine's (engine/group.py) and its release's (release/).

A new order is one file: the partial order it keeps, the dependencies a message declares, and the rules for publishers.

`Stamps` is the publisher's half: what one member keeps so that it can stamp what it says. It does no I/O: the caller
hands over each delivered record once, in order, and sends the fields that it gets. Everything that is kept is plain
data, so that it can be saved: a member that has lost it takes a new epoch.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

from precede.udfs.codes import Refusal
from precede.udfs.engine.group import Group
from precede.udfs.engine.held import HeldMessage, Watch
from precede.udfs.engine.interfaces import Release
from precede.udfs.engine.search import WALK_MAX, Look, Search
from precede.udfs.engine.state import waits_for_join
from precede.udfs.orders.relation import ByNamedIds, Relation
from precede.udfs.records.messages import Id, Message, Options, Who
from precede.udfs.release.at_once import AtOnce


class Stamps:
    """A member's own count, and how much of each sender was delivered to it."""

    def __init__(self, name: str, epoch: int = 0, of_draft: Callable[..., dict[str, Any]] | None = None) -> None:
        self.of_draft = of_draft
        self.name = name
        self.epoch = epoch
        self.observes = of_draft is None
        """Whether what is delivered here moves these stamps; where a draft decides all, nothing does."""
        self.time = 0
        """The linear time of the next message; 0 where the order has no clock."""
        self.seq = 0
        """The last seq this member used."""
        self.delivered: dict[Who, int] = {}
        """Of each (sender, epoch) the highest seq that was delivered here."""

    def stamp(self, *, after: list[Id] | None = None, to: list[str] | None = None, clock_ms: int = 0) -> dict[str, Any]:
        """Take the next seq for a draft and return the fields of its record, without `group` and `data`."""
        fields = self.next_fields(after=after or [], to=to or [], clock_ms=clock_ms)
        return {"sender": self.name, "epoch": self.epoch, "seq": self.seq, **fields}

    def next_fields(self, *, after: list[Id], to: list[str], clock_ms: int) -> dict[str, Any]:
        """Take the next seq for a draft and return the fields that its record has beside its id.

        A draft that the order refuses takes no seq: nothing would ever come under it.
        """
        self.seq += 1
        try:
            return self.fields(after=after, to=to, clock_ms=clock_ms)
        except BaseException:
            self.seq -= 1
            raise

    def fields(self, *, after: list[Id], to: list[str], clock_ms: int) -> dict[str, Any]:
        """The stamp of the message that has the seq just taken."""
        return {} if self.of_draft is None else self.of_draft(after=after)

    def heartbeat(self, *, clock_ms: int = 0) -> dict[str, Any]:
        """A sign of life: the fields of its record, without `group`."""
        return {"kind": "heartbeat", "sender": self.name, "epoch": self.epoch, "seq": self.seq + 1}

    def observe(self, record: Mapping[str, Any]) -> None:
        """A record was delivered here (contract, section 4); this counts for the member's own records too."""
        if record.get("kind", "message") == "message":
            who = (record["sender"], record.get("epoch", 0))
            self.delivered[who] = max(self.delivered.get(who, 0), record["seq"])

    def catch_up(self, time: int) -> None:
        """A record with this linear time was seen."""

    def keep_to(self, time: int) -> None:
        """Go back to this time if the clock is above it: what moved it there may not have counted."""

    def dump(self) -> dict[str, Any]:
        """Everything that is kept, as plain data."""
        delivered = [[name, epoch, seq] for (name, epoch), seq in self.delivered.items()]
        return {"seq": self.seq, "delivered": delivered}

    def load(self, dumped: Mapping[str, Any]) -> None:
        """Take what `dump` returned."""
        self.seq = dumped["seq"]
        self.delivered = {(name, epoch): seq for name, epoch, seq in dumped["delivered"]}


class Order:
    """The stamps and the rules of one order, for one group."""

    __slots__ = ("group", "release")

    name: ClassVar[str]
    paper: ClassVar[str]
    """The document that the order comes from, by authors and section."""

    release_type: ClassVar[type[Release]] = AtOnce
    """How what waits goes out: at once when its id is settled, by clocks, or by destination."""

    depth_first: ClassVar[bool] = False
    """How messages that are ready together rank: depth first, pre-order, or else lowest offset first."""

    in_turn: ClassVar[bool] = False
    """Whether each sender's messages keep their order, so that an abandoned one waits for its turn too."""

    waits_once: ClassVar[bool] = False
    """Whether the first id a message waits for is the only one, so that it is ready as soon as that is settled."""

    takes_apart: ClassVar[bool] = False
    """Whether judging a message changes what was read of it, so that it is read again for who wants it as it came."""

    takes_id: ClassVar[frozenset[str]] = frozenset()
    """The refusals that take the id for ever; every other one leaves no trace."""

    waits_for_members: ClassVar[bool] = False
    """Whether messages wait for every member's word. Then a created group has to know its members, so it is closed, and
    members join before they speak and send heartbeats."""

    has_destinations: ClassVar[bool] = False
    """Whether every destination has a sequence of its own: then a message needs `to`."""

    takes_to: ClassVar[bool] = False
    """Whether a message may say for whom it is; elsewhere every message is for the whole group."""

    needs_log: ClassVar[bool] = False
    """Whether the log itself decides the sequence, so that peers without one cannot have it."""

    uses_conflicts: ClassVar[bool] = False
    """Whether the conflicts that a `create` declares decide anything; they need the log."""

    release: Release

    def __init__(self, group: Group) -> None:
        self.group = group
        self.release = self.release_type(group)

    def fault(self, message: Message) -> Refusal | None:
        """What is wrong with the stamp, judged by the message alone."""
        return None

    def poison(self, id_: Id, message: Message) -> Refusal | None:
        """Whether a clock of the stamp is further ahead than the window allows."""
        return None

    def arrive(self, id_: Id, message: Message) -> Watch | Refusal | None:
        """Judge a message that arrives and is in no way unusual; an order overrides this only to be faster."""
        return self.fault(message) or self.poison(id_, message) or self.wait(id_, message)

    def wait(self, id_: Id, message: Message) -> Watch | Refusal | None:
        """One unmet id to wait for, a refusal, or None: ready. Asked again whenever the id it named is settled."""
        return None

    def relink(self, held: Iterable[HeldMessage]) -> None:
        """Build again what the order keeps on held messages, from all of these in order of arrival."""

    def missing(self, held: HeldMessage, look: Look) -> list[Id]:
        """The ids that are not there and that a held message waits for, at most `look.at_most`."""
        raise NotImplementedError

    def missing_among(self, held: HeldMessage, unmet: Callable[[HeldMessage], Iterable[Id]], look: Look) -> list[Id]:
        """The absent ids that `unmet` names, with their senders' earlier ones where each keeps its turn.

        A vector names everything there is to wait for; only where all of that is here and held, the search goes on to
        what those messages wait for. A list of direct predecessors does not, so there the search always goes on below
        what is held.
        """
        search = look.search()
        walk = [held]
        level_end = held
        walked = {held.id}
        for one in walk:  # grows while it is walked
            if waits_for_join(one.watch):
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
        return sorted(search.found)[: look.at_most]

    def _under(self, search: Search, id_: Id, one: HeldMessage) -> Iterable[HeldMessage]:
        """The held messages that one waits for because of this id; absent ids are found missing."""
        name, epoch, seq = id_
        if self.in_turn:
            return search.up_to(name, epoch, seq - 1 if id_ == one.id else seq)
        return search.at(id_)

    @classmethod
    def follows(cls, message: Message) -> list[Id]:
        """What the stamp puts before this message; in orders that keep turns, also what each of these follows."""
        return []

    @classmethod
    def relation(cls, messages: Sequence[Message], options: Options) -> Relation:
        """Which of these messages this order puts before which; they are of one group, in the log's order."""
        return ByNamedIds(messages, cls.follows, in_turn=cls.in_turn)

    @classmethod
    def stamps_of(cls, name: str, epoch: int = 0) -> Stamps:
        """What a member of this name keeps to stamp its messages."""
        return Stamps(name, epoch, cls.stamp)

    @classmethod
    def stamp(cls, *, after: list[Id]) -> dict[str, Any]:
        """The fields that a draft alone decides, in the orders whose members keep nothing."""
        return {}
