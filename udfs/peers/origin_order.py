"""What came before earlier payloads of its origin, and may not be taken before them.

Under orders by clocks, what a member says after it has taken a join into account counts only after that join: else
others would deliver what lies above the first word of the newcomer. A peer that takes a join says so at once
(peer_group.py), and what it says is taken in its turn, so each join comes before all that was said after it.
"""

from collections.abc import Callable
from heapq import heappop, heappush

from precede.udfs.peers.streams import OriginStream, Streams

EARLY_BYTES_MAX = 16 * 1024 * 1024
"""So much may wait; beyond it, what comes early is left to synchronising."""
COST = 200
"""What one takes in memory beside its bytes."""


def none_keeps_turn(_kind: int, _payload: bytes) -> bool:
    """Everything may be taken as it arrives."""
    return False


Arrival = tuple[bytes, int, bytes]
"""origin, kind, payload."""


class OriginOrder:
    """The early payloads, by origin."""

    def __init__(self, keeps_turn: Callable[[int, bytes], bool]) -> None:
        """`keeps_turn` says of a payload whether it may not be taken early."""
        self.keeps_turn = keeps_turn
        self.size = 0
        self._early: dict[bytes, list[tuple[int, int, bytes]]] = {}

    def has_room(self, size: int) -> bool:
        return self.size + size + COST <= EARLY_BYTES_MAX

    def put(self, origin: bytes, seq: int, kind: int, payload: bytes) -> None:
        """A payload waits for the frames before this one."""
        heappush(self._early.setdefault(origin, []), (seq, kind, payload))
        self.size += len(payload) + COST

    def take(self, origin: bytes, stream: OriginStream | None) -> list[Arrival]:
        """What of this origin need not wait any more: all of it where its stream is forgotten."""
        early = self._early.get(origin)
        if early is None:
            return []
        taken: list[Arrival] = []
        while early and (stream is None or early[0][0] <= stream.runs.prefix):
            _, kind, payload = heappop(early)
            self.size -= len(payload) + COST
            taken.append((origin, kind, payload))
        if not early:
            del self._early[origin]
        return taken

    def take_all(self, streams: Streams) -> list[Arrival]:
        """The same of all origins: frames may have been given up that something waited for."""
        return [one for origin in list(self._early) for one in self.take(origin, streams.get(origin))]
