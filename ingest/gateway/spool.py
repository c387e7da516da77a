"""What the log lacks, on disk: records that a gateway has heard and that are not in the log yet.

A file of sqlite, which turns every torn file into an exception; each record carries its checksum. A gateway that is
killed at any moment leaves what was written before. A record stays until the log is known to have it, so one that is
read again at the next start may be in the log already: the kernel drops copies, and the gateway mostly sees it first.
"""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from zlib import crc32

from precede.ingest.gateway.upward import Entry
from precede.udfs.errors import Refused

FILE = "heard.sqlite"
SCHEMA = """
CREATE TABLE IF NOT EXISTS heard (
    row INTEGER PRIMARY KEY, grp TEXT NOT NULL, value BLOB NOT NULL, checksum INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT NOT NULL)
"""


class Spool:
    """The file in a gateway's folder. Raises Refused where it cannot be read or written."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE
        self.count = 0
        """How many records are in it."""
        try:
            self._base = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False)
            for statement in ("PRAGMA journal_mode = WAL", "PRAGMA synchronous = NORMAL", *SCHEMA.split(";")):
                self._base.execute(statement).fetchall()
            self._next = self._base.execute("SELECT COALESCE(MAX(row), 0) + 1 FROM heard").fetchone()[0]
            self.count = self._base.execute("SELECT COUNT(*) FROM heard").fetchone()[0]
        except sqlite3.Error as error:
            raise self._broken(error) from error

    def fact(self, name: str, default: str) -> str:
        """What was kept under this name; at first this is kept."""
        try:
            self._base.execute("INSERT OR IGNORE INTO facts VALUES (?, ?)", (name, default))
            return str(self._base.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()[0])
        except sqlite3.Error as error:
            raise self._broken(error) from error

    def add(self, entries: Sequence[Entry]) -> None:
        """Keep these; each is told its row."""
        numbered = list(enumerate(entries, self._next))
        rows = [(row, entry.key[0], entry.value, crc32(entry.value)) for row, entry in numbered]
        self._write("INSERT INTO heard VALUES (?, ?, ?, ?)", rows)
        for row, entry in numbered:
            entry.row = row
        self._next += len(rows)
        self.count += len(rows)

    def remove(self, rows: Sequence[int]) -> None:
        """The log has these."""
        self._write("DELETE FROM heard WHERE row = ?", [(row,) for row in rows])
        self.count -= len(rows)

    def read(self) -> Iterator[tuple[int, str, bytes]]:
        """Row, group and value of each record, the oldest first; one that is damaged is left out."""
        try:
            for row, group, value, checksum in self._base.execute("SELECT * FROM heard ORDER BY row").fetchall():
                if crc32(value) == checksum:
                    yield row, group, value
        except sqlite3.Error as error:
            raise self._broken(error) from error

    def close(self) -> None:
        """Write all of it into the one file."""
        with suppress(sqlite3.Error):
            self._base.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            self._base.close()

    def _write(self, statement: str, rows: Sequence[tuple[object, ...]]) -> None:
        if not rows:
            return
        try:
            self._base.execute("BEGIN")
            self._base.executemany(statement, rows)
            self._base.execute("COMMIT")
        except sqlite3.Error as error:
            with suppress(sqlite3.Error):
                self._base.execute("ROLLBACK")
            raise self._broken(error) from error

    def _broken(self, error: sqlite3.Error) -> Refused:
        return Refused(
            f"The gateway's file {self.path} cannot be used: {error}. Make room on that disk, or start with another"
            " folder (--state); what the file holds is then published only if a peer still has it."
        )
