"""What a peer keeps on disk, so that no seq of its own is used twice and nothing that it said is lost with it.

    NAME.state         all that `Segment.dump` returned, and whether that is all
    NAME.state.said-7  own messages since then, in the order in which they were said; 7 stands in the state, too
    NAME.state.told    what the application was told, written more often than all
    NAME.state.lock    held by the one process that uses them

The state is marked as taken when it is read, and as complete only when it is written at the end. A start that finds it
taken begins a new epoch (`Segment`, `is_clean`); the messages that were said since the state was written come back from
the second file.

Room for the next message is set aside on the disk before it is said (`make_room`): a full disk refuses what is not said
yet, and loses nothing that is. So the second file ends with zeros, which a reader takes for its end.
"""

import contextlib
import errno
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import msgspec

from precede.ingest.files import locked, replace_file
from precede.ingest.sender_state import default_file
from precede.udfs.errors import Refused
from precede.udfs.peers.handed_over import HandedOver

VERSION = 1
IN_USE = (
    "The state file {} is in use: a peer can be open in only one place; close the other, or name another state file."
)
LENGTH_BYTES = 4
AHEAD_BYTES = 256 * 1024
"""How much more than is needed is set aside at once."""
BESIDE_RECORD_BYTES = 2_048
"""More than stands beside a record in the second file."""
NOT_SET_ASIDE = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
"""What file systems answer that can set nothing aside."""
SAID_BYTES_MAX = 16 * 1024 * 1024
"""When the second file has grown to this, all is written again."""

OwnMessage = tuple[str, int, int, bytes]
"""Group, epoch, seq and the record of an own message."""


class _File(msgspec.Struct, omit_defaults=True):
    version: int
    segment: str
    name: str
    said: int
    """The number of the file with what was said since."""
    is_complete: bool
    dumped: bytes
    epoch: int = 0
    """The largest epoch that any start has used, in groups that were left, too."""


class PeerState:
    """The files of one peer, opened under their lock."""

    def __init__(self, path: Path, segment: str, name: str) -> None:
        self.path = path
        self.trouble: str | None = None
        """Why what was said last could not be written; it is tried again with what is said next."""
        self._segment = segment
        self._name = name
        found = self._read()
        self._number = 0 if found is None else found.said
        self.dumped: dict[str, Any] | None = None if found is None else msgspec.msgpack.decode(found.dumped)
        """What `Segment.dump` returned when it was written last."""
        self.epoch = 0 if found is None else found.epoch
        """The largest epoch that was used so far; the caller keeps it up to date."""
        self.is_clean = found is not None and found.is_complete
        """Whether nothing was said since then."""
        self.said: list[OwnMessage] = [] if self.is_clean else list(self._read_said())
        """The own messages since then."""
        self.told: HandedOver = {} if found is None or self.is_clean else self._read_handed_over()
        """What the application was told, also since then."""
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        self._file: IO[bytes] | None = None
        self._size = 0
        """Up to here the file holds whole messages."""
        self._set_aside = 0
        """Up to here the disk has room for the file."""
        if found is not None and self.is_clean:
            self._write(found.dumped, is_complete=False)

    # ── writing ───────────────────────────────────────────────────────────────────────────────────────────────────

    def make_room(self, record_bytes: int) -> None:
        """Have room on the disk for one more message of this size. Raises Refused if there is none."""
        if self.trouble is not None:
            self.flush()  # there may be room again
        if self.trouble is not None:
            raise Refused(self.trouble)
        end = self._size + self._waiting_bytes + record_bytes + BESIDE_RECORD_BYTES
        if self._file is None or end <= self._set_aside:
            return
        for wanted in (end + AHEAD_BYTES, end):
            try:
                os.posix_fallocate(self._file.fileno(), self._set_aside, wanted - self._set_aside)
            except OSError as error:
                if error.errno in NOT_SET_ASIDE:
                    return
                refusal = Refused(self._why_not(error))
            else:
                self._set_aside = wanted
                return
        raise refusal

    def add(self, said: OwnMessage) -> None:
        """An own message; `flush` writes it."""
        packed = msgspec.msgpack.encode(said)
        self._waiting += (len(packed).to_bytes(LENGTH_BYTES), packed)
        self._waiting_bytes += LENGTH_BYTES + len(packed)

    def flush(self) -> None:
        """Write the messages that were added; it never raises, but leaves its trouble for the next one who speaks."""
        if not self._waiting or self._file is None:
            return
        content = memoryview(b"".join(self._waiting))
        written = 0
        try:
            while written < len(content):  # a disk that becomes full takes a part
                written += os.pwrite(self._file.fileno(), content[written:], self._size + written)
        except OSError as error:
            self.trouble = self._why_not(error)
            return  # the next time all of it is written to the same place
        self.trouble = None
        self._size += len(content)
        self._waiting.clear()
        self._waiting_bytes = 0

    def _why_not(self, error: OSError) -> str:
        assert self._file is not None
        return (
            f"What is said cannot be written to {self._file.name}: {error.strerror}. Make room on that disk, and send"
            " it again."
        )

    @property
    def is_large(self) -> bool:
        """Whether it is time to write all again."""
        return self._size > SAID_BYTES_MAX

    def begin_next(self) -> None:
        """The caller takes a dump now: what is said from here on goes into another file.

        Raises Refused if that cannot be opened.
        """
        self.flush()
        if self._waiting:
            raise Refused(self.trouble or "")
        if self._file is not None and not self._size:
            return  # nothing was said since the last one was begun
        self._number += 1
        path = self._said_path(self._number)
        try:
            opened = path.open("wb", buffering=0)
        except OSError as error:
            self._number -= 1
            raise Refused(f"The file {path} cannot be written: {error.strerror}.") from error
        if self._file is not None:
            self._file.close()
        self._file, self._size, self._set_aside = opened, 0, 0

    def save(self, dumped: dict[str, Any], *, is_complete: bool = False) -> None:
        """Write what was dumped when `begin_next` was called, or, if it is complete, at the end. Raises Refused."""
        try:
            self._write(msgspec.msgpack.encode(dumped), is_complete=is_complete)
        except OSError as error:
            raise Refused(f"The state file {self.path} cannot be written: {error.strerror}.") from error
        for number, path in self._said_files():
            if is_complete or number < self._number:
                path.unlink(missing_ok=True)
        if is_complete:
            self._handed_over_path.unlink(missing_ok=True)

    def save_handed_over(self, told: HandedOver) -> None:
        """What the application was told so far. A failure costs only that some of it may be told again."""
        with contextlib.suppress(OSError):
            replace_file(self._handed_over_path, msgspec.msgpack.encode(told), durable=False)

    @property
    def _handed_over_path(self) -> Path:
        return self.path.with_name(f"{self.path.name}.told")

    def _read_handed_over(self) -> HandedOver:
        try:
            return msgspec.msgpack.decode(self._handed_over_path.read_bytes(), type=HandedOver)
        except (OSError, msgspec.DecodeError, UnicodeDecodeError):
            return {}

    def close(self) -> None:
        """Close the files; `save` says whether they are complete."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _write(self, dumped: bytes, *, is_complete: bool) -> None:
        whole = _File(VERSION, self._segment, self._name, self._number, is_complete, dumped, self.epoch)
        replace_file(self.path, msgspec.msgpack.encode(whole))

    # ── reading ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _read(self) -> _File | None:
        away = f"move it away, and {self._name} goes on with a new epoch"
        try:
            found = msgspec.msgpack.decode(self.path.read_bytes(), type=_File)
            msgspec.msgpack.decode(found.dumped)
        except FileNotFoundError:
            return None
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise Refused(f"The state file {self.path} is damaged ({error}): {away}.") from error
        if found.version > VERSION:
            raise Refused(
                f"The state file {self.path} is of version {found.version}; this precede knows {VERSION}: use a newer"
                " one."
            )
        if (found.segment, found.name) != (self._segment, self._name):
            raise Refused(
                f"The state file {self.path} is of {found.name} on {found.segment}, not of {self._name} on"
                f" {self._segment}: name another one."
            )
        return found

    def _said_path(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name}.said-{number}")

    def _said_files(self) -> list[tuple[int, Path]]:
        start = f"{self.path.name}.said-"
        found = [path for path in self.path.parent.iterdir() if path.name.startswith(start)]
        return sorted((int(end), path) for path in found if (end := path.name.removeprefix(start)).isdecimal())

    def _read_said(self) -> Iterator[OwnMessage]:
        """What was said since the state was written, up to where a crash has cut it."""
        for number, path in self._said_files():
            if number < self._number:
                continue
            content = path.read_bytes()
            at = 0
            while at + LENGTH_BYTES <= len(content):
                end = at + LENGTH_BYTES + int.from_bytes(content[at : at + LENGTH_BYTES])
                try:
                    yield msgspec.msgpack.decode(content[at + LENGTH_BYTES : end], type=OwnMessage)
                except msgspec.DecodeError:
                    break
                at = end
            self._number = max(self._number, number)


def peer_file(segment: str, name: str, group: str | None, senders: str | None = None) -> Path:
    """The state file of one peer, for one group or for all; it is beside that of `precede send` (setting `state`)."""
    whose = hashlib.sha256(msgspec.json.encode((segment, name, group))).hexdigest()[:24]
    return (Path(senders) if senders else default_file()).with_name("peers") / f"{whose}.state"


@contextlib.contextmanager
def opened_state(path: Path, segment: str, name: str) -> Iterator[PeerState]:
    """Open the files in `path`, locked until this is left.

    Raises Refused if they are in use, damaged, or cannot be used.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with locked(path.with_name(path.name + ".lock"), refusal=IN_USE.format(path)):
            state = PeerState(path, segment, name)
            try:
                yield state
            finally:
                state.close()
    except OSError as error:
        raise Refused(f"The state file {path} cannot be used: {error.strerror}.") from error
