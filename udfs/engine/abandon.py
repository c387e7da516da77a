"""Abandoning missing messages: what an `abandon` record does (contract, section 3, "Giving up").

A stand-in takes the place of each abandoned message, as if that message had arrived with nothing to wait for except, in
orders that keep each sender's order, its turn. So no order needs a rule of its own for messages that will never come:
an order that once jumped a clock to forgive a loss delivered b:4 before b:2.

A peer that comes late to a segment is told, by runs of seqs, what the others have settled and forgotten. `pass_over`
takes that over, so that nothing waits for it: these messages get no position and no stand-in here, and a copy of one
that comes after all is dropped.
"""

from bisect import bisect_right
from collections.abc import Iterator
from itertools import chain

from precede.udfs import codes
from precede.udfs.codes import Refusal
from precede.udfs.engine.admission import runs_refusal
from precede.udfs.engine.group import Group
from precede.udfs.engine.held import HeldMessage
from precede.udfs.engine.outbox import stand_in_head
from precede.udfs.engine.runs import Runs, merged
from precede.udfs.engine.senders import SenderRuns, sender_key
from precede.udfs.engine.state import ID_PARTS, waits_for_join
from precede.udfs.records.messages import SEQ_MAX, Abandon, Id, Who

ABANDONED_MAX = 1_000_000
"""How many messages one record may abandon: a short record must not cause endless output."""
ABANDONED_BYTES_MAX = 256 * 1024 * 1024
"""How many bytes the names in its stand-ins may take: one step has to fit into memory."""


def receive_abandon(group: Group, record: Abandon, offset: int, now_ms: int) -> Refusal | None:
    """Abandon ids in the order written, each with all it frees; nothing happens where one range is refused."""
    refusal = _judge(group, record)
    if refusal is not None:
        return refusal
    group.begun = True
    rank = 0
    for name, epoch, first, last in record.ids:
        sender = _sender(group, name, epoch)
        group.add_sender(sender)
        stretches = list(_open(sender, first, last))
        for seq in chain.from_iterable(range(low, high + 1) for low, high in stretches):
            if seq not in sender:  # it may have become free by what was abandoned before it
                rank += 1
                _abandon(group, (sender.name, sender.epoch, seq), sender, rank, offset, now_ms)
    return None


def most_at_once(group: Group, name: str, epoch: int) -> int:
    """How many messages of one sender a record may abandon where there are no destinations."""
    return min(ABANDONED_MAX, ABANDONED_BYTES_MAX // _head_bytes(group, name, epoch))


def _head_bytes(group: Group, name: str, epoch: int) -> int:
    return len(stand_in_head(group.name, (name, epoch, SEQ_MAX)))


def _sender(group: Group, name: str, epoch: int) -> SenderRuns:
    known = group.senders.get(sender_key(name, epoch))
    return group.new_sender(name, epoch) if known is None else known


def _judge(group: Group, record: Abandon) -> Refusal | None:
    """Refuse what reaches past the window, and what would abandon nothing."""
    count = size = 0
    idle = True
    places = group.release.places_per_stand_in()
    ranges_of: dict[Who, list[tuple[int, int]]] = {}
    for name, epoch, first, last in record.ids:
        sender = _sender(group, name, epoch)
        if last > sender.highest + group.window:
            past = f"more than {group.window} past {sender.highest}, the highest seen"
            return Refusal(codes.SEQ_JUMP, f"It gives up {name!r} to seq {last}, {past}.")
        missing = sender.missing_count(first, last)
        count += missing * places
        size += missing * places * _head_bytes(group, name, epoch)
        if count > ABANDONED_MAX or size > ABANDONED_BYTES_MAX:  # before the next range is looked at
            much = f"{ABANDONED_MAX} messages, or records of {ABANDONED_BYTES_MAX} bytes for them"
            return Refusal(codes.SEQ_JUMP, f"It gives up more than {much}, at once.")
        idle = idle and next(_open(sender, first, last), None) is None
        ranges_of.setdefault((sender.name, sender.epoch), []).append((first, last))
    if idle:
        return Refusal(codes.LATE, "Every message it would give up is already delivered, given up or refused.")
    for (name, epoch), ranges in ranges_of.items():
        if _sender(group, name, epoch).run_count_with(ranges) > group.limits.runs_max:
            return runs_refusal(group, name)
    room = group.release.room_for_stand_ins()
    if room is not None and _wait_beyond(group, room, ranges_of):
        most = group.limits.held_max
        return Refusal(codes.BACKPRESSURE, f"With what would have to wait its turn the group would hold over {most}.")
    return None


def _wait_beyond(group: Group, room: int, ranges_of: dict[Who, list[tuple[int, int]]]) -> bool:
    """Whether the stand-ins of these ranges that cannot go at once need more places than there is room for.

    A stand-in for a held message takes that message's place. Ids are counted by stretches. They are looked at one by
    one only where that decides, and then no more of them than there are held messages, or places left.
    """
    stretches_of = {who: list(_waiting(_sender(group, *who), ranges)) for who, ranges in ranges_of.items()}
    count = sum(high - low + 1 for stretches in stretches_of.values() for low, high in stretches)
    if count <= room:
        return False
    if count > room + len(group.held):
        return True
    if count > len(group.held):
        return count - sum(1 for id_ in group.held if _is_inside(id_, stretches_of)) > room
    ids = (
        (*who, seq)
        for who, stretches in stretches_of.items()
        for low, high in stretches
        for seq in range(low, high + 1)
    )
    return any(places > room for places, _ in enumerate((id_ for id_ in ids if id_ not in group.held), start=1))


def _is_inside(id_: Id, stretches_of: dict[Who, list[tuple[int, int]]]) -> bool:
    stretches = stretches_of.get(id_[:2], [])
    at = bisect_right(stretches, (id_[2], SEQ_MAX)) - 1
    return at >= 0 and id_[2] <= stretches[at][1]


def _waiting(sender: SenderRuns, ranges: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """The stretches of these ranges whose stand-ins cannot go at once, in order."""
    reach = sender.prefix
    for first, last in merged(ranges):
        if first <= reach + 1:
            reach = next(sender.gaps(max(reach, last) + 1, SEQ_MAX))[0] - 1
        else:
            yield from _open(sender, first, last)


def _open(sender: SenderRuns, first: int, last: int) -> Iterator[tuple[int, int]]:
    """The stretches of a range that can still be abandoned: not settled, not abandoned, not refused for ever."""
    for low, high in sender.gaps(first, last):
        for low_now, high_now in [(low, high)] if sender.abandoned is None else sender.abandoned.gaps(low, high):
            if sender.refused is None:
                yield low_now, high_now
            else:
                yield from sender.refused.gaps(low_now, high_now)


def _abandon(group: Group, id_: Id, sender: SenderRuns, rank: int, offset: int, now_ms: int) -> None:
    """Put the stand-in of a missing or held message in its place."""
    held = group.held.get(id_)
    refusal = Refusal(codes.ABANDONED, "The group gave up on this message while it was held.")
    if held is not None and waits_for_join(held.watch):
        refusal = Refusal(codes.NOT_MEMBER, f"{id_[0]!r} never joined the closed group, which gave up on this.")
    sender.highest = max(sender.highest, id_[2])
    sender.abandon(id_[2], group.limits.runs_max)
    stand_in = HeldMessage(offset, now_ms, rank, None, id_)
    group.release.abandon(stand_in, held, refusal, offset, now_ms)


STAND_INS_AT_ONCE = 10_000
"""Where stand-ins are needed, so many are made in one step."""


def pass_over(group: Group, name: str, epoch: int, runs: Runs, offset: int, now_ms: int) -> list[tuple[int, int]]:
    """Settle those of these seqs that are not here, and return them; those that are held stay held.

    Where each sender's order is kept, only what leaves no gap below counts: the rest has to be told again later.
    """
    sender = group.senders.get(sender_key(name, epoch)) or group.new_sender(name, epoch)
    held = Runs()
    for seq in sorted(id_[2] for id_ in group.held if id_[:2] == (name, epoch)):
        held.add(seq)
    open_ = [
        stretch
        for low, high in runs.runs()
        for first, last in sender.gaps(low, high)
        for stretch in held.gaps(first, last)
    ]
    if group.order.in_turn or group.release.needs_stand_ins:
        open_ = _without_gap(sender, held, open_)
    if not open_:
        return []
    group.begun = True
    group.add_sender(sender)
    sender.highest = max(sender.highest, open_[-1][1])
    if group.release.needs_stand_ins:
        _stand_in_for(group, name, epoch, open_, offset, now_ms)
        return open_
    for low, high in open_:
        sender.add_range(low, high)
    group.release.stand_in_settled((name, epoch, sender.prefix))
    waited: list[Id] = [
        (name, epoch, watch[2]) for watch in group.waiting if len(watch) == ID_PARTS and watch[:2] == (name, epoch)
    ]
    for id_ in sorted(waited):
        if id_[2] in sender and id_ in group.waiting:
            group.release.happened(id_, offset, now_ms)
    group.release.advance(offset, now_ms)
    return open_


def _without_gap(sender: SenderRuns, held: Runs, stretches: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The stretches up to the first one below which something is neither settled nor held."""
    here = Runs()
    for low, high in chain(sender.runs(), held.runs()):
        here.add_range(low, high)
    taken: list[tuple[int, int]] = []
    for low, high in stretches:
        if next(here.gaps(1, low - 1), None) is not None:
            break
        here.add_range(low, high)
        taken.append((low, high))
    return taken


def _stand_in_for(group: Group, name: str, epoch: int, ranges: list[tuple[int, int]], offset: int, now_ms: int) -> None:
    """By stand-ins, which take positions; the caller passes them over."""
    for low, high in ranges:
        for first in range(low, high + 1, STAND_INS_AT_ONCE):
            last = min(high, first + STAND_INS_AT_ONCE - 1)
            receive_abandon(
                group, Abandon(group=group.name, kind="abandon", ids=[(name, epoch, first, last)]), offset, now_ms
            )
