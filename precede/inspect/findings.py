"""What is found about one message in records: its deliveries, its refusals, its copies.

`TracedKernel` runs the kernel over raw records and finds what comes out. What is settled below the horizon is looked up
in the Delta tables, or by reading the topics.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec
from confluent_kafka import KafkaException

from precede.ingest.extras import is_there
from precede.ingest.kafka import clients
from precede.ingest.kafka.reading import REQUEST_S, TopicReader
from precede.inspect.knowledge import Tell
from precede.udfs.errors import Refused, Unreachable
from precede.udfs.holdback import Holdback
from precede.udfs.partitioner import partition_of
from precede.udfs.records.messages import Id, LogRecord
from precede.udfs.records.published import OrderedRecord, lenient_reader

if TYPE_CHECKING:
    from precede.reading.from_delta import Condition, DeltaRows
    from precede.streaming.settings import Settings


class FoundRefusal(msgspec.Struct, kw_only=True):
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


class Letter(FoundRefusal, kw_only=True):
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
        self.refusals: list[FoundRefusal] = []
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
        refusal = FoundRefusal(**{name: getattr(letter, name) for name in FoundRefusal.__struct_fields__})
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


class TracedKernel:
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


STEP_RECORDS = 50_000
"""A topic is read from its end backwards, first so many records and then twice as many at each step, because people
mostly ask for what was not long ago."""
NEW_RECORDS = 1_000
"""The first step where a Delta table has all but the newest records."""
CLOCKS_APART_MS_MAX = 60_000
"""By how much the clock of the job, which dates dead letters, may be behind the one of the raw log."""
TELL_EVERY = 20_000
LETTER_COLUMNS = (
    *("code", "reason", "group", "sender", "epoch", "seq"),
    *("destination", "partition", "offset", "arrived_ms", "value"),
)


def from_delta(settings: "Settings", findings: Findings) -> "DeltaRows | None":
    """Look into the Delta tables; the one of the dead letters, if it is there."""
    if not is_there("delta"):
        return None
    import msgspec
    from deltalake.exceptions import DeltaError, TableNotFoundError

    from precede.reading.from_delta import DeltaRows

    name, _, seq = findings.id
    conditions: list[Condition] = [("group", "=", findings.group), ("sender", "=", name), ("seq", "=", seq)]
    letter = ", ".join(f'"{column}"' for column in LETTER_COLUMNS)
    letters: DeltaRows | None = None
    for table, columns in (("deliveries", '"record"'), ("dead_letters", letter)):
        try:
            opened = DeltaRows(settings.delta_place / table, settings.storage_options)
        except TableNotFoundError:
            continue
        except (DeltaError, OSError) as error:
            raise Refused(f"The Delta tables in {settings.delta} cannot be read: {error}.") from error
        if table == "dead_letters":
            letters = opened
        for row in opened.select(columns, *conditions, then='ORDER BY "offset", "destination"'):
            if table == "deliveries":
                findings.take_ordered(row["record"].encode())
            else:
                findings.take_letter(msgspec.json.encode(row))
    return letters


def from_ordered(settings: "Settings", findings: Findings, *, every: bool, tell: Tell) -> None:
    """Read the partition of the group in the ordered topic until the message is found; with `every`, all of it."""
    topic = settings.ordered_topic

    def is_done() -> bool:
        return bool(findings.deliveries) and not every

    for record in _backwards(settings, topic, findings.key, tell, is_done, step=STEP_RECORDS):
        if record.key == findings.key:
            findings.take_ordered(record.value or b"")


def from_dead_letters(
    settings: "Settings", findings: Findings, *, table: "DeltaRows | None", since_ms: int | None, tell: Tell
) -> None:
    """Read the partition of the group in the dead-letter topic, from the end back to this time, or all of it.

    Where there is a table, only back to what is in it: Delta gets the records of a partition in their order.
    """
    read_to_ms = math.inf
    oldest: LogRecord | None = None

    def is_done() -> bool:
        is_too_old = since_ms is not None and read_to_ms < since_ms - CLOCKS_APART_MS_MAX
        return is_too_old or (table is not None and oldest is not None and _has(table, oldest.value))

    step = STEP_RECORDS if table is None else NEW_RECORDS
    for record in _backwards(settings, settings.dead_letter_topic, findings.key, tell, is_done, step=step):
        if oldest is None or record.offset < oldest.offset:
            oldest = record
        read_to_ms = min(read_to_ms, record.timestamp_ms)
        if record.key == findings.key:
            findings.take_letter(record.value or b"")


def _has(table: "DeltaRows", value: bytes | None) -> bool:
    """Whether the table has this dead letter."""
    letter = letter_of(value)
    if letter is None:
        return False
    names = ("arrived_ms", "partition", "offset", "code", "group", "destination")
    known = {name: getattr(letter, name) for name in names}
    conditions: list[Condition] = [(name, "=", found) for name, found in known.items() if found is not None]
    return any(table.select('"offset"', *conditions, then="LIMIT 1"))


def raw_record(settings: "Settings", topic: str, partition: int, offset: int) -> LogRecord | None:
    """The record at this place; None where the topic no longer has it."""
    with _opened(settings, topic) as reader:
        reader.assign(topic, {partition: offset})
        for one in _polled(reader, topic):
            return one if one.offset == offset else None
    return None


def _backwards(
    settings: "Settings",
    topic: str,
    key: bytes,
    tell: Tell,
    is_done: Callable[[], bool],
    *,
    step: int,
) -> Iterator[LogRecord]:
    """The records of a group's partition in one of the topics that the job writes, the last step first."""
    with _opened(settings, topic) as reader:
        partitions = reader.partitions(topic, REQUEST_S)
        if not partitions:
            return
        partition = partition_of(key, len(partitions))
        first, stop = reader.ends(topic, [partition], REQUEST_S)[partition]
        end, count = stop, 0
        while stop > first and not is_done():
            start = max(first, stop - step)
            reader.assign(topic, {partition: start})
            for record in _polled(reader, topic):
                if record.offset >= stop:
                    break
                count += 1
                yield record
                if count % TELL_EVERY == 0:
                    tell(f"partition {partition} of {topic}", count / (end - first))
            stop, step = start, 2 * step


def _polled(reader: TopicReader, topic: str) -> Iterator[LogRecord]:
    """The records from where the reader is to the end of the partition."""
    while True:
        found = reader.poll(REQUEST_S)
        if not found:
            raise Unreachable(f"Kafka sent nothing of {topic} for {REQUEST_S:g} s.")
        for one in found:
            if not isinstance(one, LogRecord):
                return
            yield one


@contextmanager
def _opened(settings: "Settings", topic: str) -> Iterator[TopicReader]:
    reader = TopicReader(settings.bootstrap, patient=False, wait_ms=10)
    try:
        yield reader
    except KafkaException as error:
        raise clients.unreadable(settings.bootstrap, topic, error.args[0]) from error
    finally:
        reader.close()
