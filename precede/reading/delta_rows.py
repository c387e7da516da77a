"""Reads rows of Delta tables by SQL, in delta-rs' own engine, which skips files by the table's statistics.

Everything happens in Rust, and rows come over Arrow's C interface. Readers that take their files from Python must not
be used here: Arrow's threads close these files long after the reading is over, and need the interpreter's lock for it.
If the program is just ending, Python ends these threads instead, and C++ then aborts the program.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from precede.ingest.extras import need
from precede.streaming.places.place import Place
from precede.streaming.places.store_options import open_table
from precede.udfs.errors import Refused

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
