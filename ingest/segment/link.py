"""One segment on one socket: what arrives goes in, what is due goes out, and events are handed on.

`open_link` makes a link from an address and a key. The runner calls it under its lock (runner.py), and no one else
does.
"""

import logging
import os
import re
import stat
from collections.abc import Callable
from pathlib import Path
from random import Random
from time import monotonic, time
from typing import Any, TypeAlias

from precede.ingest.segment.address import SegmentAddress
from precede.ingest.segment.sockets import SegmentSocket
from precede.udfs.errors import Refused
from precede.udfs.peers.events import Event
from precede.udfs.peers.frames import INCARNATION_MAX, Codec, make_origin, segment_number
from precede.udfs.peers.segment import SegmentProtocol

_LOGGER = logging.getLogger("precede.segment")
DRAINED_MAX = 32
"""So many datagrams are taken before other threads have a turn."""
SERVE_MS = 1.0
"""While more lies in the socket, own datagrams are sent and events are told this often."""
CHECK_MS = 1_000.0

Listener: TypeAlias = Callable[[list[Event]], None]
"""Takes events in the order in which they happened. It is called under the lock of the runner, so it must be quick."""


def clock_ms() -> float:
    """The time that segments are handed; it never runs back."""
    return monotonic() * 1_000


def clock_offset_ms() -> float:
    """What the wall clock shows beyond it."""
    return time() * 1_000 - clock_ms()


class Link:
    """A segment, its socket, and who listens to its events."""

    def __init__(
        self,
        segment: SegmentProtocol,
        socket: SegmentSocket,
        listener: Listener,
        *,
        keep: Callable[[], None] = lambda: None,
    ) -> None:
        """`keep` is called before anything is sent: it writes to disk what must be there first."""
        self.segment = segment
        self.socket = socket
        self.listener = listener
        self.is_paused = False
        """Whether to take nothing in, as the listener cannot follow; the others will send it again."""
        self._keep = keep
        self.deadline_ms = 0.0
        """When `turn` is due at the latest."""
        self._served_ms = 0.0
        self._check_ms = 0.0

    @property
    def hears_itself(self) -> bool:
        """Whether an own datagram has come back."""
        return "own" in self.segment.broadcast.counts

    def turn(self) -> None:
        """Take what has arrived, and send what is due."""
        now_ms = self._served_ms = clock_ms()
        is_drained = self._drain(now_ms)
        if now_ms >= self._check_ms:
            self._check_ms = now_ms + CHECK_MS
            self.segment.clock_offset_ms = clock_offset_ms()
            self.socket.check()
        self.deadline_ms = self._serve(is_drained=is_drained)
        if not is_drained:
            self.deadline_ms = 0.0

    def _drain(self, now_ms: float) -> bool:
        """Take some datagrams; returns whether none is left."""
        if self.is_paused:
            return True
        receive, take = self.socket.receive, self.segment.receive
        for _ in range(DRAINED_MAX):
            datagram = receive()
            if datagram is None:
                return True
            take(datagram, now_ms)
            now_ms = clock_ms()
            if now_ms >= self._served_ms + SERVE_MS:
                self._serve(is_drained=False)
        return False

    def _serve(self, *, is_drained: bool) -> float:
        """Send what is due, and tell what happened; returns when something is due next."""
        now_ms = self._served_ms = clock_ms()
        deadline_ms = self.segment.deadline_ms()
        if deadline_ms <= now_ms:
            datagrams = self.segment.due(now_ms, is_drained=is_drained)
            if datagrams:
                self._keep()
            for datagram in datagrams:
                self.socket.send(datagram)
            deadline_ms = self.segment.deadline_ms()
        self.hand_on()
        return deadline_ms

    def hand_on(self) -> None:
        """Tell what has happened; what was just said waits up to a turn for more, and goes as one bundle."""
        events = self.segment.take_events(with_said=False)
        if events:
            self.listener(events)
        for fault in self.segment.take_faults():
            _LOGGER.error(
                "precede has an error of its own on the segment %s, and goes on without what raised it (counted as"
                " internal_error): please report it.",
                self.socket.address,
                exc_info=fault,
            )

    def counts(self) -> dict[str, int]:
        """Everything that is counted: what was dropped by the protocol's code, and what the socket saw."""
        segment, socket = self.segment, self.socket
        found = dict(segment.broadcast.counts)
        for group in segment.groups.values():
            for code, count in group.counts.items():
                found[code] = found.get(code, 0) + count
        found |= {f"not_sent_{name}": count for name, count in socket.counts.items()}
        return found | {
            "received_datagrams": socket.received,
            "received_bytes": socket.received_bytes,
            "sent_datagrams": socket.sent,
            "sent_bytes": socket.sent_bytes,
            "dropped_by_system": socket.dropped(),
            "lost": segment.broadcast.lost,
        }


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
    """A segment on its socket, for a runner; it goes on from `state`, and `more` is for `SegmentProtocol`.

    Raises Refused if the socket cannot be opened.
    """
    socket = SegmentSocket(address)
    now_ms = clock_ms()
    more.setdefault("epoch", new_epoch())
    segment = SegmentProtocol(
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
