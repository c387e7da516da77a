"""One `Segment` on one socket: what arrives goes in, what is due goes out, and events are handed on.

The runner calls this under its lock (runner.py), and no one else does.
"""

from collections.abc import Callable
from time import monotonic, time
from typing import TypeAlias

from precede.ingest.segment.sockets import SegmentSocket
from precede.udfs.peers.events import Event
from precede.udfs.peers.segment import Segment

DRAINED_MAX = 128
"""So many datagrams are taken before others have a turn."""
OVERDUE_MS = 20.0
"""Where the socket is never empty, what is due goes out this often all the same."""
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
        self, segment: Segment, socket: SegmentSocket, listener: Listener, *, keep: Callable[[], None] = lambda: None
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
        self._turned_ms = 0.0
        self._check_ms = 0.0

    @property
    def hears_itself(self) -> bool:
        """Whether an own datagram has come back."""
        return "own" in self.segment.broadcast.counts

    def turn(self) -> None:
        """Take what has arrived, and send what is due."""
        is_empty = self._drain()
        now_ms = clock_ms()
        if now_ms >= self._check_ms:
            self._check_ms = now_ms + CHECK_MS
            self.segment.clock_offset_ms = clock_offset_ms()
            self.socket.check()
        # A request for what lies in the socket already would be wasted, so the socket is emptied first.
        if is_empty or now_ms >= self._turned_ms + OVERDUE_MS:
            self._turned_ms = now_ms
            self.deadline_ms = self.segment.deadline_ms()
            if self.deadline_ms <= now_ms:
                self._send(now_ms)
        if not is_empty:
            self.deadline_ms = now_ms
        self.hand_on()

    def _send(self, now_ms: float) -> None:
        datagrams = self.segment.due(now_ms)
        if datagrams:
            self._keep()
        for datagram in datagrams:
            self.socket.send(datagram)
        self.deadline_ms = self.segment.deadline_ms()

    def _drain(self) -> bool:
        if self.is_paused:
            return True
        receive, take = self.socket.receive, self.segment.receive
        for _ in range(DRAINED_MAX):
            datagram = receive()
            if datagram is None:
                return True
            take(datagram, clock_ms())
        return False

    def hand_on(self) -> None:
        """Tell what has happened."""
        if self.segment.events:
            self.listener(self.segment.take_events())

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
