"""Members that fall silent: where the order waits for everybody, one that says nothing is evicted.

Only `lamport` and `two_clock` wait for members; in every other order silence costs nobody anything, and nobody is
evicted for it. A member is silent when the message that has waited longest waits for its word, nothing of it is known
to be missing (then it is a gap, and gaps.py looks after it), and since that message came it gave no sign of life for
`silent_ms` of the log's time. Then an `evict` goes into the log, with the last seq up to which everything is here, and
acts when it is read from there.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from precede.udfs.engine.missing import longest_queued
from precede.udfs.membership.keyring import believes_the_job, is_service, tell_which_key_lacks
from precede.udfs.records.job_records import encode_evict
from precede.udfs.records.messages import Who
from precede.udfs.release.by_clocks import Clocked
from precede.udfs.ticks.patience import Patience
from precede.udfs.ticks.repair_timers import NO_WAITS, hear

if TYPE_CHECKING:
    from precede.udfs.engine.group import Group


def _awaited(group: "Group") -> Iterator[tuple[Who, int]]:
    """Each member whose word the longest waiting message needs, and since when that one has been waiting for it."""
    order = group.order
    longest = longest_queued(group) if isinstance(order, Clocked) else None
    if longest is None:
        return
    assert isinstance(order, Clocked)
    heard = (group.waits or NO_WAITS).heard
    for who in order.awaited(longest):
        yield who, max(heard.get(who, longest.arrived_ms), longest.arrived_ms)


def deadline_ms(group: "Group", patience: Patience) -> int | None:
    """From which time of the log on somebody is silent too long; None where nobody is waited for."""
    if not patience.silent_ms or not believes_the_job(group):
        return None
    return min((since_ms + patience.silent_ms for _, since_ms in _awaited(group)), default=None)


def evict_silent(group: "Group", patience: Patience, offset: int, now_ms: int) -> None:
    """Put an `evict` into the log for each member that is silent too long."""
    if not patience.silent_ms or not believes_the_job(group):
        return
    silent = [who for who, since_ms in _awaited(group) if since_ms + patience.silent_ms <= now_ms]
    may_decide = is_service(group, patience)
    if silent and not may_decide:
        tell_which_key_lacks(group, offset)
    for name, epoch in silent:
        if may_decide:
            assert isinstance(group.order, Clocked)
            cut = group.order.entered_up_to(name, epoch)
            group.outbox.say("raw", group.key, encode_evict(group.name, name, epoch, cut), offset)
        hear(group, name, epoch, now_ms)  # not again before as long a time has passed once more
