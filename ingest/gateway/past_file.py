"""What a gateway knows of the log's past, on disk, so that a start need not read the whole ordered topic again.

The membership records of all groups, up to which offset of each partition of the ordered topic they stand, and since
when the last messages came. The file is a copy: where it is missing, damaged, or of another topic, it is made again.
"""

import sqlite3
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

FILE = "past.sqlite"
VERSION = 1
SCHEMA = """
CREATE TABLE IF NOT EXISTS about (version INTEGER, stream TEXT, offsets BLOB, messages_ms INTEGER);
CREATE TABLE IF NOT EXISTS membership (grp TEXT PRIMARY KEY, records BLOB NOT NULL)
"""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[bytes]).decode
_decode_offsets = msgspec.msgpack.Decoder(dict[int, int]).decode


class KeptPast(NamedTuple):
    """What an earlier run of the gateway knew."""

    records: dict[str, list[bytes]]
    """The membership records of each group, in an order in which they can be taken in."""
    offsets: dict[int, int]
    """Per partition of the ordered topic the next offset: what comes from there on is not all known."""
    messages_ms: int
    """When the first of the last messages came; they are not here."""


class PastFile:
    """The file in a gateway's folder, for one ordered topic. Nothing is raised: what fails is in `trouble`."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE
        self.trouble: str | None = None
        """Why it could not be written last."""
        self._base: sqlite3.Connection | None = None

    def read(self, stream: str) -> KeptPast | None:
        """What was written for this ordered topic, by its id; None if there is nothing that counts."""
        try:
            return self._read(stream)
        except (sqlite3.Error, msgspec.DecodeError):
            self.close()
            with suppress(OSError):
                for path in self.path.parent.glob(f"{FILE}*"):
                    path.unlink(missing_ok=True)
            return None

    def _read(self, stream: str) -> KeptPast | None:
        base = self._opened()
        about = base.execute("SELECT * FROM about").fetchone()
        if about is None or about[:2] != (VERSION, stream):
            base.execute("DELETE FROM about")
            base.execute("DELETE FROM membership")
            return None
        rows = base.execute("SELECT grp, records FROM membership")
        return KeptPast({group: _decode(records) for group, records in rows}, _decode_offsets(about[2]), about[3])

    def write(
        self, stream: str, changed: Mapping[str, Iterable[bytes]], offsets: Mapping[int, int], messages_ms: int
    ) -> bool:
        """These groups have these records now; returns whether that is on the disk."""
        rows = [(group, _encode(list(records))) for group, records in changed.items()]
        try:
            base = self._opened()
            base.execute("BEGIN")
            base.executemany("INSERT OR REPLACE INTO membership VALUES (?, ?)", rows)
            base.execute("DELETE FROM about")
            base.execute("INSERT INTO about VALUES (?, ?, ?, ?)", (VERSION, stream, _encode(offsets), messages_ms))
            base.execute("COMMIT")
        except sqlite3.Error as error:
            self.close()
            self.trouble = f"The gateway's file {self.path} cannot be written: {error}. Its next start takes longer."
            return False
        self.trouble = None
        return True

    def _opened(self) -> sqlite3.Connection:
        if self._base is None:
            self._base = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False)
            for statement in ("PRAGMA journal_mode = WAL", "PRAGMA synchronous = NORMAL", *SCHEMA.split(";")):
                self._base.execute(statement).fetchall()
        return self._base

    def close(self) -> None:
        """Let go of the file."""
        if self._base is not None:
            with suppress(sqlite3.Error):
                self._base.close()
            self._base = None
