"""Reading a batch's packed rows on the driver, in slices that fit there.

A shard packs its records into rows. `part` numbers the rows of a shard within the batch.
"""

from collections.abc import Iterator
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from precede.udfs.steps import Records, unpack

if TYPE_CHECKING:
    from pyarrow import Table
    from pyspark.sql import DataFrame

SLICE_BYTES_MAX = 64 * 1024 * 1024
SHORT_ROW_BYTES_MAX = 64 * 1024  # a shard has about one such row for each raw partition


class PackedRow(NamedTuple):
    """The records of one shard from one raw partition; `offset` is the last raw offset that is in it."""

    shard: int
    partition: int
    offset: int
    records: Records


class _ListedRow(NamedTuple):
    shard: int
    part: int
    size_bytes: int
    row: PackedRow | None
    """None where its records were not fetched with the list."""


_BY_PLACE = attrgetter("shard", "part")


def packed_rows(batch: "DataFrame") -> Iterator[PackedRow]:
    """The rows of the batch; the driver never holds more than one slice of them.

    One Spark job fetches the list of all rows, together with the records of each shard's first row and of all short
    rows. A small batch needs no other job. The rest is fetched in slices. The rows of a shard stay in their order,
    because records of one group may be in several of them.
    """
    from pyspark.sql import functions as F  # noqa: N812 (the name all of Spark's pages use)

    is_fetched = (F.col("part") == 0) | (F.col("bytes") <= SHORT_ROW_BYTES_MAX)
    listed = batch.select(
        "shard", "part", "partition", "offset", "bytes", F.when(is_fetched, F.col("records")).alias("records")
    )
    rest: list[tuple[int, int, int]] = []
    next_place = -1, 0
    for shard, part, size_bytes, row in sorted(_fetch(listed), key=_BY_PLACE):
        if row is not None and (part == 0 or next_place == (shard, part)):
            yield row
            next_place = shard, part + 1
        else:
            rest.append((shard, part, size_bytes))
    for parts in _slices(rest):
        # Ranges let Spark skip the cached rows outside them without unpacking those.
        ranges = (f"shard = {shard} AND part BETWEEN {first} AND {last}" for shard, (first, last) in parts.items())
        for one in sorted(_fetch(batch.where(" OR ".join(ranges))), key=_BY_PLACE):
            assert one.row is not None
            yield one.row


def _fetch(batch: "DataFrame") -> Iterator[_ListedRow]:
    table: Table = batch.toArrow()
    columns = (table.column(name).to_pylist() for name in ("shard", "part", "bytes", "partition", "offset"))
    for shard, part, size_bytes, partition, offset, packed in zip(*columns, table.column("records"), strict=True):
        row = PackedRow(shard, partition, offset, unpack(packed.as_buffer())) if packed.is_valid else None
        yield _ListedRow(shard, part, size_bytes, row)


def _slices(rows: list[tuple[int, int, int]]) -> Iterator[dict[int, tuple[int, int]]]:
    """By shard, the first and last part of the rows that fit on the driver together.

    No part between the two is left out. `rows` are (shard, part, size in bytes).
    """
    parts: dict[int, tuple[int, int]] = {}
    slice_bytes = 0
    for shard, part, size_bytes in rows:
        if parts and slice_bytes + size_bytes > SLICE_BYTES_MAX:
            yield parts
            parts, slice_bytes = {}, 0
        first, _ = parts.get(shard, (part, part))
        parts[shard] = first, part
        slice_bytes += size_bytes
    if parts:
        yield parts


def released_from(next_offset: int, records: Records) -> Records:
    """Those of the records that a raw record at `next_offset` or later released: earlier ones are published already."""
    offsets = records.ordered_offsets + records.dead_offsets + [own.offset for own in records.own]
    if not offsets or min(offsets) >= next_offset:
        return records
    ordered = [offset >= next_offset for offset in records.ordered_offsets]
    dead = [offset >= next_offset for offset in records.dead_offsets]
    return Records(
        [value for value, new in zip(records.ordered, ordered, strict=True) if new],
        [key for key, new in zip(records.ordered_keys, ordered, strict=True) if new],
        [offset for offset in records.ordered_offsets if offset >= next_offset],
        [value for value, new in zip(records.dead, dead, strict=True) if new],
        [key for key, new in zip(records.dead_keys, dead, strict=True) if new],
        [offset for offset in records.dead_offsets if offset >= next_offset],
        records.read,
        records.duplicates,
        records.held,
        records.waiting,
        records.state_bytes,
        [own for own in records.own if own.offset >= next_offset],
        [code for code, new in zip(records.dead_codes, dead, strict=True) if new],
        records.state,
        records.uncovered,
    )
