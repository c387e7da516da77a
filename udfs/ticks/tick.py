"""What time does to a group, on reading a `tick`: the log's clock advances even where no messages come.

First the clocks let go what they can. Then gaps and silent members are looked after, in the state that this leaves.
"""

from precede.udfs.engine.group import Group
from precede.udfs.ticks import gaps, silence
from precede.udfs.ticks.patience import Patience


def deadline_ms(group: Group, patience: Patience) -> int | None:
    """The time of the log from which a tick may do something here; None where no tick ever will.

    It is looked up once and kept until a record changes what is held or waited for, because ticks may come as often as
    they like. What is delivered at once shows in the position; whatever else happens forgets the deadline.
    """
    known = group.deadline
    if known is None or known[0] != group.position:
        known = group.deadline = group.position, _look_for_deadline_ms(group, patience)
    return known[1]


def _look_for_deadline_ms(group: Group, patience: Patience) -> int | None:
    if not group.held and group.repair_timers is None:
        return None
    release_ms = group.release.deadline_ms()
    deadlines = release_ms, gaps.deadline_ms(group, patience), silence.deadline_ms(group, patience)
    return min((due_ms for due_ms in deadlines if due_ms is not None), default=None)


def pass_time(group: Group, patience: Patience, offset: int, now_ms: int) -> None:
    """One step: the log took a tick at this time."""
    if _is_due(group.release.deadline_ms(), now_ms):
        group.release.pass_time(offset, now_ms)
    if _is_due(gaps.deadline_ms(group, patience), now_ms):
        gaps.look_after(group, patience, offset, now_ms)
    silence.evict_silent(group, patience, offset, now_ms)
    group.deadline = None


def _is_due(due_ms: int | None, now_ms: int) -> bool:
    return due_ms is not None and due_ms <= now_ms
