"""What a member may believe of the raw log, where nobody has judged the records yet.

By clocks a member goes by what others say before it is delivered. Whoever may write to the log can say anything in
anybody's name, so in a group with keys a record is heard only if it is signed by a key that the group knows for its
sender: the keys of `create` and of delivered joins, and those of joins that stand in the log signed as they must be. In
a group without keys the kernel believes everybody, and so does a member. Nobody is believed who writes what the kernel
cannot read.
"""

from typing import NamedTuple

from msgspec import UNSET

from precede.udfs.holdback import SPACE
from precede.udfs.limits import Limits
from precede.udfs.member.knowledge import Knowledge
from precede.udfs.membership.keyring import SERVICE
from precede.udfs.records.messages import Heartbeat, Join, Message
from precede.udfs.records.signatures import is_by, read_key, signature_in
from precede.udfs.records.strict import Malformed
from precede.udfs.records.wire import read

_LIMITS = Limits()


class Said(NamedTuple):
    """What a record tells of its group's clock."""

    time: int
    speaks: bool
    """Whether it is a message; what only promises a time asks nobody for an answer."""


def hear(knowledge: Knowledge, group: str, value: bytes, *, above: int) -> Said | None:
    """What a raw record tells of the clock, None where it may not be believed, or tells of no time above this one."""
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
        return None  # not worth the time that looking at a signature takes
    if knowledge.has_keys:
        signature = signature_in(record)
        keys = _keys_of(knowledge, found)
        if signature is None or not any(is_by(key, signature, record) for key in keys):
            return None
        if isinstance(found, Join) and found.key is not UNSET:
            knowledge.take_key(found.sender, found.epoch, found.key)
    return Said(time, isinstance(found, Message)) if time > above else None


def _keys_of(knowledge: Knowledge, record: Message | Heartbeat | Join) -> list[bytes]:
    """The keys of which one must have signed this; by clocks a created group is closed, so nobody lets itself in."""
    name = record.sender
    if isinstance(record, Join):
        texts = [knowledge.newest_key(name), knowledge.newest_key(SERVICE)]
    else:
        texts = [knowledge.key_of(name, record.epoch)]  # type: ignore[arg-type]
    return [key for text in texts if (key := read_key(text)) is not None]
