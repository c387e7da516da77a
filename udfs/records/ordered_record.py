"""The ordered record as readers see it (contract, section 4); outbox.py in the kernel writes it."""

from typing import NamedTuple

import msgspec

from precede.udfs.records.messages import Id


class OrderedRecord(msgspec.Struct, kw_only=True, gc=False):
    """The fields most readers need, without `data` and the stamps; subclasses add what else they need."""

    group: str
    position: int
    order: str
    status: str
    partition: int
    offset: int
    arrived_ms: int
    released_offset: int
    released_ms: int
    sender: str | None = None
    epoch: int | None = None
    seq: int | None = None
    kind: str = "message"
    after: list[Id] | None = None
    destination: str | None = None


class RecordTimes(NamedTuple):
    """Where and when the log took the record, and the one whose arrival let it go."""

    offset: int
    arrived_ms: int
    released_offset: int
    released_ms: int


TIMES_BYTES_MAX = 160
"""More than these four fields take, which stand last."""


def read_times(value: bytes) -> RecordTimes:
    """The times of an ordered record, without reading the rest of it. Raises ValueError for other bytes."""
    _, *fields = value[-TIMES_BYTES_MAX:-1].rsplit(b",", 4)
    offset, arrived_ms, released_offset, released_ms = [int(field[field.rindex(b":") + 1 :]) for field in fields]
    return RecordTimes(offset, arrived_ms, released_offset, released_ms)
