"""What time does to a group, on reading a `tick`: the log's clock advances where nobody talks.

First the clocks let go what they can, then gaps and silent members are looked after in the state that leaves.
"""

from typing import TYPE_CHECKING

from precede.udfs.release.by_clocks import Clocked
from precede.udfs.release.clock_steps import advance
from precede.udfs.ticks import gaps, silence
from precede.udfs.ticks.patience import Patience

if TYPE_CHECKING:
    from precede.udfs.engine.group import Group


def deadline_ms(group: "Group", patience: Patience) -> int | None:
    """From which time of the log on a tick may do something here; None where no tick ever will.

    It is looked for once, and known until a record changes what is held or waited for: a tick may come as often as it
    likes. What is delivered at once shows in the position; whatever else happens forgets the deadline.
    """
    known = group.deadline
    if known is None or known[0] != group.position:
        known = group.deadline = group.position, _look_for_deadline_ms(group, patience)
    return known[1]


def _look_for_deadline_ms(group: "Group", patience: Patience) -> int | None:
    if not group.held and group.waits is None:
        return None
    release_ms = group.order.deadline_ms() if isinstance(group.order, Clocked) else None
    deadlines = release_ms, gaps.deadline_ms(group, patience), silence.deadline_ms(group, patience)
    return min((due_ms for due_ms in deadlines if due_ms is not None), default=None)


def pass_time(group: "Group", patience: Patience, offset: int, now_ms: int) -> None:
    """One step: the log took a tick at this time."""
    if _is_due(group.order.deadline_ms() if isinstance(group.order, Clocked) else None, now_ms):
        advance(group, offset, now_ms, is_tick=True)
    if _is_due(gaps.deadline_ms(group, patience), now_ms):
        gaps.look_after(group, patience, offset, now_ms)
    silence.evict_silent(group, patience, offset, now_ms)
    group.deadline = None


def _is_due(due_ms: int | None, now_ms: int) -> bool:
    return due_ms is not None and due_ms <= now_ms
