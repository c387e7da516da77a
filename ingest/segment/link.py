"""One `Segment` on one socket: what arrives goes in, what is due goes out, and events are handed on.

The runner calls this under its lock (runner.py), and no one else does.
"""

import logging
from collections.abc import Callable
from time import monotonic, time
from typing import TypeAlias

from precede.ingest.segment.sockets import SegmentSocket
from precede.udfs.peers.events import Event
from precede.udfs.peers.segment import Segment

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
