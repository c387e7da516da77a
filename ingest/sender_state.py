"""The memory of what each sender has sent, in one small file, so that its seq continues from command to command.

A seq that is used twice with other content is lost for ever (`equivocation`), so the file follows three rules:
- Only one process at a time uses it: it holds the lock file beside it.
- The next seq and the exact bytes that use it are stored before they are sent. After a crash or an unanswered request
  the same bytes are sent again, and the kernel drops them as an exact copy if they had arrived.
- If it cannot be known what a sender has used, it begins a larger epoch.
"""

import contextlib
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from threading import Lock
from typing import Any

import msgspec

from precede.ingest.files import locked, replace_file
from precede.udfs.errors import Closed, Refused

VERSION = 1
STATE_FILE = "precede/senders.json"
IN_USE = (
    "The state file {} is in use: a name can be open in only one place, so close the other, or take another name for"
    " this one. Another state file does not help: the two would say different things under the same ids, and what one"
    " of them says would be lost."
)


class KnownSender(msgspec.Struct, omit_defaults=True):
    """One sender in one group of one log: the last seq it used, and the record that Kafka has not confirmed yet.

    A member (precede.Member) stores more with it, in the same step: what its stamps need, and how far it has read.
    """

    log: str  # the Kafka cluster and topic; in another log these seqs mean nothing
    group: str
    sender: str
    epoch: int = 0
    seq: int = 0
    pending: str | None = None
    joined: bool = False  # whether this epoch has sent its `join`
    stamps: dict[str, Any] | None = None  # what the stamps of its order need
    knowledge: dict[str, Any] | None = None  # what is known of the group
    token: str | None = None  # where to go on reading
    fits: str | None = None  # the partitioner with which the group takes what `precede send` writes
    left: int = -1  # the last epoch that this name has left
    doubled: bool = False  # whether another sender uses this epoch, too, so that it must end


class Memory(msgspec.Struct):
    """All senders of a state file."""

    version: int = VERSION
    senders: list[KnownSender] = []

    def find(self, log: str, group: str, sender: str) -> KnownSender | None:
        """What is known of this sender."""
        for known in self.senders:
            if (known.log, known.group, known.sender) == (log, group, sender):
                return known
        return None

    def add(self, sender: KnownSender) -> KnownSender:
        """Add a sender that is not known yet."""
        self.senders.append(sender)
        return sender

    def begin(self, log: str, group: str, sender: str, epoch: int) -> KnownSender:
        """Begin an epoch of the sender, in which it has not sent anything yet."""
        known = self.find(log, group, sender) or self.add(KnownSender(log, group, sender))
        known.epoch, known.seq, known.pending, known.joined, known.doubled = epoch, 0, None, False, False
        return known


class SenderState:
    """The file, opened under its lock; threads may share it."""

    def __init__(self, path: Path, memory: Memory) -> None:
        self.path = path
        self.memory = memory
        self._is_open = True
        self._one_at_a_time = Lock()

    def save(self) -> None:
        """Replace the file by what is known now.

        Raises Closed once the lock is given back, because another process may write the file then; and Refused if it
        cannot be written: the file stays as it was.
        """
        with self._one_at_a_time:
            if not self._is_open:
                raise Closed(f"the state file {self.path}")
            try:
                replace_file(self.path, msgspec.json.format(msgspec.json.encode(self.memory)))
            except OSError as error:
                raise Refused(
                    f"The state file {self.path} cannot be written ({error.strerror}), and nothing is sent that it does"
                    " not have: make room, or mend the folder, and call again."
                ) from error

    def close(self) -> None:
        """Write nothing from now on; waits until what is being written is there."""
        with self._one_at_a_time:
            self._is_open = False


def default_file() -> Path:
    """Where state is kept that is neither configuration nor cache (XDG base directories)."""
    if named := os.environ.get("PRECEDE_STATE"):
        return Path(named)
    home = os.environ.get("XDG_STATE_HOME")
    return (Path(home) if home else Path.home() / ".local" / "state") / STATE_FILE


def member_file(log: str, group: str, name: str, senders: str | None = None) -> Path:
    """The state file of one member, beside the one of `precede send`, which the setting `state` may name."""
    whose = hashlib.sha256(msgspec.json.encode((log, group, name))).hexdigest()[:24]
    return (Path(senders) if senders else default_file()).with_name("members") / f"{whose}.json"


@contextlib.contextmanager
def opened(path: Path, *, wait: bool = True) -> Iterator[SenderState]:
    """Open the state in `path`, locked until this is left; if the file is absent, the memory is empty.

    Raises Refused if the file is damaged or cannot be used, and, without `wait`, if it is in use.
    """
    with contextlib.ExitStack() as held:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            lock = locked(path.with_name(path.name + ".lock"), refusal=None if wait else IN_USE.format(path))
            held.enter_context(lock)
            state = SenderState(path, read(path))
        except OSError as error:
            raise Refused(f"The state file {path} cannot be used: {error.strerror}.") from error
        held.callback(state.close)
        yield state


def read(path: Path) -> Memory:
    """What a state file says, without its lock; empty if there is none."""
    try:
        memory = msgspec.json.decode(path.read_bytes(), type=Memory)
    except FileNotFoundError:
        return Memory()
    except msgspec.DecodeError as error:
        raise Refused(
            f"The state file {path} is damaged ({error}); move it away, and each sender continues with a new epoch."
        ) from error
    if memory.version > VERSION:
        raise Refused(
            f"The state file {path} is of version {memory.version}; this precede knows {VERSION}: use a newer one."
        )
    return memory
