"""What a gateway does with a segment beside what all processes do; for `attend`, `inject` and `tell` see there."""

from collections.abc import Iterable

from precede.udfs.engine.runs import Runs
from precede.udfs.limits import Limits
from precede.udfs.peers.directory import GroupInfo
from precede.udfs.peers.kept_messages import KEPT_BYTES_MAX
from precede.udfs.peers.segment import SegmentProtocol
from precede.udfs.peers.sync_schedule import GRACE_MS
from precede.udfs.records.messages import Who


def take_limits(segment: SegmentProtocol, limits: Limits) -> None:
    """Take records by the limits of the log, and tell the peers how long the lists in them may be."""
    segment.take_limits(limits)
    segment.announcing.limits = limits.lists


def learn(
    segment: SegmentProtocol,
    group: str,
    values: Iterable[bytes],
    settled: Iterable[tuple[Who, Runs]],
    *,
    time: int,
    now_ms: float,
) -> None:
    """Take in what the log had of a group before; `settled` is what no one need wait for any more."""
    peer = segment.groups[group]
    for value in values:
        peer.take(value, now_ms, is_from_log=True, is_page=True)
    peer.sync_schedule.kept.grow_old(now_ms + GRACE_MS)  # they are on their way to no one
    peer.sync_schedule.note_forgotten(settled, time)


def advertise(segment: SegmentProtocol, notes: Iterable[GroupInfo], now_ms: float) -> None:
    """Offer groups of the log, now and to all who come later."""
    new = {note.group: note for note in notes if note.group not in segment.groups}
    segment.advertised.update(new)
    if new:
        segment.announce(new.values(), now_ms)


def pause(segment: SegmentProtocol, *, is_paused: bool, now_ms: float) -> None:
    """Take in no records for a while, and then ask for those that came meanwhile."""
    segment.is_paused = is_paused
    if not is_paused:
        for peer in segment.groups.values():
            peer.sync_schedule.lacks(now_ms)


def keep_within(segments: Iterable[SegmentProtocol], bytes_max: int) -> None:
    """Let all groups together keep so many bytes of messages for others; beyond it, those that keep most keep less."""
    kept = [peer.sync_schedule.kept for segment in segments for peer in segment.groups.values()]
    level = KEPT_BYTES_MAX
    left = bytes_max
    for number, size in enumerate(sorted(one.size for one in kept)):
        share = left // (len(kept) - number)
        if size > share:
            level = min(level, share)
            break
        left -= size
    for one in kept:
        one.bytes_max = level


def gateways(segment: SegmentProtocol, now_ms: float) -> set[str]:
    """The names of the other gateways that are there."""
    return segment.announcing.gateways & present(segment, now_ms)


def present(segment: SegmentProtocol, now_ms: float) -> set[str]:
    """The names of all that are known to be there."""
    return segment.announcing.present(segment.broadcast.streams, now_ms) or set()
