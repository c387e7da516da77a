"""What a group knows of one message by its id: whether it is held and for what, settled, refused, or still missing."""

from typing import Literal

import msgspec

from precede.udfs.engine.group import Group
from precede.udfs.engine.held import HeldMessage
from precede.udfs.engine.inspection import OpenGap, open_gaps
from precede.udfs.engine.search import LISTED_MAX, Look
from precede.udfs.engine.senders import sender_key
from precede.udfs.engine.state import waits_for_id, waits_for_join
from precede.udfs.limits import Patience
from precede.udfs.passing_time import give_up_after_ms
from precede.udfs.records.messages import SEQ_MAX, Id

Standing = Literal["held", "settled", "abandoned", "refused", "missing", "unseen"]


class AwaitedGap(OpenGap, kw_only=True):
    """An open gap, and when the job abandons it."""

    gives_up_ms: int | None
    """In milliseconds of the log; None: never."""


class AwaitedMember(msgspec.Struct, kw_only=True):
    """A member that a held message waits to hear from."""

    sender: str
    since_ms: int | None
    """When it was heard last, as far as a message has waited since; None where others are waited for before it."""
    evicted_ms: int | None
    """When the job evicts it if it stays silent; None where it never does."""


class AwaitedAt(msgspec.Struct, kw_only=True):
    """What a held message waits for, at one destination or at all."""

    destination: str | None
    missing: list[Id]
    """Messages that are not here; at most 20."""
    joins: list[str]
    """Senders that have not joined the closed group; what they said waits for that."""
    silent: list[AwaitedMember]


class KnownMessage(msgspec.Struct, kw_only=True):
    """What is known of one id."""

    standing: Standing
    """`abandoned`: settled by a stand-in, or its stand-in waits for its turn. `refused`: a refusal took its id."""
    order: str
    by_destination: bool
    """Whether each destination gets it at a place of its own."""
    highest: int
    """The largest seq seen of its sender and epoch; 0 where none was."""
    fence: int | None
    """No seq of this sender and epoch above this counts; None where none is fenced."""
    arrived_ms: int | None = None
    offset: int | None = None
    waits: list[AwaitedAt] = []
    """Where it is held: what for."""
    gaps: list[AwaitedGap] = []
    """Where it is held: the gaps it waits for. Where it is missing and waited for: the gap it lies in."""
    behind: Id | None = None
    """Where it is held: the held message that has to go before it."""
    gives_up_ms: int | None = None
    """When the job abandons the held message itself: its sender did not join, or it closes a circle of held messages
    that wait for each other."""


def known_message(group: Group, id_: Id, patience: Patience) -> KnownMessage:
    """What the group knows of this id, now."""
    name, epoch, seq = id_
    sender = group.senders.get(sender_key(name, epoch))
    fence = None if sender is None or sender.fence == SEQ_MAX else sender.fence
    known = KnownMessage(
        standing="unseen",
        order=group.order.name,
        by_destination=group.order.has_destinations,
        highest=0 if sender is None else sender.highest,
        fence=0 if sender is None and group.new_sender(name, epoch).fence == 0 else fence,
    )
    one = group.held.get(id_)
    if one is not None and one.value is not None:
        return _held(group, one, known, patience)
    if sender is not None and sender.abandoned is not None and seq in sender.abandoned:
        known.standing = "abandoned"
        if one is not None:
            known.arrived_ms, known.offset = one.arrived_ms, one.offset
    elif sender is not None and seq in sender:
        known.standing = "settled"
    elif sender is not None and sender.refused is not None and seq in sender.refused:
        known.standing = "refused"
    else:
        known.gaps = [gap for gap in _gaps(group, patience) if _covers(gap, id_)]
        if known.gaps:
            known.standing = "missing"
    return known


def _held(group: Group, one: HeldMessage, known: KnownMessage, patience: Patience) -> KnownMessage:
    known.standing = "held"
    known.arrived_ms, known.offset = one.arrived_ms, one.offset
    silent = [_awaited(group, name, patience) for name in group.release.silent(one, LISTED_MAX)]
    for destination, blockers in group.release.blockers(one, Look(group)):
        missing = [id_ for id_ in blockers if id_ not in group.held]
        joins = sorted({id_[0] for id_ in blockers if id_ in group.held})
        known.waits.append(AwaitedAt(destination=destination, missing=missing, joins=joins, silent=silent))
    missing_ids = {id_ for wait in known.waits for id_ in wait.missing}
    if missing_ids:
        known.gaps = [gap for gap in _gaps(group, patience) if any(_covers(gap, id_) for id_ in missing_ids)]
    if waits_for_id(one.watch) and one.watch in group.held:
        known.behind = one.watch
    after_ms = give_up_after_ms(group, patience)
    if after_ms is not None and (waits_for_join(one.watch) or one in group.release.closing_messages()):
        known.gives_up_ms = one.arrived_ms + after_ms
    return known


def _gaps(group: Group, patience: Patience) -> list[AwaitedGap]:
    after_ms = give_up_after_ms(group, patience)
    return [
        AwaitedGap(
            **msgspec.structs.asdict(gap),
            gives_up_ms=None if after_ms is None else gap.since_ms + after_ms,
        )
        for gap in open_gaps(group)
    ]


def _covers(gap: OpenGap, id_: Id) -> bool:
    return (gap.sender, gap.epoch) == id_[:2] and gap.first <= id_[2] <= gap.last


def _awaited(group: Group, name: str, patience: Patience) -> AwaitedMember:
    since = {who[0]: since_ms for who, since_ms in group.release.awaited()}
    since_ms = since.get(name)
    evicted_ms = None if since_ms is None or not patience.silent_ms else since_ms + patience.silent_ms
    return AwaitedMember(sender=name, since_ms=since_ms, evicted_ms=evicted_ms)
