"""Files that several processes share: replaced in one step, and locked by one process at a time."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import lock_descriptor

from precede.udfs.errors import Refused

POLL_S = 0.01


def replace_file(path: Path, content: bytes, *, durable: bool = True) -> None:
    """Replace the whole file: a crash leaves the old one or the new one; if `durable`, a power cut does, too.

    Only one process at a time may do this to a file, so the caller must hold a lock.
    """
    new = path.with_name(f"{path.name}.new")
    try:
        with new.open("wb") as file:
            file.write(content)
            if durable:
                file.flush()
                os.fsync(file.fileno())
    except OSError:
        new.unlink(missing_ok=True)  # a part of it would fill a full disk
        raise
    new.replace(path)


@contextmanager
def locked(path: Path, *, refusal: str | None = None, tell: Callable[[], object] = lambda: None) -> Iterator[int]:
    """Hold the lock of this file, and return its descriptor; the end of a process releases the lock in any case.

    If another process holds the lock, this raises Refused with the given sentence; without one, it calls `tell` and
    waits. A child process that inherits the descriptor also holds the lock until it ends.
    """
    with path.open("ab") as file:
        if not lock_descriptor(file.fileno(), blocking=False):
            if refusal is not None:
                raise Refused(refusal)
            tell()
            lock_descriptor(file.fileno(), poll_interval=POLL_S)
        yield file.fileno()
