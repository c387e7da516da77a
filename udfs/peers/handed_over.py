"""What a peer has told its application, so that a later start does not tell it again after a crash.

All that is settled was told, but for what still waits to be handed over. It is written much more often than the whole
state, so it is little: runs of seqs.
"""

from collections.abc import Iterable, Mapping

from precede.udfs.engine.runs import Runs
from precede.udfs.peers.events import Delivered, Event
from precede.udfs.peers.notes import Have
from precede.udfs.peers.peer_group import PeerGroup
from precede.udfs.peers.segment import SegmentProtocol
from precede.udfs.records.messages import Id, Message, Who

HandedOver = dict[str, list[Have]]
"""By group."""


def handed_over_by(segment: SegmentProtocol, waiting: Mapping[str, Iterable[Event]]) -> HandedOver:
    """What was told of each group, where these events are not handed over yet."""
    return {group: _of_group(peer, waiting.get(group, ())) for group, peer in segment.groups.items()}


def _of_group(peer: PeerGroup, waiting: Iterable[Event]) -> list[Have]:
    left: dict[Who, Runs] = {}
    for event in waiting:
        id_ = id_delivered(event)
        if id_ is not None:
            left.setdefault(id_[:2], Runs()).add(id_[2])
    settled = peer.ordering.kernel.settled(peer.group)
    found: list[Have] = []
    for who in {**settled, **peer.handed_over_before}:
        told = Runs()
        for runs in (settled.get(who), peer.handed_over_before.get(who)):
            for low, high in () if runs is None else runs.runs():
                told.add_ranges(left[who].gaps(low, high) if who in left else [(low, high)])
        found.append((*who, told.dump()))
    return found


def restore_handed_over(segment: SegmentProtocol, told: HandedOver) -> None:
    """What an earlier start told is not told again."""
    for group, have in told.items():
        peer = segment.groups.get(group)
        if peer is not None:
            peer.handed_over_before |= {(name, epoch): _runs(dumped) for name, epoch, dumped in have}


def was_handed_over(segment: SegmentProtocol, event: Delivered) -> bool:
    """Whether an earlier start told this."""
    id_, peer = id_delivered(event), segment.groups.get(event.group)
    runs = None if id_ is None or peer is None else peer.handed_over_before.get(id_[:2])
    return runs is not None and id_ is not None and id_[2] in runs


def id_delivered(event: Event) -> Id | None:
    """The id of a message that is delivered."""
    if not isinstance(event, Delivered) or not isinstance(event.record, Message):
        return None
    record = event.record
    return record.sender, record.epoch, record.seq  # type: ignore[return-value]  # the reader has set the epoch


def _runs(dumped: int | list[int]) -> Runs:
    runs = Runs()
    runs.fill(dumped)
    return runs
