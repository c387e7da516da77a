"""The ordered record as its readers take it (contract, section 4); what it is made of is the kernel's (outbox.py)."""

import msgspec

from precede.udfs.records.messages import Id


class OrderedRecord(msgspec.Struct, kw_only=True, gc=False):
    """All but the application's `data`, and the stamps of the orders; who needs more of it says so."""

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
