"""Delivered records from the Delta tables: by SQL, for one group, and where the ordered topic has them no more.

Rows are read in delta-rs' own engine, which skips files by the table's statistics. Everything happens in Rust, and rows
come over Arrow's C interface. Readers that take their files from Python must not be used here: Arrow's threads close
these files long after the reading is over, and need the interpreter's lock for it. If the program is just ending,
Python ends these threads instead, and C++ then aborts the program.
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import msgspec

from precede.ingest.extras import need
from precede.ingest.follower_token import FollowerToken, Released
from precede.reading.delivery import Delivery, as_delivery
from precede.reading.live_source import LiveSource
from precede.reading.ordered_topic import OrderedTopic
from precede.streaming.places import place
from precede.streaming.places.place import Place
from precede.streaming.places.store_options import open_table
from precede.udfs.errors import Hole, Refused
from precede.udfs.records.messages import Id

Condition = tuple[str, Literal["=", "!=", "<", "<=", ">", ">=", "IN"], Any]
"""A column, how it compares, and with what: a string, an integer, or a sequence of them."""

NAME = "t"
REASON_LENGTH_MAX = 300


class DeltaRows:
    """A table as it was when it was opened."""

    def __init__(self, table: Place, options: Mapping[str, str]) -> None:
        """Raises what delta-rs raises, where there is no readable table."""
        need("delta", "Reading Delta tables")
        from deltalake import QueryBuilder

        self._table = table
        self._session = QueryBuilder().register(NAME, open_table(table, options))

    def select(self, what: str, *conditions: Condition, then: str = "") -> Iterator[dict[str, Any]]:
        """`what`, as SQL names it, of the rows that meet all conditions; `then` groups or orders them.

        What is not grouped or ordered comes as it is read, in no certain order.
        """
        import pyarrow as pa
        from deltalake.exceptions import DeltaError

        where = ["WHERE", " AND ".join(map(as_sql, conditions))] if conditions else []
        try:
            found = self._session.execute(" ".join(["SELECT", what, "FROM", NAME, *where, then]))
            # pyarrow, unlike what delta-rs returns, lets other threads run while it waits for the next rows.
            for batch in pa.RecordBatchReader.from_stream(found):
                yield from batch.to_pylist()
        except (DeltaError, OSError, pa.ArrowException) as error:
            reason = str(error).splitlines()[0][:REASON_LENGTH_MAX].rstrip(".: ")
            raise Refused(f"The Delta table {self._table} cannot be read: {reason}.") from error


def as_sql(condition: Condition) -> str:
    """The condition in SQL."""
    column, how, value = condition
    compared = f"({', '.join(map(_literal, value))})" if how == "IN" else _literal(value)
    return f'"{column}" {how} {compared}'


def _literal(value: str | int) -> str:
    """The value in SQL, where nothing but the quote ends a string."""
    return str(value) if isinstance(value, int) else "'" + value.replace("'", "''") + "'"


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


class HoleFiller:
    """Reads the ordered topic, or live, and hands over from Delta what is missing there."""

    def __init__(
        self,
        topic: OrderedTopic | LiveSource,
        history_of: Callable[[Delivery], DeltaHistory | None],
        older: Iterator[Delivery],
    ) -> None:
        """`history_of` the record behind a hole is where to look; `older` comes before the topic."""
        self._topic = topic
        self._history_of = history_of
        self._older = older

    def poll(self, timeout_s: float) -> Delivery | None:
        """The next message, or None if none came in this time. Raises Hole once if Delta lacks it, too."""
        older = next(self._older, None)
        if older is None:
            try:
                return self._topic.poll(timeout_s)
            except Hole as hole:
                history = self._history_of(hole.delivery)
                if history is None:
                    raise
                self._older = history.between(hole.last + 1, hole.delivery.position - 1)
                older = next(self._older, None)
                if older is None:
                    raise
        self._topic.continue_after(older)
        return older


class FilledFromDelta:
    """A source of deliveries for a `Follower`, which needs Delta only where the ordered topic is not enough.

    Where the topic's beginning is gone, everything that Delta has comes first, in the order in which the raw partitions
    released it. Of the topic, the consumer's rule then drops what was handed over.
    """

    def __init__(
        self, topic: OrderedTopic, root: Path | str, group: str | None, *, storage: Mapping[str, str] = NO_OPTIONS
    ) -> None:
        """With `storage` delta-rs reaches a root that is in a store."""
        self._topic = topic
        self._root = root
        self._storage = storage
        self._group = group
        self._kept = topic.token
        self._places = dict(self._kept.from_delta)
        self._older: Iterator[Delivery] | None = None
        self._next: Delivery | None = None
        self._catches_up = bool(self._places)
        self._filler = HoleFiller(topic, self._history_of, iter(()))

    @property
    def token(self) -> FollowerToken:
        """Where to continue after the last delivered message."""
        token = self._topic.token
        if not self._catches_up:
            return msgspec.structs.replace(token, from_delta={})
        return msgspec.structs.replace(token, offsets=self._kept.offsets, from_delta=dict(self._places))

    @property
    def at_end(self) -> bool:
        """Whether everything was delivered, according to the last reads."""
        return not self._catches_up and self._topic.at_end

    @property
    def is_catching_up(self) -> bool:
        """Whether records came lately, and the end has not been seen yet."""
        return self._topic.is_catching_up

    @property
    def waits_for(self) -> str | None:
        """What must be there before anything can be read; None if it is."""
        return self._topic.waits_for

    def poll(self, timeout_s: float) -> Delivery | None:
        """The next message, or None if none came in this time. Raises Hole once if positions are missing."""
        if not self._topic.begin(timeout_s):
            return None
        if self._older is None:
            self._catches_up = self._topic.lacks_beginning
            self._older = self._from_delta() if self._catches_up else iter(())
        while True:
            self._next = self._next or next(self._older, None)
            if self._next is None:
                self._catches_up = False
                return self._filler.poll(timeout_s)
            one = self._next
            admitted = self._topic.admits(one)  # after a hole the record stays here, to be delivered next
            self._next = None
            if self._group is None:
                place = self._places.get(one.partition, Released(0))
                self._places[one.partition] = place.with_record(*released_place(one))
            if admitted:
                return one

    def is_at_cut(self, hole: Hole) -> bool:
        """Whether the topic had lost its beginning, and so had Delta."""
        return self._topic.is_at_cut(hole)

    def give_back(self) -> None:
        """Nothing: the application keeps the token with what it handled."""

    def close(self) -> None:
        """Close the connection to the broker."""
        self._topic.close()

    def _history_of(self, behind: Delivery) -> DeltaHistory:
        return DeltaHistory(self._root, behind.group, behind.destination, storage=self._storage)

    def _from_delta(self) -> Iterator[Delivery]:
        releases = DeltaReleases(self._root, self._group, storage=self._storage)
        last = {destination: position for _, destination, position in self._kept.last}
        return releases.read(self._places, position_above=last[None] if self._group is not None and None in last else 0)
