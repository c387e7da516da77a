"""Which raw records a member may trust before the kernel has checked them.

Under orders by clocks a member reacts to records of others before they are delivered. Anyone with write access to the
log can write in any name. So in a group with keys a record counts only if it is signed by a key that the group knows
for its sender: a key of `create`, of a delivered join, or of a correctly signed join in the log. In a group without
keys the kernel trusts every sender, and so does a member. A record that the kernel cannot read never counts.
"""

from typing import NamedTuple

from msgspec import UNSET

from precede.udfs.engine.signers import SERVICE
from precede.udfs.limits import Limits
from precede.udfs.member.knowledge import Knowledge
from precede.udfs.records.messages import Heartbeat, Join, Message
from precede.udfs.records.signatures import is_signed_by, read_key, signature_in
from precede.udfs.records.strict import Malformed
from precede.udfs.records.wire import SPACE, read

_LIMITS = Limits()


class ClockReading(NamedTuple):
    """What a record says about the clock of its group."""

    time: int
    is_message: bool
    """Whether it is a message; a record that only promises a time needs no answer."""


def read_trusted_clock(knowledge: Knowledge, group: str, value: bytes, *, above: int) -> ClockReading | None:
    """What a raw record says about the clock; None if it is not trusted or has no time above this one."""
    record = value.strip(SPACE)
    try:
        found = read(record, _LIMITS)
    except Malformed:
        return None
    if not isinstance(found, Message | Heartbeat | Join) or found.group != group:
        return None
    time = -1 if found.time is UNSET else int(found.time)
    brings_key = isinstance(found, Join) and found.key is not UNSET
    if time <= above and not (brings_key and knowledge.has_keys):
        return None  # not worth the time to verify a signature
    if knowledge.has_keys:
        signature = signature_in(record)
        keys = _keys_of(knowledge, found)
        if signature is None or not any(is_signed_by(key, signature, record) for key in keys):
            return None
        if isinstance(found, Join) and found.key is not UNSET:
            knowledge.add_key(found.sender, found.epoch, found.key)
    return ClockReading(time, isinstance(found, Message)) if time > above else None


def _keys_of(knowledge: Knowledge, record: Message | Heartbeat | Join) -> list[bytes]:
    """The keys, one of which must have signed this. Under clocks a created group is closed: no one can admit itself."""
    name = record.sender
    if isinstance(record, Join):
        texts = [knowledge.newest_key(name), knowledge.newest_key(SERVICE)]
    else:
        texts = [knowledge.key_of(name, record.epoch)]  # type: ignore[arg-type]
    return [key for text in texts if (key := read_key(text)) is not None]
