"""The one function Spark calls: a shard's new records and its state go in, packed rows and the next state come out.

A shard holds many groups. Its state is one binary blob with a version in front, and Spark never sees what is inside:
group key -> snapshot, each snapshot decoded only when its group is touched and encoded again only then.

Rows leave packed, up to about a mebibyte of records in one: between here and the driver a row costs more than a record.
A packed row names the raw partition and the last raw offset behind it, and for each record the offset that released it,
so that the publisher can leave out what it has published already.
"""

import gc
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pandas as pd

from precede.udfs.errors import Refused
from precede.udfs.holdback import Holdback
from precede.udfs.limits import Limits
from precede.udfs.partitioner import DEFAULT_PARTITIONER
from precede.udfs.records.job_records import JobRecord
from precede.udfs.ticks.patience import Patience

if TYPE_CHECKING:
    from pyspark.sql.streaming.state import GroupState

HOME_SHARD = 0
"""Where records without a key are refused."""

STATE_VERSION = 2
"""Version 1 lacked what the groups wait for; it is known of each group again once the group is touched."""

STATE_TYPE = "blob binary"
ROW_TYPE = "shard int, part int, partition int, offset long, bytes int, records binary"

ROWS_MAX = 8192  # records in a packed row
BYTES_MAX = 1024 * 1024  # bytes of records in a packed row; the last record may reach over it
FRAME_BYTES_MAX = 16 * 1024 * 1024  # bytes of packed rows handed to Spark in one frame

Row = tuple[int, int, bytes | None, bytes | None, int]
"""Partition, offset, key, value, and when the log took it."""

Waiting = tuple[int, int]
"""When the oldest held message arrived, in milliseconds of the log, and how many gaps there are."""

NOTHING_WAITS: Waiting = (0, 0)


class Records(msgspec.Struct, array_like=True, gc=False):
    """What a packed row carries: parallel lists, and what a person wants to know of the records read."""

    ordered: list[bytes]
    ordered_keys: list[bytes]
    ordered_offsets: list[int]
    dead: list[bytes]
    dead_keys: list[bytes | None]
    dead_offsets: list[int]
    read: int  # raw records behind this row
    duplicates: int
    held: int  # messages the whole shard holds after this row
    waiting: Waiting | None = None  # of the whole shard after the batch; in a shard's last row alone
    state_bytes: int = 0  # what Spark keeps of the shard after the batch; in a shard's last row alone
    own: list[JobRecord] = []  # what the job itself has to say, each with the raw offset that made it
    dead_codes: list[str] = []  # why, for each dead letter


_encode = msgspec.msgpack.encode
_decode_state_1 = msgspec.msgpack.Decoder(tuple[int, dict[bytes, bytes]]).decode
_decode_state = msgspec.msgpack.Decoder(tuple[int, dict[bytes, bytes], dict[bytes, Waiting]]).decode
unpack = msgspec.msgpack.Decoder(Records).decode


class Shard:
    """Orders one shard's records; picklable, and the same in every batch."""

    def __init__(
        self,
        order: str,
        limits: Limits,
        patience: Patience | None = None,
        *,
        partitions: int | None = None,
        partitioner: str = DEFAULT_PARTITIONER,
    ) -> None:
        """`partitions` is how many the raw topic has."""
        self.order = order
        self.limits = limits
        self.patience = Patience() if patience is None else patience
        self.partitions = partitions
        self.partitioner = partitioner

    def __call__(
        self, key: tuple[Any, ...], frames: Iterable[pd.DataFrame], state: "GroupState"
    ) -> Iterator[pd.DataFrame]:
        gc.disable()  # nothing below makes cycles that outlive it; looking for them cost a third with 100,000 groups
        try:
            yield from self._step(int(key[0]), frames, state)
        finally:
            gc.enable()

    def _step(self, shard: int, frames: Iterable[pd.DataFrame], state: "GroupState") -> Iterator[pd.DataFrame]:
        kept = state.get[0] if state.exists else None
        before, held, waiting = decode_state(kept) if kept is not None else ({}, 0, {})
        blob = kept
        holdback = Holdback(
            order=self.order,
            limits=self.limits,
            patience=self.patience,
            partitions=self.partitions,
            partitioner=self.partitioner,
            home=shard == HOME_SHARD,
        )
        holdback.load(before)
        arrived = in_log_order(frames)
        rows: list[tuple[int, int, int, int, int, bytes]] = []
        size = 0
        for part, (partition, offset, records, is_last) in enumerate(_receive(holdback, arrived, held)):
            if is_last:
                after = holdback.dump()
                if after != before:
                    holdback.note_waiting(waiting)
                    blob = encode_state(after, held + holdback.held_growth, waiting)
                records.waiting = _of_all(waiting)
                records.state_bytes = 0 if blob is None else len(blob)
            packed = _encode(records)
            rows.append((shard, part, partition, offset, len(packed), packed))
            size += len(packed)
            if size >= FRAME_BYTES_MAX:
                yield _frame(rows)
                rows, size = [], 0
        if rows:
            yield _frame(rows)
        holdback.close()
        if blob is not kept:
            state.update((blob,))


def in_log_order(frames: Iterable[pd.DataFrame]) -> list[Row]:
    """All rows of a batch by (partition, offset): Spark hands them over in several chunks and in any order."""
    rows: list[Row] = []
    for frame in frames:
        columns = (frame[name].tolist() for name in ("partition", "offset", "key", "value", "timestamp_ms"))
        rows.extend(zip(*columns, strict=True))
    rows.sort()  # no two rows share (partition, offset), so keys and values are never compared
    return rows


def _of_all(waiting: dict[bytes, Waiting]) -> Waiting:
    """What the groups of a shard wait for, taken together."""
    if not waiting:
        return NOTHING_WAITS
    oldest, gaps = zip(*waiting.values(), strict=True)
    return min(oldest), sum(gaps)


def _receive(holdback: Holdback, rows: list[Row], held: int) -> Iterator[tuple[int, int, Records, bool]]:
    """Step through the rows; give what came out of them in pieces of one raw partition and bounded size."""
    receive = holdback.receive
    ordered, dead = holdback.ordered, holdback.dead
    ordered_offsets: list[int] = []
    dead_offsets: list[int] = []
    ordered_count = dead_count = first = duplicates = 0
    last = len(rows) - 1
    for index, (partition, offset, key, value, timestamp_ms) in enumerate(rows):
        receive(value, key, partition, offset, timestamp_ms)
        count = len(ordered)
        if count != ordered_count:
            if count - ordered_count == 1:
                ordered_offsets.append(offset)
            else:
                ordered_offsets += [offset] * (count - ordered_count)
            ordered_count = count
        count = len(dead)
        if count != dead_count:
            dead_offsets += [offset] * (count - dead_count)
            dead_count = count
        if index == last or ordered_count + dead_count >= ROWS_MAX or rows[index + 1][0] != partition:
            read = index + 1 - first
            if not holdback.home:  # what has no key is seen by every shard, and counts where it may be refused
                read -= [row[2] for row in rows[first : index + 1]].count(None)
            counts = (read, holdback.duplicates - duplicates, held + holdback.held_growth)
            for records, is_last in _pieces(holdback, ordered_offsets, dead_offsets, counts):
                yield partition, offset, records, is_last and index == last
            duplicates = holdback.duplicates
            holdback.clear()
            ordered_offsets, dead_offsets = [], []
            ordered_count = dead_count = 0
            first = index + 1


def _pieces(
    holdback: Holdback, ordered_offsets: list[int], dead_offsets: list[int], counts: tuple[int, int, int]
) -> Iterator[tuple[Records, bool]]:
    """What is in the holdback's lists now, in as many rows as its bytes ask for; the last one carries the counts."""
    ordered, ordered_keys, dead, dead_keys = holdback.ordered, holdback.ordered_keys, holdback.dead, holdback.dead_keys
    own, codes = holdback.own, holdback.dead_codes
    if sum(map(len, ordered)) + sum(map(len, dead)) + sum(len(one.value) for one in own) <= BYTES_MAX:
        lists = (ordered, ordered_keys, ordered_offsets, dead, dead_keys, dead_offsets)
        yield Records(*lists, *counts, own=own, dead_codes=codes), True
        return
    nothing = (0, 0, counts[2])
    for cut in _cuts(ordered):
        yield Records(ordered[cut], ordered_keys[cut], ordered_offsets[cut], [], [], [], *nothing), False
    for cut in _cuts(dead):
        lists = ([], [], [], dead[cut], dead_keys[cut], dead_offsets[cut])
        yield Records(*lists, *nothing, dead_codes=codes[cut]), False
    for cut in _cuts([one.value for one in own]):
        yield Records([], [], [], [], [], [], *nothing, own=own[cut]), False
    yield Records([], [], [], [], [], [], *counts), True


def _cuts(values: list[bytes]) -> Iterator[slice]:
    """Where to cut a list so that each piece stays within the bound, or is one large record."""
    start = size = 0
    for index, value in enumerate(values):
        if size + len(value) > BYTES_MAX and index > start:
            yield slice(start, index)
            start, size = index, 0
        size += len(value)
    if start < len(values):
        yield slice(start, len(values))


def _frame(rows: list[tuple[int, int, int, int, int, bytes]]) -> pd.DataFrame:
    shard, part, partition, offset, size, records = zip(*rows, strict=True)
    return pd.DataFrame(
        {
            "shard": np.array(shard, np.int32),
            "part": np.array(part, np.int32),
            "partition": np.array(partition, np.int32),
            "offset": np.array(offset, np.int64),
            "bytes": np.array(size, np.int32),
            "records": list(records),
        }
    )


def encode_state(groups: dict[bytes, bytes], held: int, waiting: dict[bytes, Waiting]) -> bytes:
    """The shard's groups, how many messages they hold, and what those wait for, as the one blob Spark keeps."""
    return bytes((STATE_VERSION,)) + _encode((held, groups, waiting))


def decode_state(blob: bytes) -> tuple[dict[bytes, bytes], int, dict[bytes, Waiting]]:
    """The snapshots of a shard's groups by group key, how many messages they hold, and what those wait for."""
    if blob[0] > STATE_VERSION:
        raise Refused(
            f"The checkpoint's state has version {blob[0]}, written by a newer precede; this one reads up to "
            f"{STATE_VERSION}."
        )
    if blob[0] == 1:
        held, groups = _decode_state_1(memoryview(blob)[1:])
        return groups, held, {}
    held, groups, waiting = _decode_state(memoryview(blob)[1:])
    return groups, held, waiting
