"""The publisher's half of an order: what one member keeps so that it can stamp what it says.

It does no I/O, like the rest of the kernel: the caller hands over each delivered record once, in order, and sends the
fields that it gets. Everything that is kept is plain data, so that it can be saved: a member that has lost it takes a
new epoch.
"""

from collections.abc import Callable, Mapping
from typing import Any

from precede.udfs.records.messages import Id, Who


class Stamps:
    """A member's own count, and how much of each sender was delivered to it."""

    def __init__(self, name: str, epoch: int = 0, of_draft: Callable[..., dict[str, Any]] | None = None) -> None:
        self.of_draft = of_draft
        self.name = name
        self.epoch = epoch
        self.observes = of_draft is None
        """Whether what is delivered here moves these stamps; where a draft decides all, nothing does."""
        self.time = 0
        """The linear time of the next message; 0 where the order has no clock."""
        self.seq = 0
        """The last seq this member used."""
        self.delivered: dict[Who, int] = {}
        """Of each (sender, epoch) the highest seq that was delivered here."""

    def stamp(self, *, after: list[Id] | None = None, to: list[str] | None = None, clock_ms: int = 0) -> dict[str, Any]:
        """Take the next seq for a draft and return the fields of its record, without `group` and `data`."""
        fields = self.next_fields(after=after or [], to=to or [], clock_ms=clock_ms)
        return {"sender": self.name, "epoch": self.epoch, "seq": self.seq, **fields}

    def next_fields(self, *, after: list[Id], to: list[str], clock_ms: int) -> dict[str, Any]:
        """Take the next seq for a draft and return the fields that its record has beside its id."""
        self.seq += 1
        return self.fields(after=after, to=to, clock_ms=clock_ms)

    def fields(self, *, after: list[Id], to: list[str], clock_ms: int) -> dict[str, Any]:
        """The stamp of the message that has the seq just taken."""
        return {} if self.of_draft is None else self.of_draft(after=after)

    def heartbeat(self, *, clock_ms: int = 0) -> dict[str, Any]:
        """A sign of life: the fields of its record, without `group`."""
        return {"kind": "heartbeat", "sender": self.name, "epoch": self.epoch, "seq": self.seq + 1}

    def observe(self, record: Mapping[str, Any]) -> None:
        """A record was delivered here (contract, section 4); this counts for the member's own records too."""
        if record.get("kind", "message") == "message":
            who = (record["sender"], record.get("epoch", 0))
            self.delivered[who] = max(self.delivered.get(who, 0), record["seq"])

    def catch_up(self, time: int) -> None:
        """A record with this linear time was seen."""

    def keep_to(self, time: int) -> None:
        """Go back to this time if the clock is above it: what moved it there may not have counted."""

    def dump(self) -> dict[str, Any]:
        """Everything that is kept, as plain data."""
        delivered = [[name, epoch, seq] for (name, epoch), seq in self.delivered.items()]
        return {"seq": self.seq, "delivered": delivered}

    def load(self, dumped: Mapping[str, Any]) -> None:
        """Take what `dump` returned."""
        self.seq = dumped["seq"]
        self.delivered = {(name, epoch): seq for name, epoch, seq in dumped["delivered"]}
