"""Members that fall silent: where messages wait for every member, one that says nothing is evicted.

Only `lamport` and `two_clock` wait for members. In every other order silence holds nothing back, and no one is evicted
for it. A member is silent when three things are true: the message that has waited longest waits for its word; nothing
of it is known to be missing (otherwise that is a gap, see gaps.py); and since that message came it gave no sign of life
for `silent_ms` of the log's time. Then an `evict` goes into the log, with the last seq up to which everything is here,
and acts when it is read from there.
"""

from precede.udfs.engine.group import Group
from precede.udfs.membership.keyring import believes_the_job, is_service, say_which_key_is_missing
from precede.udfs.records.job_records import encode_evict
from precede.udfs.ticks.patience import Patience


def deadline_ms(group: Group, patience: Patience) -> int | None:
    """The time of the log from which a member is silent too long; None where no member is waited for."""
    if not patience.silent_ms or not believes_the_job(group):
        return None
    return min((since_ms + patience.silent_ms for _, since_ms in group.release.awaited()), default=None)


def evict_silent(group: Group, patience: Patience, offset: int, now_ms: int) -> None:
    """Put an `evict` into the log for each member that is silent too long."""
    if not patience.silent_ms or not believes_the_job(group):
        return
    silent = [who for who, since_ms in group.release.awaited() if since_ms + patience.silent_ms <= now_ms]
    may_decide = is_service(group, patience.service_key)
    if silent and not may_decide:
        say_which_key_is_missing(group, offset)
    for name, epoch in silent:
        if may_decide:
            cut = group.release.entered_up_to(name, epoch)
            group.outbox.say("raw", group.key, encode_evict(group.name, name, epoch, cut), offset)
        group.note_sign_of_life(name, epoch, now_ms)  # not again before as long a time has passed once more
