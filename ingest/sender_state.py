"""The memory of who has sent what, in one small file, so that a sender's seq goes on between two commands.

A seq that is used twice with other content is lost for ever (`equivocation`), so the file follows three rules:
- one process at a time: whoever works with it holds the lock file beside it;
- the next seq and the very bytes that take it are written down before they are sent: after a crash or an unanswered
  request the same bytes go out again, which the kernel drops as an exact copy where they had arrived;
- where it cannot be known what a sender has used, it starts anew with a larger epoch.
"""

import contextlib
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from precede.ingest.files import locked, replace_file
from precede.udfs.errors import Refused

VERSION = 1
STATE_FILE = "precede/senders.json"
IN_USE = (
    "The state file {} is in use: a member is open in one place at a time; close the other, or name another state file."
)


class Sender(msgspec.Struct, omit_defaults=True):
    """One sender in one group of one log: the last seq it took, and the record that Kafka has not confirmed yet.

    A member (precede.Member) keeps more with it, written in one step: what its stamps need, and how far it has read.
    """

    log: str  # which Kafka cluster and topic: another log knows nothing of these seqs
    group: str
    sender: str
    epoch: int = 0
    seq: int = 0
    pending: str | None = None
    joined: bool = False  # whether this epoch has said `join`
    stamps: dict[str, Any] | None = None  # what the order's stamps are made of
    knowledge: dict[str, Any] | None = None  # what is known of the group
    token: str | None = None  # where to go on reading


class Memory(msgspec.Struct):
    version: int = VERSION
    senders: list[Sender] = []

    def find(self, log: str, group: str, sender: str) -> Sender | None:
        for known in self.senders:
            if (known.log, known.group, known.sender) == (log, group, sender):
                return known
        return None

    def add(self, sender: Sender) -> Sender:
        self.senders.append(sender)
        return sender

    def begin(self, log: str, group: str, sender: str, epoch: int) -> Sender:
        """From here on the sender speaks under this epoch, in which it has said nothing yet."""
        known = self.find(log, group, sender) or self.add(Sender(log, group, sender))
        known.epoch, known.seq, known.pending, known.joined = epoch, 0, None, False
        return known


class SenderState:
    """The file, opened under its lock; `save` replaces it in one step, so a crash leaves the old one or the new one."""

    def __init__(self, path: Path, memory: Memory) -> None:
        self.path = path
        self.memory = memory

    def save(self) -> None:
        replace_file(self.path, msgspec.json.format(msgspec.json.encode(self.memory)))


def default_file() -> Path:
    """The place for state that is neither configuration nor cache (XDG base directories)."""
    if named := os.environ.get("PRECEDE_STATE"):
        return Path(named)
    home = os.environ.get("XDG_STATE_HOME")
    return (Path(home) if home else Path.home() / ".local" / "state") / STATE_FILE


def member_file(log: str, group: str, name: str) -> Path:
    """One small file for each member, beside the one of `precede send`."""
    whose = hashlib.sha256(msgspec.json.encode((log, group, name))).hexdigest()[:24]
    return default_file().with_name("members") / f"{whose}.json"


@contextlib.contextmanager
def opened(path: Path, *, wait: bool = True) -> Iterator[SenderState]:
    """The state in `path`, which nobody else may open until this is left; an absent file is an empty memory."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with locked(path.with_name(path.name + ".lock"), refusal=None if wait else IN_USE.format(path)):
            yield SenderState(path, _read(path))
    except OSError as error:
        raise Refused(f"The state file {path} cannot be used: {error.strerror}.") from error


def _read(path: Path) -> Memory:
    try:
        memory = msgspec.json.decode(path.read_bytes(), type=Memory)
    except FileNotFoundError:
        return Memory()
    except msgspec.DecodeError as error:
        raise Refused(
            f"The state file {path} is damaged ({error}); move it away, and each sender goes on under a new epoch."
        ) from error
    if memory.version > VERSION:
        raise Refused(
            f"The state file {path} is of version {memory.version}; this precede knows {VERSION}: use a newer one."
        )
    return memory
