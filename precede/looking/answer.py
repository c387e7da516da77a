"""The answer of `precede why`: what became of one message. Its fields are stable; `str()` tells it in words."""

from typing import Literal

import msgspec

from precede.looking.findings import Copy, Refusal
from precede.udfs.engine.inspection import AwaitedAt, AwaitedGap
from precede.udfs.records.messages import Id

End = Literal["delivered", "held", "refused", "abandoned", "missing", "unseen"]


class Cause(msgspec.Struct, kw_only=True):
    """The raw record that let a message go, or gave it up."""

    kind: str | None
    """`message`, `tick`, `abandon`, ...; None where the raw topic no longer has the record."""
    sender: str | None = None
    id: Id | None = None
    """Of a message."""
    given_up: list[tuple[str, int, int, int]] = []
    """Of an `abandon`: sender, epoch, first and last seq of each range."""


class Delivery(msgspec.Struct, kw_only=True):
    """One place in the sequence; in `causal_p2p` there is one for each destination."""

    position: int
    destination: str | None
    status: str
    """`delivered`, or `abandoned` for the record that stands for the message."""
    partition: int
    """With `offset` the place in the raw topic: of the message, or of the `abandon` that gave it up."""
    offset: int
    arrived_ms: int
    released_offset: int
    released_ms: int
    cause: Cause
    """The record at `released_offset`."""
    is_published: bool
    """Whether the job has written it to the ordered topic already."""


class Answer(msgspec.Struct, kw_only=True):
    """What became of one message."""

    group: str
    sender: str
    epoch: int
    seq: int
    end: End
    order: str | None
    """The order of the group; None where nothing of it was ever accepted."""
    deliveries: list[Delivery] = []
    arrived_ms: int | None = None
    """Where it is held: when it arrived, and at which offset of the raw topic."""
    offset: int | None = None
    waits: list[AwaitedAt] = []
    """Where it is held: what for."""
    behind: Id | None = None
    """Where it is held: the held message that has to go before it."""
    gaps: list[AwaitedGap] = []
    """Where it is held: what is missing. Where it is missing: the gap it lies in, with the messages that wait."""
    gives_up_ms: int | None = None
    """Where it is held: when the job abandons it; None where that does not come by itself."""
    refusals: list[Refusal] = []
    """Its dead letters, by offset."""
    copies: list[Copy] = []
    """Its copies behind the horizon, which were dropped."""
    highest: int = 0
    """The largest seq seen of this sender and epoch; 0 where none was."""
    fence: int | None = None
    """No seq of this sender and epoch above this counts."""
    partition: int
    """The raw partition of the group."""
    next_offset: int
    """The answer takes all raw records of the partition below this offset into account."""
    behind_job: int = 0
    """How many raw records the job has not published yet."""
    looked_ms: int
    """When this was answered, by the clock of this machine."""

    @property
    def id(self) -> Id:
        return self.sender, self.epoch, self.seq

    def __str__(self) -> str:
        from precede.looking.answer_text import text

        return text(self, self.looked_ms)
