"""Reads dead letters, to list or republish them, from their topic or from their Delta table."""

import base64
import datetime
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

from precede.ingest.extras import need
from precede.udfs.errors import Refused, Unreachable
from precede.udfs.records.published import EXCERPT_BYTES_MAX, LetterFields

if TYPE_CHECKING:
    from precede.reading.from_delta import Condition
    from precede.streaming.settings import Settings

AGO = re.compile(r"(\d+) ?(s|min|h|d)")
SECONDS = {"s": 1, "min": 60, "h": 3600, "d": 86_400}
_read = msgspec.json.Decoder(LetterFields).decode


class LetterFilter(msgspec.Struct, frozen=True):
    """Which dead letters to read: every given condition must hold."""

    group: str | None = None
    codes: tuple[str, ...] = ()
    since_ms: int | None = None
    until_ms: int | None = None

    def matches(self, letter: LetterFields) -> bool:
        return (
            (self.group is None or letter.group == self.group)
            and (not self.codes or letter.code in self.codes)
            and (self.since_ms is None or letter.arrived_ms >= self.since_ms)
            and (self.until_ms is None or letter.arrived_ms < self.until_ms)
        )


class FoundLetter(msgspec.Struct):
    """A dead letter; from the topic, with the key of its record."""

    letter: LetterFields
    key: bytes | None = None


def moment_ms(text: str, now_ms: int) -> int | None:
    """`2h` means two hours ago; otherwise a date or time in ISO 8601, in UTC unless it names a zone."""
    if ago := AGO.fullmatch(text):
        return now_ms - int(ago[1]) * SECONDS[ago[2]] * 1000
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        return None
    return round((moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)).timestamp() * 1000)


def from_topic(settings: "Settings", wanted: LetterFilter) -> Iterator[FoundLetter]:
    """The matching dead letters up to the topic's current end, partition by partition."""
    from precede.ingest.kafka import reading
    from precede.ingest.kafka.reading import why_unreadable
    from precede.ingest.kafka.topics import describe

    topic = settings.dead_letter_topic
    try:
        known = describe(settings.bootstrap, [topic]).get(topic)
        if known is None:
            raise Refused(f"There is no topic {topic}; `precede run` creates it.")
        for key, value in reading.read_to_end(settings.bootstrap, topic, known.partitions):
            try:
                letter = _read(value or b"")
            except msgspec.DecodeError as error:
                raise Refused(f"The topic {topic} holds a record that is no dead letter: {error}.") from error
            if wanted.matches(letter):
                yield FoundLetter(letter, key)
    except Unreachable as error:
        raise why_unreadable(settings.bootstrap, topic, error) from error


def from_delta(settings: "Settings", wanted: LetterFilter) -> Iterator[FoundLetter]:
    """The matching dead letters in the table, read without Spark or Kafka."""
    need("delta", "Reading Delta tables")
    from deltalake.exceptions import DeltaError

    from precede.reading.from_delta import DeltaRows
    from precede.streaming.history import tables

    folder = tables.path(settings, tables.DEAD_LETTERS)
    try:
        table = DeltaRows(folder, settings.storage_options)
    except (DeltaError, OSError) as error:
        raise Refused(f"There is no Delta table of dead letters in {folder}; read the topic instead.") from error
    columns = ", ".join(f'"{name}"' for name in LetterFields.__struct_fields__)
    for row in table.select(columns, *_conditions(wanted)):
        yield FoundLetter(LetterFields(**{**row, "truncated": bool(row["truncated"])}))


def _conditions(wanted: LetterFilter) -> "list[Condition]":
    """The same as `matches`, so that the table can skip files."""
    conditions: list[Condition] = []
    if wanted.group is not None:
        conditions.append(("group", "=", wanted.group))
    if wanted.codes:
        conditions.append(("code", "IN", wanted.codes))
    if wanted.since_ms is not None:
        conditions.append(("arrived_ms", ">=", wanted.since_ms))
    if wanted.until_ms is not None:
        conditions.append(("arrived_ms", "<", wanted.until_ms))
    return conditions


def value_of(found: FoundLetter) -> bytes | None:
    """The raw value; raises Refused if only the beginning of it, or of its key, was kept."""
    letter = found.letter
    if letter.truncated or len(found.key or b"") >= EXCERPT_BYTES_MAX:
        raise Refused(
            f"The record from partition {letter.partition} offset {letter.offset} is kept in part only (64 KiB), so it "
            "cannot be published again from here; publish it from its origin."
        )
    if letter.value_base64 is not None:
        return base64.b64decode(letter.value_base64)
    return None if letter.value is None else letter.value.encode()
