"""From the bytes of the output topics to the columns of the tables; runs in executors on batches of records."""

import gc
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias, TypeVar

import msgspec
import pyarrow as pa
from msgspec import UNSET, Raw, UnsetType

from precede.udfs.errors import Refused
from precede.udfs.records.messages import Id
from precede.udfs.records.published import GapRecord, LetterFields, OrderedRecord, lenient_reader

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1
DAY_MS = 86_400_000
TIMESTAMP = pa.timestamp("us", tz="UTC")
ID = pa.struct([("sender", pa.string()), ("epoch", pa.int32()), ("seq", pa.int64())])

Arrays: TypeAlias = dict[str, Any]
Row = TypeVar("Row")


class DeliveryFields(OrderedRecord, kw_only=True, gc=False):
    """The fields of an ordered record that have columns; everything else stays inside `record`."""

    data: Raw | UnsetType = UNSET


_read_delivery = lenient_reader(DeliveryFields)
_read_letter = lenient_reader(LetterFields)
_read_gap = lenient_reader(GapRecord)


def deliveries(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Ordered records as rows of `deliveries`."""
    return map(_without_collector(_deliveries), batches)


def dead_letters(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Dead letters as rows of `dead_letters`."""
    return map(_without_collector(_dead_letters), batches)


def _deliveries(batch: pa.RecordBatch) -> pa.RecordBatch:
    values = batch.column(0)
    return pa.RecordBatch.from_pydict(_delivery_columns(_read_all(values, _read_delivery), values))


def _dead_letters(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(_letter_columns(_read_all(batch.column(0), _read_letter)))


def _without_collector(convert: Callable[[pa.RecordBatch], pa.RecordBatch]) -> Callable[..., pa.RecordBatch]:
    """Conversions make no reference cycles, and looking for cycles among so many lists takes a third of their time."""

    def converted(batch: pa.RecordBatch) -> pa.RecordBatch:
        gc.disable()
        try:
            return convert(batch)
        finally:
            gc.enable()

    return converted


def gaps(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Records of the control topic as rows of `gaps`; there may be several rows for one gap."""
    for batch in batches:
        yield pa.RecordBatch.from_pydict(_gap_columns(_read_all(batch.column(0), _read_gap)))


def _read_all(values: Any, read: Callable[[bytes], Row]) -> list[Row]:
    try:
        return [read(value) for value in values.to_pylist()]
    except msgspec.DecodeError as error:
        raise Refused(f"An output topic holds a record that precede did not write: {error}.") from error


def _delivery_columns(rows: list[DeliveryFields], values: Any) -> Arrays:
    string, int32, int64 = pa.string(), pa.int32(), pa.int64()
    arrived = pa.array([row.arrived_ms for row in rows], int64)
    return {
        "group": pa.array([row.group for row in rows], string),
        "position": pa.array([row.position for row in rows], int64),
        "destination": pa.array([row.destination for row in rows], string),
        "sender": pa.array([row.sender for row in rows], string),
        "epoch": pa.array([_epoch(row) for row in rows], int32),
        "seq": pa.array([row.seq if row.kind == "message" else None for row in rows], int64),
        "kind": pa.array([row.kind for row in rows], string),
        "after": _ids([row.after for row in rows]),
        "order": pa.array([row.order for row in rows], string),
        "status": pa.array([row.status for row in rows], string),
        "data": pa.array([None if row.data is UNSET else bytes(row.data) for row in rows], pa.binary()).cast(string),
        "record": values.cast(string),
        "partition": pa.array([row.partition for row in rows], int32),
        "offset": pa.array([row.offset for row in rows], int64),
        "arrived_at": _timestamp(arrived),
        "released_offset": pa.array([row.released_offset for row in rows], int64),
        "released_at": _timestamp(pa.array([row.released_ms for row in rows], int64)),
        "day": _day(arrived),
    }


def _letter_columns(rows: list[LetterFields]) -> Arrays:
    string, int32, int64 = pa.string(), pa.int32(), pa.int64()
    arrived = pa.array([row.arrived_ms for row in rows], int64)
    return {
        "code": pa.array([row.code for row in rows], string),
        "reason": pa.array([row.reason for row in rows], string),
        "group": pa.array([row.group for row in rows], string),
        "sender": pa.array([row.sender for row in rows], string),
        "epoch": pa.array([_if_fits(row.epoch, INT_MAX) for row in rows], int32),
        "seq": pa.array([_if_fits(row.seq, LONG_MAX) for row in rows], int64),
        "destination": pa.array([row.destination for row in rows], string),
        "partition": pa.array([row.partition for row in rows], int32),
        "offset": pa.array([row.offset for row in rows], int64),
        "arrived_ms": arrived,
        "value": pa.array([row.value for row in rows], string),
        "value_base64": pa.array([row.value_base64 for row in rows], string),
        "truncated": pa.array([row.truncated for row in rows], pa.bool_()),
        "arrived_at": _timestamp(arrived),
        "day": _day(arrived),
    }


def _gap_columns(rows: list[GapRecord]) -> Arrays:
    string, int32, int64 = pa.string(), pa.int32(), pa.int64()
    opened = pa.array([row.opened_ms for row in rows], int64)
    return {
        "group": pa.array([row.group for row in rows], string),
        "sender": pa.array([row.sender for row in rows], string),
        "epoch": pa.array([row.epoch for row in rows], int32),
        "first": pa.array([row.first for row in rows], int64),
        "last": pa.array([row.last for row in rows], int64),
        "state": pa.array(["open" if row.kind == "ask" else row.kind for row in rows], string),
        "opened_at": _timestamp(opened),
        "asked": pa.array([row.asked for row in rows], int32),
        "asked_at": _timestamp(pa.array([row.asked_ms for row in rows], int64)),
        "closed_at": _timestamp(pa.array([row.closed_ms for row in rows], int64)),
        "waited": _ids([row.waited for row in rows]),
        "partition": pa.array([row.partition for row in rows], int32),
        "offset": pa.array([row.offset for row in rows], int64),
        "day": _day(opened),
    }


def _epoch(row: DeliveryFields) -> int | None:
    """0 where the sender left it out; None where there is no sender."""
    return 0 if row.epoch is None and row.sender is not None else row.epoch


def _if_fits(number: int | None, most: int) -> int | None:
    """A refused record may have any number; one that does not fit into the column is only in `value`."""
    return number if number is not None and -most <= number <= most else None


def _ids(lists: Sequence[list[Id] | None]) -> Any:
    """A column of lists of ids, built from flat lists: ten times faster than from nested ones."""
    ends = [0]
    flat: list[Id] = []
    for ids in lists:
        if ids:
            flat += ids
        ends.append(len(flat))
    senders, epochs, seqs = zip(*flat, strict=True) if flat else ((), (), ())
    fields = [pa.array(senders, pa.string()), pa.array(epochs, pa.int32()), pa.array(seqs, pa.int64())]
    is_null = pa.array([ids is None for ids in lists], pa.bool_())
    return pa.ListArray.from_arrays(
        pa.array(ends, pa.int32()), pa.StructArray.from_arrays(fields, fields=list(ID)), mask=is_null
    )


def _timestamp(milliseconds: Any) -> Any:
    return milliseconds.cast(pa.timestamp("ms", tz="UTC")).cast(TIMESTAMP)


def _day(milliseconds: Any) -> Any:
    import pyarrow.compute as pc

    return pc.divide(milliseconds, DAY_MS).cast(pa.int32()).cast(pa.date32())
