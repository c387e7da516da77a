"""Reads delivered records from Delta, where the ordered topic no longer has them."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from precede.ingest.extras import need
from precede.ingest.follower_token import Released
from precede.reading.delivery import Delivery, as_delivery
from precede.reading.delta_rows import Condition, DeltaRows
from precede.streaming.places import place
from precede.streaming.places.place import Place
from precede.udfs.errors import Refused
from precede.udfs.records.messages import Id

NO_OPTIONS: Mapping[str, str] = MappingProxyType({})
CHUNK = 5_000
"""How many positions are read at once."""
WIDTH = 10_000
"""How many raw offsets are read at once, to begin with."""
ROWS_MIN, ROWS_MAX = 5_000, 20_000
"""Fewer or more rows at once make the next part wider or narrower."""
IN_ORDER_OF_RELEASE = 'ORDER BY "released_offset", "group", "destination", "position"'


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
        found = next(self._select('max("position") AS last'))["last"]
        return 0 if found is None else int(found)

    def views(self) -> list[Delivery]:
        """The records that changed who belongs to the group."""
        return self._read(("kind", "IN", ["create", "join", "leave", "evict"]))

    def find(self, id_: Id) -> Delivery | None:
        """The message with this id."""
        sender, epoch, seq = id_
        found = self._read(("sender", "=", sender), ("epoch", "=", epoch), ("seq", "=", seq), ("kind", "=", "message"))
        return found[0] if found else None

    def _read(self, *conditions: Condition) -> list[Delivery]:
        where = f"The Delta table {self.path}"
        rows = self._select('"record"', *conditions, then='ORDER BY "position"')
        return [as_delivery(row["record"].encode(), where) for row in rows]

    def _select(self, what: str, *conditions: Condition, then: str = "") -> Iterator[dict[str, Any]]:
        mine: list[Condition] = [("group", "=", self.group)]
        if self.destination is not None:
            mine.append(("destination", "=", self.destination))
        return _opened(self.path, self._storage).select(what, *mine, *conditions, then=then)


class DeltaReleases:
    """The same table in the order in which the raw partitions released its records, for one group or for all.

    It is read as it is at the first look, in parts of some thousand rows.
    """

    def __init__(self, root: Path | str, group: str | None, *, storage: Mapping[str, str] = NO_OPTIONS) -> None:
        path = place.at(root) / "deliveries"
        self._where = f"The Delta table {path}"
        self._mine: list[Condition] = [] if group is None else [("group", "=", group)]
        self._rows = _opened(path, storage)

    def read(self, places: dict[int, Released], position_above: int = 0) -> Iterator[Delivery]:
        """What these places do not cover yet, one raw partition after the other."""
        wanted: list[Condition] = [("position", ">", position_above), *self._mine]
        for partition, first, last in self._offsets(wanted):
            place = places.get(partition, Released(0))
            low, width = max(first, place.offset), WIDTH
            while low <= last:
                part: list[Condition] = [("released_offset", ">=", low), ("released_offset", "<", low + width)]
                found = self._part(("partition", "=", partition), *part, *wanted)
                for delivery in found:
                    if not place.covers(*released_place(delivery)):
                        yield delivery
                low += width
                width = width * 2 if len(found) < ROWS_MIN else max(1, width // 2) if len(found) > ROWS_MAX else width

    def _part(self, *conditions: Condition) -> list[Delivery]:
        rows = self._rows.select('"record"', *conditions, then=IN_ORDER_OF_RELEASE)
        return [as_delivery(row["record"].encode(), self._where) for row in rows]

    def _offsets(self, wanted: list[Condition]) -> list[tuple[int, int, int]]:
        """Each raw partition, and the first and the last offset in it that released something."""
        ends = 'min("released_offset") AS first, max("released_offset") AS last'
        rows = self._rows.select(f'"partition", {ends}', *wanted, then='GROUP BY "partition" ORDER BY "partition"')
        return [(row["partition"], row["first"], row["last"]) for row in rows]


def _opened(table: Place, storage: Mapping[str, str]) -> DeltaRows:
    need("delta", "Reading Delta tables")
    from deltalake.exceptions import DeltaError, TableNotFoundError

    try:
        return DeltaRows(table, storage)
    except TableNotFoundError as error:
        raise Refused(f"There is no Delta table {table}: name the root folder that the job writes to.") from error
    except (DeltaError, OSError) as error:
        raise Refused(f"The Delta table {table} cannot be read: {error}.") from error


def released_place(delivery: Delivery) -> tuple[int, str, str | None, int]:
    """What `Released` needs to know of a delivery."""
    return delivery.released_offset, delivery.group, delivery.destination, delivery.position
