"""Reads delivered records from Delta, where the ordered topic no longer has them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from precede.ingest.extras import need
from precede.reading.delta_files import files_of
from precede.reading.following import Delivery, as_delivery
from precede.udfs.errors import Refused
from precede.udfs.records.messages import Id

CHUNK = 5_000
"""How many positions are read at once."""


class DeltaHistory:
    """The table `deliveries` under a root folder, for one group and, if its order has destinations, one of them."""

    def __init__(self, root: Path | str, group: str, destination: str | None = None) -> None:
        self.path = Path(root) / "deliveries"
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
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError, TableNotFoundError

        mine: list[tuple[str, str, Any]] = [("group", "=", self.group)]
        if self.destination is not None:
            mine.append(("destination", "=", self.destination))
        try:
            table, files = DeltaTable(self.path), files_of(self.path)
            return table.to_pyarrow_table(columns=columns, filesystem=files, filters=mine + conditions)
        except TableNotFoundError as error:
            raise Refused(
                f"There is no Delta table {self.path}: name the root folder that the job writes to."
            ) from error
        except DeltaError as error:
            raise Refused(f"The Delta table {self.path} cannot be read: {error}.") from error
