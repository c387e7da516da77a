"""Reads delivered records from Delta, where the ordered topic no longer has them."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from precede.ingest.extras import need
from precede.ingest.follower_token import Released
from precede.reading.delivery import Delivery, as_delivery
from precede.streaming.places import place
from precede.streaming.places.delta import files_of, open_table
from precede.udfs.errors import Refused
from precede.udfs.records.messages import Id

NO_OPTIONS: Mapping[str, str] = MappingProxyType({})
CHUNK = 5_000
"""How many positions are read at once."""
WIDTH = 10_000
"""How many raw offsets are read at once, to begin with."""
ROWS_MIN, ROWS_MAX = 5_000, 20_000
"""Fewer or more rows at once make the next part wider or narrower."""


class DeltaHistory:
    """The table `deliveries` under a root folder, for one group and, if its order has destinations, one of them."""

    def __init__(
        self,
        root: Path | str,
        group: str,
        destination: str | None = None,
        *,
        storage: Mapping[str, str] = NO_OPTIONS,
    ) -> None:
        """With `storage` delta-rs reaches a root that is in a store."""
        self.path = place.at(root) / "deliveries"
        self._storage = storage
        self.group = group
        self.destination = destination

    def between(self, first: int, last: int) -> Iterator[Delivery]:
        """The records of these positions in order, up to the first hole."""
        expected = first
        for low in range(first, last + 1, CHUNK):
            for delivery in self._read(("position", ">=", low), ("position", "<=", min(low + CHUNK - 1, last))):
                if delivery.position != expected:
                    return
                expected += 1
                yield delivery

    def last(self) -> int:
        """The highest position, or 0."""
        import pyarrow.compute as pc

        positions = self._table([], ["position"])["position"]
        return 0 if len(positions) == 0 else int(pc.max(positions).as_py())

    def views(self) -> list[Delivery]:
        """The records that changed who belongs to the group."""
        return self._read(("kind", "in", ["create", "join", "leave", "evict"]))

    def find(self, id_: Id) -> Delivery | None:
        """The message with this id."""
        sender, epoch, seq = id_
        found = self._read(("sender", "=", sender), ("epoch", "=", epoch), ("seq", "=", seq), ("kind", "=", "message"))
        return found[0] if found else None

    def _read(self, *conditions: tuple[str, str, Any]) -> list[Delivery]:
        rows = self._table(list(conditions), ["position", "record"]).sort_by("position")
        return [as_delivery(record.encode(), f"The Delta table {self.path}") for record in rows["record"].to_pylist()]

    def _table(self, conditions: list[tuple[str, str, Any]], columns: list[str]) -> Any:
        need("delta", "Reading Delta tables")
        from deltalake.exceptions import DeltaError, TableNotFoundError

        mine: list[tuple[str, str, Any]] = [("group", "=", self.group)]
        if self.destination is not None:
            mine.append(("destination", "=", self.destination))
        try:
            table, files = open_table(self.path, self._storage), files_of(self.path)
            return table.to_pyarrow_table(columns=columns, filesystem=files, filters=mine + conditions)
        except TableNotFoundError as error:
            raise Refused(
                f"There is no Delta table {self.path}: name the root folder that the job writes to."
            ) from error
        except DeltaError as error:
            raise Refused(f"The Delta table {self.path} cannot be read: {error}.") from error


class DeltaReleases:
    """The same table in the order in which the raw partitions released its records, for one group or for all.

    It is read as it is at the first look, in parts of some thousand rows.
    """

    def __init__(self, root: Path | str, group: str | None, *, storage: Mapping[str, str] = NO_OPTIONS) -> None:
        need("delta", "Reading Delta tables")
        from deltalake.exceptions import DeltaError
        from pyarrow import dataset

        path = place.at(root) / "deliveries"
        self._where = f"The Delta table {path}"
        self._field: Any = dataset.field
        self._group = group
        try:
            self._rows: Any = open_table(path, storage).to_pyarrow_dataset(filesystem=files_of(path))
        except (DeltaError, OSError) as error:
            raise Refused(
                f"There is no readable Delta table {path}: name the root folder that the job writes to."
            ) from error

    def read(self, places: dict[int, Released], position_above: int = 0) -> Iterator[Delivery]:
        """What these places do not cover yet, one raw partition after the other."""
        for partition, (first, last) in sorted(self._offsets(position_above).items()):
            place = places.get(partition, Released(0))
            low, width = max(first, place.offset), WIDTH
            while low <= last:
                mine = self._field("partition") == partition
                part = mine & (self._field("released_offset") >= low) & (self._field("released_offset") < low + width)
                rows = self._part(part, position_above)
                for delivery in rows:
                    if not place.covers(*released_place(delivery)):
                        yield delivery
                low += width
                width = width * 2 if len(rows) < ROWS_MIN else max(1, width // 2) if len(rows) > ROWS_MAX else width

    def _part(self, part: Any, position_above: int) -> list[Delivery]:
        order = ["released_offset", "group", "destination", "position"]
        wanted = part & self._wanted(position_above)
        rows = self._rows.to_table(columns=[*order, "record"], filter=wanted)
        ordered = rows.sort_by([(name, "ascending") for name in order])
        return [as_delivery(record.encode(), self._where) for record in ordered["record"].to_pylist()]

    def _offsets(self, position_above: int) -> dict[int, tuple[int, int]]:
        """For each raw partition, the first and the last offset that released something."""
        from pyarrow import Table

        found: dict[int, tuple[int, int]] = {}
        columns, wanted = ["partition", "released_offset"], self._wanted(position_above)
        for batch in self._rows.to_batches(columns=columns, filter=wanted):
            ends = Table.from_batches([batch]).group_by("partition")
            for row in ends.aggregate([("released_offset", "min"), ("released_offset", "max")]).to_pylist():
                low, high = row["released_offset_min"], row["released_offset_max"]
                known = found.get(row["partition"], (low, high))
                found[row["partition"]] = min(low, known[0]), max(high, known[1])
        return found

    def _wanted(self, position_above: int) -> Any:
        wanted = self._field("position") > position_above
        return wanted if self._group is None else wanted & (self._field("group") == self._group)


def released_place(delivery: Delivery) -> tuple[int, str, str | None, int]:
    """What `Released` needs to know of a delivery."""
    return delivery.released_offset, delivery.group, delivery.destination, delivery.position
