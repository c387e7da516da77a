"""What the engine asks of the two rooms above it: the rules of an order (orders/) and the release (release/).

An order judges one message: what is wrong with its stamp, and what it waits for. A release keeps what waits and decides
when it goes. The engine calls both and never asks which they are.
"""

from collections.abc import Iterable, Iterator
from typing import Any, ClassVar, Protocol

from precede.udfs.codes import Refusal
from precede.udfs.engine.held import HeldMessage, Watch
from precede.udfs.engine.search import Look
from precede.udfs.engine.senders import SenderRuns
from precede.udfs.records.messages import Heartbeat, Id, Join, Message, Who


class Release:
    """How what is held goes out: at once, by clocks, or by destination (release/)."""

    __slots__ = ()

    needs_stand_ins: ClassVar[bool] = False
    """Whether a message that is settled elsewhere needs a stand-in here, so that what waits for it goes on."""

    def __init__(self, group: Any) -> None:
        """`group` is the engine's Group, which is built on top of this file."""

    # ── messages ──────────────────────────────────────────────────────────────────────────────────────────────────

    def take(self, sender: SenderRuns, one: HeldMessage, watch: Watch, offset: int, now_ms: int) -> Refusal | None:
        """Hold a message that passed all checks, and deliver what that lets go; or say why there is no room for it."""
        raise NotImplementedError

    def happened(self, watch: Watch, offset: int, now_ms: int) -> None:
        """Something that held messages may watch has happened: deliver all that it lets go."""
        raise NotImplementedError

    def advance(self, offset: int, now_ms: int) -> None:
        """Another record than a message took effect: deliver what that lets go."""

    # ── time ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def deadline_ms(self) -> int | None:
        """The time of the log from which a tick may let something go; None where no tick can."""
        return None

    def pass_time(self, offset: int, now_ms: int) -> None:
        """A tick was read at this time of the log: deliver what that lets go."""

    # ── membership and heartbeats ─────────────────────────────────────────────────────────────────────────────────

    def create(self, members: list[str]) -> None:
        """The group begins with these members."""

    def judge_join(self, record: Join) -> Refusal | None:
        """Why a join cannot take effect."""
        return None

    def join(self, record: Join, *, only_signs: bool) -> None:
        """A sender becomes a member; or it is the group's service, which joins only to change its key."""

    def joined(self, record: Join, offset: int, now_ms: int) -> None:
        """A join has its place in the sequence: deliver what waited for it."""
        raise NotImplementedError

    def end_unheard(self, name: str) -> None:
        """A larger epoch of this name begins: end the older one if it never sent a message."""

    def fence(self, name: str, epoch: int) -> None:
        """Nothing above the fence of this sender counts any more."""

    def withdraw(self, found: list[HeldMessage], refusal: Refusal) -> None:
        """Make dead letters of held messages; nothing of them counts any more."""
        raise NotImplementedError

    def deliver_control(self, value: bytes, offset: int, now_ms: int) -> None:
        """Give a membership record that takes effect its place in the sequence."""
        raise NotImplementedError

    def is_over(self, sender: SenderRuns) -> bool:
        """Whether nothing more of this sender and epoch can count, not even a heartbeat."""
        return False

    def fault_of_heartbeat(self, record: Heartbeat) -> Refusal | None:
        """What is wrong with a heartbeat, judged by its fields alone."""
        return None

    def heartbeat(self, record: Heartbeat, now_ms: int) -> Refusal | None:
        """Take what a heartbeat promises, or say why it is refused."""
        return None

    # ── abandoning ────────────────────────────────────────────────────────────────────────────────────────────────

    def places_per_stand_in(self) -> int:
        """How many positions the stand-in of one abandoned message takes."""
        return 1

    def room_for_stand_ins(self) -> int | None:
        """How many stand-ins may still be held until their turn; None where they need not wait."""
        return None

    def abandon(
        self, stand_in: HeldMessage, held: HeldMessage | None, refusal: Refusal, offset: int, now_ms: int
    ) -> None:
        """Put a stand-in where a message is missing or held, and deliver what that lets go."""
        raise NotImplementedError

    def stand_in_settled(self, id_: Id) -> None:
        """The stand-in of this id is settled."""

    def catch_up(self, time: int) -> None:
        """The group has reached this linear time elsewhere."""

    @property
    def reached_time(self) -> int:
        """The largest linear time of the group; 0 where its order has none."""
        return 0

    # ── looking ───────────────────────────────────────────────────────────────────────────────────────────────────

    def missing(self, one: HeldMessage, look: Look) -> list[Id]:
        """The ids that are not there and that a held message waits for."""
        raise NotImplementedError

    def blockers(self, one: HeldMessage, look: Look) -> Iterator[tuple[str | None, list[Id]]]:
        """The same for each destination that has not got the message; or once, with None, where there are none."""
        raise NotImplementedError

    def silent(self, one: HeldMessage, at_most: int) -> list[str]:
        """The members that a held message waits to hear from."""
        return []

    def awaited(self) -> Iterator[tuple[Who, int]]:
        """The members whose word the longest waiting message needs, and since when that one has waited for it."""
        return iter(())

    def entered_up_to(self, name: str, epoch: int) -> int:
        """The seq up to which everything of this sender is here."""
        raise NotImplementedError

    def queued(self) -> list[HeldMessage]:
        """The first messages that watch no id and so do not show what they wait for."""
        return []

    def closing_messages(self) -> list[HeldMessage]:
        """Of each circle of messages that wait for each other the one that arrived last."""
        return []

    def watched(self) -> set[Id]:
        """The ids that are waited for beside those that the group's held messages watch."""
        return set()

    # ── keeping ───────────────────────────────────────────────────────────────────────────────────────────────────

    def dump(self) -> Any:
        """What the release keeps beside the group, as plain data; None where it keeps nothing."""
        return None

    def load(self, dumped: Any) -> None:
        """Take what `dump` returned, when the group holds its messages already."""

    def relink(self, held: Iterable[HeldMessage]) -> None:
        """Build again what is derived from the held messages."""


def is_closed(closed: object, order: "OrderRules | type[OrderRules] | None") -> bool:
    """Whether a created group takes messages of its members alone: by its option, or because of its order.

    Where messages wait for every member's word, the group has to know its members. None: an order that is not known.
    """
    return closed is True or (order is not None and order.waits_for_members)


class OrderRules(Protocol):
    """What the engine and the releases ask of an order; orders/order.py says what each answer means."""

    name: ClassVar[str]
    depth_first: ClassVar[bool]
    in_turn: ClassVar[bool]
    waits_once: ClassVar[bool]
    takes_apart: ClassVar[bool]
    takes_id: ClassVar[frozenset[str]]
    waits_for_members: ClassVar[bool]
    has_destinations: ClassVar[bool]
    release: Release

    def fault(self, message: Message) -> Refusal | None:
        """What is wrong with the stamp, judged by the message alone."""

    def poison(self, id_: Id, message: Message) -> Refusal | None:
        """Whether a clock of the stamp is further ahead than the window allows."""

    def arrive(self, id_: Id, message: Message) -> Watch | Refusal | None:
        """Judge a message that arrives and is in no way unusual."""

    def wait(self, id_: Id, message: Message) -> Watch | Refusal | None:
        """What a message waits for, a refusal, or None: ready."""

    def missing(self, held: HeldMessage, look: Look) -> list[Id]:
        """The ids that are not there and that a held message waits for."""

    def relink(self, held: Iterable[HeldMessage]) -> None:
        """Build again what the order keeps on held messages."""
