"""Opens segments for programs: from an address and a key to a link that a runner drives."""

import os
import re
import stat
from collections.abc import Callable
from pathlib import Path
from random import Random
from time import time
from typing import Any

from precede.ingest.segment.address import SegmentAddress
from precede.ingest.segment.link import Link, Listener, clock_ms, clock_offset_ms
from precede.ingest.segment.sockets import SegmentSocket
from precede.udfs.errors import Refused
from precede.udfs.peers.frames import INCARNATION_MAX, Codec, make_origin, segment_number
from precede.udfs.peers.segment import Segment

_HEXADECIMAL = re.compile(r"([0-9A-Fa-f]{2}){16,64}")


def read_segment_key(file: str | Path) -> bytes:
    """The key of a segment in a file: 32 to 128 hexadecimal digits, so 16 to 64 bytes. Raises Refused."""
    path = Path(file).expanduser()
    try:
        with path.open("rb") as opened:
            status = os.fstat(opened.fileno())
            text = opened.read(4_096)
    except OSError as error:
        raise Refused(f"The segment key {path} cannot be read: {error.strerror}.") from error
    if status.st_uid == os.getuid() and stat.S_IMODE(status.st_mode) & 0o077:
        raise Refused(f"The segment key {path} can be read by other users: chmod 600 {path}, or make a new key.")
    digits = text.decode("ascii", errors="replace").strip()
    if _HEXADECIMAL.fullmatch(digits) is None:
        raise Refused(
            f"The file {path} contains no segment key, which is 32 to 128 hexadecimal digits: make one with"
            f" openssl rand -hex 32 > {path}, and give it to all peers of the segment."
        )
    return bytes.fromhex(digits)


def open_link(
    address: SegmentAddress,
    name: str,
    listener: Listener,
    *,
    key: bytes | None,
    keep: Callable[[], None] = lambda: None,
    state: dict[str, Any] | None = None,
    is_clean: bool = True,
    **more: Any,
) -> Link:
    """A segment on its socket, for a runner; it goes on from `state`, and `more` is for `Segment`.

    Raises Refused if the socket cannot be opened.
    """
    socket = SegmentSocket(address)
    now_ms = clock_ms()
    more.setdefault("epoch", new_epoch())
    segment = Segment(
        name,
        new_origin(),
        Codec(segment_number(address.name), key),
        Random(),  # noqa: S311 (spreads requests in time, and guards nothing)
        now_ms=now_ms,
        clock_offset_ms=clock_offset_ms(),
        **more,
    )
    if state is not None:
        segment.restore(state, now_ms, is_clean=is_clean)
    return Link(segment, socket, listener, keep=keep)


def new_origin(*, draw: Callable[[int], bytes] = os.urandom) -> bytes:
    """An origin that no process ever had: 8 random bytes, and the second of the start."""
    return make_origin(draw(8), int(time()) & INCARNATION_MAX)


def new_epoch() -> int:
    """An epoch that this name has not used in a group that it knows nothing of."""
    return int(time())
