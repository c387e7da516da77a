"""The ordered record as readers see it (contract, section 4); outbox.py in the kernel writes it."""

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
