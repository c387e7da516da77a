"""Copies of membership records: several gateways may bring the same `create`, `join`, `leave` or `evict`.

A record that repeats, byte for byte, the last one of its kind that took effect is a copy. The kind is taken for the
group (`create`), for the name (`join`), or for the member and epoch (`leave`, `evict`).
"""

from zlib import crc32

from precede.udfs.engine.group import Group
from precede.udfs.engine.state import MembershipKind
from precede.udfs.records.messages import Create, Evict, Join, Leave, Record

CREATE, JOIN, LEAVE, EVICT = range(4)


def is_copy(group: Group, record: Record, value: bytes) -> bool:
    """Whether the last record of this kind that took effect had the same bytes."""
    kind = _kind_of(record)
    return kind is not None and group.took_effect.get(kind) == crc32(value)


def note(group: Group, record: Record, value: bytes) -> None:
    """This record took effect."""
    kind = _kind_of(record)
    if kind is not None:
        group.took_effect[kind] = crc32(value)


def _kind_of(record: Record) -> MembershipKind | None:
    match record:
        case Create():
            return CREATE, "", 0
        case Join():
            return JOIN, record.sender, 0
        case Leave():
            return LEAVE, record.sender, record.epoch
        case Evict():
            return EVICT, *record.member
    return None
