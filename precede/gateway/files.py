"""The two files in a gateway's folder: what the log lacks, and what is known of the log's history.

A gateway that is killed at any moment leaves what was written before. The process alone has to survive, and not the
machine, so nothing is synced: what is gone with the machine, the peers or the ordered topic have.
"""

import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

import msgspec

from precede.gateway.publish_queue import HeardRecord
from precede.ingest.sqlite_file import SqliteFile
from precede.udfs.errors import Refused

JOURNAL = "PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL;"

HEARD = "heard.sqlite"
HEARD_TABLES = """
CREATE TABLE IF NOT EXISTS heard (
    row INTEGER PRIMARY KEY, grp TEXT NOT NULL, value BLOB NOT NULL, checksum INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT NOT NULL)
"""

HISTORY = "history.sqlite"
HISTORY_VERSION = 1
HISTORY_TABLES = """
CREATE TABLE IF NOT EXISTS about (version INTEGER, stream TEXT, offsets BLOB, messages_ms INTEGER);
CREATE TABLE IF NOT EXISTS membership (grp TEXT PRIMARY KEY, records BLOB NOT NULL)
"""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[bytes]).decode
_decode_offsets = msgspec.msgpack.Decoder(dict[int, int]).decode


class SpoolFile:
    """Records that were heard and that the log lacks. Raises Refused where the file cannot be read or written.

    Each record carries its checksum, and stays until the log is known to have it. So one that is read at the next start
    may be in the log already: the kernel drops copies, and the gateway mostly sees it first.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / HEARD
        self._file = SqliteFile(self.path, JOURNAL + HEARD_TABLES, broken=self._broken)
        self._next: int = self._file.one("SELECT COALESCE(MAX(row), 0) + 1 FROM heard")[0]
        self.count: int = self._file.one("SELECT COUNT(*) FROM heard")[0]
        """How many records are in it."""

    def fact(self, name: str, default: str) -> str:
        """What was kept under this name; at first this is kept."""
        self._file.write(("INSERT OR IGNORE INTO facts VALUES (?, ?)", [(name, default)]))
        return str(self._file.one("SELECT value FROM facts WHERE name = ?", (name,))[0])

    def add(self, records: Sequence[HeardRecord]) -> None:
        """Keep these; each is told its row."""
        numbered = list(enumerate(records, self._next))
        rows = [(row, one.key[0], one.value, crc32(one.value)) for row, one in numbered]
        self._file.write(("INSERT INTO heard VALUES (?, ?, ?, ?)", rows))
        for row, one in numbered:
            one.row = row
        self._next += len(rows)
        self.count += len(rows)

    def remove(self, rows: Sequence[int]) -> None:
        """The log has these."""
        self._file.write(("DELETE FROM heard WHERE row = ?", [(row,) for row in rows]))
        self.count -= len(rows)

    def read(self) -> Iterator[tuple[int, str, bytes]]:
        """Row, group and value of each record, the oldest first; one that is damaged is left out."""
        for row, group, value, checksum in list(self._file.ask("SELECT * FROM heard ORDER BY row")):
            if crc32(value) == checksum:
                yield row, group, value

    def close(self) -> None:
        """Write all of it into the one file."""
        with suppress(Refused):
            self._file.run("PRAGMA wal_checkpoint(TRUNCATE)")
        self._file.close()

    def _broken(self, error: sqlite3.Error) -> Refused:
        return Refused(
            f"The gateway's file {self.path} cannot be used: {error}. Make room on that disk, or start with another"
            " folder (--state); what the file holds is then published only if a peer still has it."
        )


class KeptHistory(NamedTuple):
    """What an earlier run of the gateway knew."""

    records: dict[str, list[bytes]]
    """The membership records of each group, in an order in which they can be taken in."""
    offsets: dict[int, int]
    """Per partition of the ordered topic the next offset: what comes from there on is not all known."""
    messages_ms: int
    """When the first of the last messages came; they are not here."""


class _Unusable(Exception):
    """The file of the history cannot be read or written."""


class HistoryFile:
    """The membership records of all groups, so that a start need not read the whole ordered topic again.

    With them: up to which offset of each partition of that topic they stand, and since when the last messages came. The
    file is a copy: where it is missing, damaged, or of another topic, it is made again. Nothing is raised: what fails
    is in `trouble`.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / HISTORY
        self.trouble: str | None = None
        """Why it could not be written last."""
        self._file: SqliteFile | None = None

    def read(self, stream: str) -> KeptHistory | None:
        """What was written for this ordered topic, by its id; None if there is nothing that counts."""
        try:
            return self._read(stream)
        except (_Unusable, msgspec.DecodeError):
            self.close()
            with suppress(OSError):
                for path in self.path.parent.glob(f"{HISTORY}*"):
                    path.unlink(missing_ok=True)
            return None

    def _read(self, stream: str) -> KeptHistory | None:
        file = self._opened()
        about = file.one("SELECT * FROM about")
        if about is None or about[:2] != (HISTORY_VERSION, stream):
            file.run("DELETE FROM about", "DELETE FROM membership")
            return None
        rows = file.ask("SELECT grp, records FROM membership")
        return KeptHistory({group: _decode(records) for group, records in rows}, _decode_offsets(about[2]), about[3])

    def write(
        self, stream: str, changed: Mapping[str, Iterable[bytes]], offsets: Mapping[int, int], messages_ms: int
    ) -> bool:
        """These groups have these records now; returns whether that is on the disk."""
        rows = [(group, _encode(list(records))) for group, records in changed.items()]
        about = (HISTORY_VERSION, stream, _encode(offsets), messages_ms)
        try:
            self._opened().write(
                ("INSERT OR REPLACE INTO membership VALUES (?, ?)", rows),
                ("DELETE FROM about", [()]),
                ("INSERT INTO about VALUES (?, ?, ?, ?)", [about]),
            )
        except _Unusable as error:
            self.close()
            self.trouble = f"The gateway's file {self.path} cannot be written: {error}. Its next start takes longer."
            return False
        self.trouble = None
        return True

    def _opened(self) -> SqliteFile:
        if self._file is None:
            self._file = SqliteFile(self.path, JOURNAL + HISTORY_TABLES, broken=lambda error: _Unusable(str(error)))
        return self._file

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            self._file.close()
            self._file = None
