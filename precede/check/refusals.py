"""Whether a message was refused rightly, as far as the message and what its group had accepted show that for sure.

A code that is not judged here (`seq_jump`, `backpressure`, `orphan`, ...) depends on what only the kernel counts, and
is believed.
"""

from msgspec import UNSET

from precede.check.group import GroupSequence
from precede.check.guarantees import Guarantee
from precede.check.records import RawRecord, id_of
from precede.check.release import Waiting
from precede.udfs.errors import Refused
from precede.udfs.records.messages import Message

TAKES_ID = ("self_parent", "cycle", "orphan")
"""Refusals that take the id, in `s_b`."""
MAY_BE_HELD_FIRST = (*TAKES_ID, "fenced", "abandoned", "not_member", "late", "clock_regression")
"""Codes that a message may get after it was held; with every other code it was refused at once."""
ON_ENTRY = ("late", "clock_regression")
"""Codes that a message by clocks may get when its turn comes."""

Letters = dict[int, dict[str | None, str]]
"""Of one raw partition: by offset, and by destination, the code of a dead letter that no record has met yet."""


def why_wrong(
    code: str,
    raw: RawRecord,
    message: Message,
    sequence: GroupSequence,
    promise: type[Guarantee],
    known: Waiting | None,
    *,
    is_new: bool,
) -> str | None:
    """Why a message that was refused when it came should not have been, with this code; None if that is not sure.

    `known` is what is held under its id, and `is_new` says that nothing of this id was held, delivered, given up on or
    refused for good before.
    """
    id_ = id_of(message)
    who = (id_[0], id_[1])
    membership = sequence.membership
    if code in ("malformed", "oversize", "wrong_key", "unknown_order"):
        return "it can be read, is not too large, and has its group as the key"
    if code == "missing_stamp" and promise.needs is not None:
        is_whole = all(getattr(message, field) is not UNSET for field in promise.needs)
        return f"it has every stamp that {promise.name} needs" if is_whole else None
    if code == "bad_stamp" and promise.needs is not None:
        return None if promise.contradicts(message) else f"its stamps are what {promise.name} needs"
    if code == "self_parent":
        return None if id_ in (message.after or ()) else "it does not name itself"
    if code == "fenced":
        return None if id_[2] > membership.fence_of(who) else f"its epoch has not ended below seq {id_[2]}"
    if code == "equivocation" and is_new:
        return "nothing else came under its id"
    if code == "equivocation" and known is not None and known.message is not None:
        return "it is an exact copy of what is held" if known.arrived.value == raw.value else None
    if code == "late" and is_new and not promise.by_clocks:
        return "nothing stands in its place"
    if code == "forged":
        return _why_not_forged(raw, message, sequence)
    return None


def _why_not_forged(raw: RawRecord, message: Message, sequence: GroupSequence) -> str | None:
    membership = sequence.membership
    who = (message.sender, message.epoch or 0)
    if membership.keys is None:
        return "its group has no keys"
    if who not in membership.joined:
        return None  # a join could bring another key for this epoch
    try:
        return f"a key of {who[0]} has signed it" if membership.is_signed(who, raw.value) else None
    except Refused:  # the library that verifies is not installed, which is said of what was delivered
        return None
