"""What the demo observes in the two topics: what arrived, what is held and why, what was delivered.

A second kernel, the same that the stream runs, gets the same raw records here: only a kernel knows what a held message
waits for. That both produce the same bytes is one of the things the demo shows.
"""

from dataclasses import dataclass, field

import msgspec

from precede.reading.delivery import Delivery
from precede.udfs.engine.held import Held
from precede.udfs.holdback import Holdback
from precede.udfs.records.messages import Id, LogRecord


class _Sent(msgspec.Struct):
    """The fields of a raw record that the view needs."""

    sender: str = ""
    epoch: int = 0
    seq: int = 0
    kind: str = "message"
    data: str = ""


@dataclass(frozen=True)
class Arrival:
    """One raw record, and what happened to it on arrival."""

    id: Id
    text: str
    fate: str  # "delivered", "held" or "copy"
    freed: int  # how many other messages it released


@dataclass
class DemoWatch:
    """Everything seen so far."""

    group: str
    holdback: Holdback = field(default_factory=Holdback)
    records: list[LogRecord] = field(default_factory=list)
    arrivals: list[Arrival] = field(default_factory=list)
    texts: dict[Id, str] = field(default_factory=dict)
    expected: list[bytes] = field(default_factory=list)  # the kernel's output for the raw records
    deliveries: list[Delivery] = field(default_factory=list)  # what the stream wrote
    dead_letters: int = 0

    def arrive(self, record: LogRecord) -> Arrival | None:
        """Take a raw record; returns None if it is not a message."""
        self.records.append(record)
        copies = self.holdback.duplicates
        self.holdback.receive(*record)
        freed = len(self.holdback.ordered)
        self.expected += self.holdback.ordered
        self.dead_letters += len(self.holdback.dead)
        self.holdback.clear()
        sent = msgspec.json.decode(record.value or b"{}", type=_Sent)
        if sent.kind != "message":
            return None
        id_ = (sent.sender, sent.epoch, sent.seq)
        self.texts[id_] = sent.data
        fate = "copy" if self.holdback.duplicates > copies else "delivered" if freed else "held"
        self.arrivals.append(Arrival(id_, sent.data, fate, max(0, freed - 1)))
        return self.arrivals[-1]

    def deliver(self, delivery: Delivery) -> None:
        """Take an ordered record."""
        self.deliveries.append(delivery)

    def held(self) -> list[Held]:
        return list(self.holdback.held(self.group))

    @property
    def complete(self) -> bool:
        """Whether the stream has written all that is deliverable so far."""
        return len(self.deliveries) >= len(self.expected)

    @property
    def agreed(self) -> bool:
        """Whether the stream has so far written the same bytes as the kernel here."""
        return [delivery.record for delivery in self.deliveries] == self.expected[: len(self.deliveries)]

    @property
    def contiguous(self) -> bool:
        return [delivery.position for delivery in self.deliveries] == list(range(1, len(self.deliveries) + 1))

    @property
    def waited(self) -> list[Delivery]:
        """The deliveries that were held first."""
        return [delivery for delivery in self.deliveries if delivery.released_offset != delivery.offset]

    def dump(self) -> bytes:
        """The raw log as `precede replay` reads it."""
        return b"".join(
            msgspec.json.encode(
                {
                    "key": None if record.key is None else record.key.decode(),
                    "value": None if record.value is None else record.value.decode(),
                    "partition": record.partition,
                    "offset": record.offset,
                    "timestamp_ms": record.timestamp_ms,
                }
            )
            + b"\n"
            for record in self.records
        )
