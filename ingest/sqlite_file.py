"""A file of sqlite that one process uses: what it cannot do is raised as one kind of error, the caller's own.

sqlite is the one embedded store that turns every torn file into an exception.
"""

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

Rows = Sequence[tuple[object, ...]]


class SqliteFile:
    """An open file, with its tables; without a path it is in memory."""

    def __init__(self, path: Path | None, setup: str, *, broken: Callable[[sqlite3.Error], Exception]) -> None:
        """`setup` are statements that are run first, apart by semicolons; `broken` makes the error that is raised."""
        self._broken = broken
        try:
            where = ":memory:" if path is None else str(path)
            self._base = sqlite3.connect(where, isolation_level=None, check_same_thread=False)
        except sqlite3.Error as error:
            raise broken(error) from error
        try:
            self.run(*setup.split(";"))
        except BaseException:
            self.close()
            raise

    def run(self, *statements: str) -> None:
        """Run statements, one after the other."""
        try:
            for statement in statements:
                self._base.execute(statement).fetchall()
        except sqlite3.Error as error:
            raise self._broken(error) from error

    def ask(self, question: str, values: tuple[object, ...] = ()) -> Iterator[Any]:
        """The rows that answer a question."""
        try:
            yield from self._base.execute(question, values)
        except sqlite3.Error as error:
            raise self._broken(error) from error

    def one(self, question: str, values: tuple[object, ...] = ()) -> Any:
        """The first row that answers a question; None where there is none."""
        try:
            return self._base.execute(question, values).fetchone()
        except sqlite3.Error as error:
            raise self._broken(error) from error

    def write(self, *steps: tuple[str, Rows]) -> None:
        """Do all of these, each for each of its rows, or nothing."""
        try:
            self._base.execute("BEGIN")
            for statement, rows in steps:
                self._base.executemany(statement, rows)
            self._base.execute("COMMIT")
        except sqlite3.Error as error:
            with suppress(sqlite3.Error):
                self._base.execute("ROLLBACK")
            raise self._broken(error) from error

    def close(self) -> None:
        """Let go of it."""
        with suppress(sqlite3.Error):
            self._base.close()
