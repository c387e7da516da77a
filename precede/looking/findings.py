"""What is found about one message in records: its deliveries, its refusals, its copies.

Pure: records come in, and what concerns the message is kept. `Trace` runs the kernel over raw records and finds what
comes out; `Findings` also takes the records of the ordered and the dead-letter topic, or rows of their tables.
"""

import msgspec

from precede.udfs.holdback import Holdback
from precede.udfs.records.messages import Id, LogRecord
from precede.udfs.records.published import OrderedRecord, lenient_reader


class Refusal(msgspec.Struct, kw_only=True):
    """A dead letter of the message."""

    code: str
    reason: str
    partition: int
    offset: int
    arrived_ms: int
    destination: str | None = None


class Copy(msgspec.Struct, kw_only=True):
    """An exact copy, which was dropped."""

    partition: int
    offset: int
    arrived_ms: int


class Letter(Refusal, kw_only=True):
    """The fields of a dead letter that say which it is, and of which message."""

    group: str | None = None
    sender: str | None = None
    epoch: int | None = None
    seq: int | None = None
    value: str | None = None


class Head(msgspec.Struct, kw_only=True):
    """The fields of a raw record that say what it is."""

    kind: str = "message"
    group: str | None = None
    sender: str | None = None
    epoch: int = 0
    seq: int | None = None
    ids: list[tuple[str, int, int, int]] = []
    """Of an `abandon`."""


_read_ordered = lenient_reader(OrderedRecord)
_read_letter = lenient_reader(Letter)
_read_head = lenient_reader(Head)


def head_of(value: bytes | None) -> Head | None:
    """What a raw record is; None where it cannot be read."""
    try:
        return _read_head(value or b"")
    except msgspec.DecodeError:
        return None


def letter_of(value: bytes | None) -> Letter | None:
    """What a dead letter is; None where it cannot be read."""
    try:
        return _read_letter(value or b"")
    except msgspec.DecodeError:
        return None


class Findings:
    """What was found about one message."""

    def __init__(self, group: str, id_: Id) -> None:
        self.group = group
        self.key = group.encode()
        self.id = id_
        self.deliveries: list[OrderedRecord] = []
        self.refusals: list[Refusal] = []
        self.copies: list[Copy] = []

    def take_ordered(self, value: bytes) -> bool:
        """Take an ordered record of the group; whether it is the message's, or stands for it."""
        try:
            record = _read_ordered(value)
        except msgspec.DecodeError:
            return False
        found = record.kind == "message" and self._is_it(record.group, record.sender, record.epoch, record.seq)
        if found and record not in self.deliveries:
            self.deliveries.append(record)
        return found

    def take_letter(self, value: bytes) -> bool:
        """Take a dead letter; whether it is one of the message."""
        letter = letter_of(value)
        if letter is None or not self._is_it(letter.group, letter.sender, letter.epoch, letter.seq):
            return False
        head = head_of(None if letter.value is None else letter.value.encode())
        if head is not None and head.kind != "message":
            return False  # the seq of a heartbeat is the next one
        refusal = Refusal(**{name: getattr(letter, name) for name in Refusal.__struct_fields__})
        if refusal not in self.refusals:
            self.refusals.append(refusal)
        return True

    def take_copy(self, record: LogRecord) -> None:
        """Take a raw record that the kernel dropped as a copy."""
        head = head_of(record.value)
        is_message = head is not None and head.kind == "message"
        if is_message and self._is_it(head.group, head.sender, head.epoch, head.seq):  # type: ignore[union-attr]
            self.copies.append(Copy(partition=record.partition, offset=record.offset, arrived_ms=record.timestamp_ms))

    def _is_it(self, group: str | None, sender: str | None, epoch: int | None, seq: int | None) -> bool:
        return group == self.group and (sender, epoch or 0, seq) == self.id


class Trace:
    """Runs a kernel over the raw records of the message's partition, and finds what becomes of it."""

    def __init__(self, holdback: Holdback, findings: Findings) -> None:
        self._holdback = holdback
        self._findings = findings

    def receive(self, record: LogRecord) -> None:
        """Take the next raw record; only those of the group and those without a key matter."""
        if record.key is not None and record.key != self._findings.key:
            return
        holdback = self._holdback
        duplicates = holdback.duplicates
        holdback.receive(record.value, record.key, record.partition, record.offset, record.timestamp_ms)
        for value in holdback.ordered:
            self._findings.take_ordered(value)
        for value in holdback.dead:
            self._findings.take_letter(value)
        if holdback.duplicates != duplicates:
            self._findings.take_copy(record)
        holdback.clear()
