"""What a group lacks and holds now, what it knows of one message by its id, and how a person sees it.

Nothing is decided here. What the job does about a gap is in passing_time.py.
"""

from bisect import bisect_left
from collections.abc import Collection, Iterator
from typing import Literal, NamedTuple

import msgspec
from msgspec import UNSET

from precede.udfs.engine.group import Group
from precede.udfs.engine.held import Held, HeldMessage, Watch, Watchers
from precede.udfs.engine.repair_timers import NO_TIMERS, NOTICED_MAX
from precede.udfs.engine.search import LISTED_MAX, Look
from precede.udfs.engine.senders import SenderRuns, sender_key
from precede.udfs.engine.signers import believes_the_job
from precede.udfs.engine.state import ID_PARTS, QUEUED, arrival, by_arrival, first_of, waits_for_id, waits_for_join
from precede.udfs.limits import Patience
from precede.udfs.records.messages import SEQ_MAX, Id, Who


class Gap(NamedTuple):
    """A stretch of missing seqs of one sender and epoch."""

    name: str
    epoch: int
    first: int
    last: int
    opened_ms: int
    waiting: list[HeldMessage]


def heads(group: Group) -> Iterator[tuple[Id, Watchers]]:
    """The ids that are not here and that held messages watch, with those messages."""
    for watch, watchers in group.waiting.items():
        if waits_for_id(watch) and watch not in group.held:
            yield watch, watchers


def first_opened_ms(group: Group, but: Collection[Id]) -> int | None:
    """Since when the first head except these has been waited for; one pass, because there may be very many."""
    held = group.held
    opened = [
        first_of(watchers).arrived_ms if isinstance(watchers, dict) else watchers.arrived_ms
        for watch, watchers in group.waiting.items()
        if watch not in held and watch not in but and len(watch) == ID_PARTS
    ]
    return min(opened, default=None)


def gaps_of(group: Group) -> list[Gap]:
    """All gaps, the one that opened first first."""
    found = {id_: by_arrival(watchers) for id_, watchers in heads(group)}
    if not group.order.waits_once:  # then one message may wait for several ids, and it shows one of them at a time
        behind = sorted((watchers[0] for watchers in found.values()), key=arrival)[:NOTICED_MAX]
        behind += group.release.closing_messages()[:NOTICED_MAX]
        behind += group.release.queued()
        look = Look(group)
        for one in behind:
            for id_ in group.release.missing(one, look):
                if id_ not in group.held:
                    found.setdefault(id_, [one])
    gaps = list(_gaps_up_to(group, found))
    gaps.sort(key=lambda gap: (gap.opened_ms, gap[:4]))
    return gaps


def _gaps_up_to(group: Group, found: dict[Id, list[HeldMessage]]) -> Iterator[Gap]:
    """The gaps that end at these ids; where each sender's order is kept, one may reach down over others of them."""
    held = _held_seqs(group) if group.order.in_turn else {}
    ids = sorted(found, reverse=True)
    at = 0
    while at < len(ids):
        name, epoch, last = ids[at]
        sender = group.senders.get(sender_key(name, epoch))
        first = _first(sender, held.get((name, epoch), []), last) if group.order.in_turn else last
        waiting = found[ids[at]]
        opened_ms = waiting[0].arrived_ms
        at += 1
        while at < len(ids) and ids[at] >= (name, epoch, first):
            opened_ms = min(opened_ms, found[ids[at]][0].arrived_ms)
            at += 1
        fence = SEQ_MAX if sender is None else sender.fence
        if first <= fence < last:  # a message up to the fence may still count when it comes, one above it cannot
            yield Gap(name, epoch, first, fence, opened_ms, waiting)
            first = fence + 1
        yield Gap(name, epoch, first, last, opened_ms, waiting)


def _held_seqs(group: Group) -> dict[Who, list[int]]:
    held: dict[Who, list[int]] = {}
    for name, epoch, seq in sorted(group.held):
        held.setdefault((name, epoch), []).append(seq)
    return held


def _first(sender: SenderRuns | None, held: list[int], last: int) -> int:
    """The seq from which on everything up to the last one is missing."""
    first = 1 if sender is None else sender.absent_from(last)
    at = bisect_left(held, last)
    return max(first, held[at - 1] + 1) if at else first


def is_here(group: Group, id_: Id) -> bool:
    """Whether nothing need wait for this id to come any more, because it is settled, or held itself."""
    sender = group.senders.get(sender_key(id_[0], id_[1]))
    return id_ in group.held or (sender is not None and id_[2] in sender)


def strangers(group: Group) -> list[tuple[Who, Watchers]]:
    """The senders that spoke in a closed group without having joined, with their held messages."""
    return sorted((watch, watchers) for watch, watchers in group.waiting.items() if waits_for_join(watch))


def held_messages(group: Group) -> list[Held]:
    """What is held, in arrival order, and what each waits for."""
    look = Look(group)
    return [
        _held(group, one, blockers, destination)
        for one in sorted(group.held.values(), key=arrival)
        if one.value is not None
        for destination, blockers in group.release.blockers(one, look)
    ]


def _held(group: Group, one: HeldMessage, blockers: list[Id], destination: str | None) -> Held:
    """One held message, or one of its destinations; those of its blockers that are here wait for a join."""
    name, epoch, seq = one.id
    joins = [id_[0] for id_ in blockers if id_ in group.held]
    return Held(
        group=group.name,
        destination=destination,
        sender=name,
        epoch=epoch,
        seq=seq,
        partition=group.partition,
        offset=one.offset,
        since_ms=one.arrived_ms,
        missing=[id_ for id_ in blockers if id_ not in group.held],
        silent=joins + group.release.silent(one, LISTED_MAX),
        joins=joins or UNSET,
    )


class OpenGap(msgspec.Struct, kw_only=True):
    """An open gap, as `precede held --gaps` shows it."""

    group: str
    sender: str
    epoch: int
    first: int
    last: int
    since_ms: int
    asked: int
    """How often it was requested; 0 while it is young."""
    asked_ms: int | None
    waited: list[Id]
    """The messages that wait for it directly, by arrival; at most 20."""


def open_gaps(group: Group) -> list[OpenGap]:
    """What is missing, the oldest first."""
    noticed = list((group.repair_timers or NO_TIMERS).gaps.values())
    found: list[OpenGap] = []
    for run in gaps_of(group):
        same = (gap for gap in noticed if gap.key[:2] == run[:2] and gap.first <= run.last <= gap.last)
        gap = next(same, None)
        found.append(
            OpenGap(
                group=group.name,
                sender=run.name,
                epoch=run.epoch,
                first=run.first,
                last=run.last,
                since_ms=run.opened_ms if gap is None else gap.opened_ms,
                asked=0 if gap is None else gap.asked,
                asked_ms=None if gap is None else gap.asked_ms,
                waited=[one.id for one in run.waiting[:LISTED_MAX] if one.value is not None],
            )
        )
    return found


def oldest_and_gaps(group: Group) -> tuple[int, int]:
    """When the first of the held messages arrived, and how many gaps there are: things waited for that are not held."""
    first = next(iter(group.held.values()))  # they are kept in the order they arrived
    gaps: set[Watch] = set(group.waiting).difference(group.held)
    gaps.discard(QUEUED)
    gaps |= group.release.watched() - group.held.keys()
    return first.arrived_ms, len(gaps)


def give_up_after_ms(group: Group, patience: Patience) -> int | None:
    """How long after it opened a gap is abandoned; None: never."""
    options = group.options
    loss = options.loss if isinstance(options.loss, str) else patience.loss
    after = options.give_up_ms if isinstance(options.give_up_ms, int) else patience.give_up_ms
    return after if after and loss == "abandon" and believes_the_job(group) else None


def ask_after_ms(group: Group, patience: Patience) -> int:
    """Age at which a gap is first requested: in any case before the group gives up."""
    given_up_ms = give_up_after_ms(group, patience)
    return patience.ask_after_ms if given_up_ms is None else min(patience.ask_after_ms, given_up_ms // 2)


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
        return _where_it_is_held(group, one, known, patience)
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


def _where_it_is_held(group: Group, one: HeldMessage, known: KnownMessage, patience: Patience) -> KnownMessage:
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
