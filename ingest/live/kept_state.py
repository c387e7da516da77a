"""A live reader's own copy of its kernel's state, in a file: a restart then needs neither the state topic nor long.

The file is replaced in one step. It is only used where it belongs to the same stream and the same groups; one that is
torn, foreign or of another version is left aside with a warning.
"""

import warnings
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from zlib import crc32

import msgspec

from precede.ingest.files import locked, replace_file
from precede.ingest.live.kernel import KernelState, StreamIdentity

VERSION = 1
MAGIC = b"precede live state\n"
_CHECKSUM_BYTES = 4


class _StoredKernel(msgspec.Struct, array_like=True):
    v: int
    stream: StreamIdentity
    read: list[bytes] | None
    """The groups that were read; None for all."""
    state: KernelState


@contextmanager
def only_reader(path: Path | None) -> Iterator[None]:
    """Keep others from the file while a reader uses it; raises Refused if another reader does."""
    if path is None:
        yield
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    refusal = f"Another live reader keeps its state in {path}: choose another file for this one."
    with locked(path.with_name(f"{path.name}.lock"), refusal=refusal):
        yield


def write_state(path: Path, stream: StreamIdentity, groups: Collection[bytes] | None, state: KernelState) -> None:
    """Replace the file."""
    packed = msgspec.msgpack.encode(_StoredKernel(VERSION, stream, None if groups is None else sorted(groups), state))
    replace_file(path, MAGIC + crc32(packed).to_bytes(_CHECKSUM_BYTES) + packed, durable=False)


def read_state(path: Path, stream: StreamIdentity, groups: Collection[bytes] | None) -> KernelState | None:
    """What the file holds; None if there is none, or if it cannot be used."""
    if not path.exists():
        return None
    try:
        return _decode(path.read_bytes(), stream, groups)
    except OSError as error:
        why = f"it cannot be read ({error.strerror})"
    except _UnusableError as error:
        why = str(error)
    warnings.warn(f"The live state in {path} is not used: {why}. The state topic is read instead.", stacklevel=2)
    return None


class _UnusableError(Exception):
    """Why a file cannot be used."""


def _decode(content: bytes, stream: StreamIdentity, groups: Collection[bytes] | None) -> KernelState:
    begin = len(MAGIC) + _CHECKSUM_BYTES
    packed = memoryview(content)[begin:]
    if not content.startswith(MAGIC):
        raise _UnusableError("it is no state of a live reader")
    if crc32(packed).to_bytes(_CHECKSUM_BYTES) != content[len(MAGIC) : begin]:
        raise _UnusableError("it is torn")
    try:
        kept = msgspec.msgpack.decode(packed, type=_StoredKernel)
    except msgspec.DecodeError as error:
        raise _UnusableError("another version of precede wrote it") from error
    if kept.v != VERSION:
        raise _UnusableError("another version of precede wrote it")
    if kept.stream != stream:
        raise _UnusableError(_other(kept.stream, stream))
    if kept.read != (None if groups is None else sorted(groups)):
        raise _UnusableError("a reader of other groups wrote it")
    return kept.state


def _other(kept: StreamIdentity, stream: StreamIdentity) -> str:
    differing = [name for name in StreamIdentity.__struct_fields__ if getattr(kept, name) != getattr(stream, name)]
    return f"it belongs to another stream (other {', '.join(differing)})"
