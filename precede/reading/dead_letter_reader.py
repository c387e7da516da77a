"""Dead letters to look at or to publish again: read from their topic, or from the Delta table of them."""

import base64
import datetime
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from precede.ingest.extras import need
from precede.reading.delta_files import files_of
from precede.streaming.history.rows import Letter
from precede.udfs.errors import Refused, Unreachable
from precede.udfs.records.wire import LETTER_BYTES_MAX

if TYPE_CHECKING:
    from precede.streaming.job.settings import Settings

AGO = re.compile(r"(\d+) ?(s|min|h|d)")
SECONDS = {"s": 1, "min": 60, "h": 3600, "d": 86_400}
_read = msgspec.json.Decoder(Letter).decode


class Wanted(msgspec.Struct, frozen=True):
    """Which letters: every condition given must hold."""

    group: str | None = None
    codes: tuple[str, ...] = ()
    since_ms: int | None = None
    until_ms: int | None = None

    def takes(self, letter: Letter) -> bool:
        return (
            (self.group is None or letter.group == self.group)
            and (not self.codes or letter.code in self.codes)
            and (self.since_ms is None or letter.arrived_ms >= self.since_ms)
            and (self.until_ms is None or letter.arrived_ms < self.until_ms)
        )


class Found(msgspec.Struct):
    """A letter; what was read from the topic has its record's key too."""

    letter: Letter
    key: bytes | None = None


def moment_ms(text: str, now_ms: int) -> int | None:
    """`2h` is two hours ago; else a date or a time of ISO 8601, in UTC where it names no zone."""
    if ago := AGO.fullmatch(text):
        return now_ms - int(ago[1]) * SECONDS[ago[2]] * 1000
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        return None
    return round((moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)).timestamp() * 1000)


def from_topic(settings: "Settings", wanted: Wanted) -> Iterator[Found]:
    """Those in the topic up to its end as it is now, partition by partition."""
    from precede.ingest.kafka import reading
    from precede.ingest.kafka.reading import why_unreadable
    from precede.ingest.kafka.topics import describe

    topic = settings.dead_letter_topic
    try:
        known = describe(settings.bootstrap, [topic]).get(topic)
        if known is None:
            raise Refused(f"There is no topic {topic}; `precede run` makes it.")
        for key, value in reading.read_to_end(settings.bootstrap, topic, known.partitions):
            try:
                letter = _read(value or b"")
            except msgspec.DecodeError as error:
                raise Refused(f"The topic {topic} holds a record that is no dead letter: {error}.") from error
            if wanted.takes(letter):
                yield Found(letter, key)
    except Unreachable as error:
        raise why_unreadable(settings.bootstrap, topic, error) from error


def from_delta(settings: "Settings", wanted: Wanted) -> Iterator[Found]:
    """Those in the table, read without Spark and without Kafka."""
    need("delta", "Reading Delta tables")
    import pyarrow.dataset as ds
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError

    from precede.streaming.history import tables

    folder = tables.path(settings, tables.DEAD_LETTERS)
    try:
        table = DeltaTable(folder)
    except (DeltaError, OSError) as error:
        raise Refused(f"There is no Delta table of dead letters in {folder}; look into the topic instead.") from error
    columns = list(Letter.__struct_fields__)
    rows = table.to_pyarrow_dataset(filesystem=files_of(folder))
    for batch in rows.to_batches(columns=columns, filter=_condition(ds.field, wanted)):
        for row in batch.to_pylist():
            yield Found(Letter(**{**row, "truncated": bool(row["truncated"])}))


def _condition(field: Any, wanted: Wanted) -> Any:
    """The same as `takes`, for the table to skip files by; none where all are wanted."""
    conditions = []
    if wanted.group is not None:
        conditions.append(field("group") == wanted.group)
    if wanted.codes:
        conditions.append(field("code").isin(list(wanted.codes)))
    if wanted.since_ms is not None:
        conditions.append(field("arrived_ms") >= wanted.since_ms)
    if wanted.until_ms is not None:
        conditions.append(field("arrived_ms") < wanted.until_ms)
    whole = None
    for condition in conditions:
        whole = condition if whole is None else whole & condition
    return whole


def value_of(found: Found) -> bytes | None:
    """The raw value; refused where only the beginning of it, or of its key, is there."""
    letter = found.letter
    if letter.truncated or len(found.key or b"") >= LETTER_BYTES_MAX:
        raise Refused(
            f"The record from partition {letter.partition} offset {letter.offset} is kept in part only (64 KiB), so it "
            "cannot be published again from here; publish it from where it came."
        )
    if letter.value_base64 is not None:
        return base64.b64decode(letter.value_base64)
    return None if letter.value is None else letter.value.encode()
