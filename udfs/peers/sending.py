"""Sends a peer's own frames: several in one datagram, at a pace, and no more than the others can follow.

Without a window, peers that send faster than some can read drown in requests for what these lost. So at most `window`
frames are under way that a present peer has not confirmed. Peers that confirm nothing for STALL_MS are not waited for:
they have crashed, are cut off, or lie.
"""

from collections import deque
from itertools import islice

from precede.udfs.peers.frames import BUNDLE_BYTES_MAX, FRAME, frame_bytes
from precede.udfs.peers.repairing import FrameStore

LINGER_MS = 1.0
"""How long a frame waits for others to share its datagram; with more than PEERS_USUAL peers longer in proportion.

What a datagram costs its receivers is paid once by each of them.
"""
PEERS_USUAL = 4
BUSY_FRAMES = 4
BUSY_MS = 0.5
"""After a datagram of BUSY_FRAMES frames the next one waits so much longer: a little later it is full."""
LINGER_MS_MAX = 4.0
PER_MS_MAX = 32
"""The pace: so many frames in a millisecond, and twice as many at once."""
WINDOW_MAX = 1_024
WINDOW_IN_ALL = 3_000
"""The window of one peer is this, divided by the number of peers, but at most WINDOW_MAX."""
STALL_MS = 500.0
ROOM = BUNDLE_BYTES_MAX - 36
USABLE_BYTES = 64
"""Where less room is left than this, a datagram is full."""


class _Follower:
    """How far another peer has confirmed this one's frames."""

    __slots__ = ("confirmed", "has_followed", "moved_ms")

    def __init__(self, confirmed: int, now_ms: float) -> None:
        self.confirmed = confirmed
        self.moved_ms = now_ms
        self.has_followed = False
        """Whether it ever confirmed more than at first; made-up peers do not."""


class Sending:
    """The frames that one peer has to send, and those under way."""

    def __init__(self, own: bytes, store: FrameStore) -> None:
        self._own = own
        self._store = store
        self.seq = 0
        """The last seq that was sent."""
        self._queue: deque[tuple[int, bytes]] = deque()
        self.queued_bytes = 0
        self._flush_ms = 0.0
        """When what waits goes out at the latest, be its datagram full or not."""
        self._not_before_ms = 0.0
        self._bundled = 0
        """How many frames the last time that any were sent."""
        self._tokens = float(2 * PER_MS_MAX)
        self._refilled_ms = 0.0
        self._followers: dict[bytes, _Follower] = {}
        self.sent_frames = 0

    def put(self, frames: list[tuple[int, bytes]], peers: int, now_ms: float) -> None:
        """Queue frames, each as kind and body."""
        if not self._queue:
            self._flush_ms = now_ms + self._linger_ms(peers)
        self._queue += frames
        for _, body in frames:
            self.queued_bytes += len(body)

    def _linger_ms(self, peers: int) -> float:
        busy_ms = BUSY_MS if self._bundled >= BUSY_FRAMES else 0.0
        return min(LINGER_MS * max(1.0, peers / PEERS_USUAL) + busy_ms, LINGER_MS_MAX)

    def confirm(self, origin: bytes, prefix: int, now_ms: float) -> bool:
        """Another peer has all frames up to this one; returns whether that can be true."""
        if prefix > self.seq:
            return False
        follower = self._followers.get(origin)
        if follower is None:
            self._followers[origin] = _Follower(prefix, now_ms)
        elif prefix > follower.confirmed:
            follower.confirmed = prefix
            follower.moved_ms = now_ms
            follower.has_followed = True
        return True

    def forget(self, present: set[bytes]) -> None:
        """Wait only for these peers."""
        for origin in self._followers.keys() - present:
            del self._followers[origin]

    def confirmed(self, now_ms: float) -> int:
        """Up to this seq every peer that counts has all frames."""
        return min((one.confirmed for one in self._counting(now_ms)), default=self.seq)

    def _counting(self, now_ms: float) -> list[_Follower]:
        """Those that lack something and have not stood still for long."""
        followers = self._followers.values()
        return [one for one in followers if one.moved_ms + STALL_MS > now_ms and one.confirmed < self.seq]

    def _room(self, peers: int, now_ms: float) -> int:
        """How many frames may go now."""
        self._tokens = min(2 * PER_MS_MAX, self._tokens + (now_ms - self._refilled_ms) * PER_MS_MAX)
        self._refilled_ms = now_ms
        window = min(WINDOW_MAX, WINDOW_IN_ALL // max(1, peers))
        followed = min((one.confirmed for one in self._counting(now_ms) if one.has_followed), default=self.seq)
        return min(int(self._tokens), window - (self.seq - followed))

    def deadline_ms(self) -> float | None:
        """When to call `due`; where the window is full, a confirmation comes first or a peer stops counting."""
        if not self._queue:
            return None
        return self._not_before_ms if self.queued_bytes >= ROOM else max(self._flush_ms, self._not_before_ms)

    def due(self, peers: int, now_ms: float) -> list[list[bytes]]:
        """What may be sent now, as the frames of one datagram each; the last may have room for more."""
        queue = self._queue
        is_early = now_ms < self._flush_ms
        if not queue or now_ms < self._not_before_ms or (is_early and self.queued_bytes < ROOM):
            return []
        count = self._room(peers, now_ms)
        full = self._in_full_datagrams(count)
        if full or is_early:
            count = full  # the rest waits for more
        if count <= 0:
            self._not_before_ms = now_ms + LINGER_MS
            return []
        for follower in self._followers.values():
            if follower.confirmed == self.seq:
                follower.moved_ms = now_ms  # nothing was under way to it, so nothing was overdue
        frames = [queue.popleft() for _ in range(min(count, len(queue)))]
        datagrams = self._number(frames)
        self._tokens -= len(frames)
        self._bundled = len(frames)
        self.sent_frames += len(frames)
        self._flush_ms = now_ms + self._linger_ms(peers)  # the youngest frames are left
        return datagrams

    def _in_full_datagrams(self, count: int) -> int:
        """How many of the next frames fill their datagrams, where so many may go."""
        full = 0
        room = ROOM
        for taken, (_, body) in enumerate(islice(self._queue, max(0, count))):
            size = len(body) + FRAME.size
            if size > room:
                full = taken
                room = ROOM
            room -= size
            if room < USABLE_BYTES:
                full = taken + 1
        return full

    def _number(self, frames: list[tuple[int, bytes]]) -> list[list[bytes]]:
        """Give these their seqs, and keep them; returns them as the frames of one datagram each."""
        first = self.seq + 1
        self.seq += len(frames)
        self._store.put_next(self._own, first, frames)
        datagrams: list[list[bytes]] = []
        room = 0
        for seq, (kind, body) in enumerate(frames, first):
            self.queued_bytes -= len(body)
            size = len(body) + FRAME.size
            if size > room:
                datagrams.append([])
                room = ROOM
            datagrams[-1].append(frame_bytes(kind, seq, body))
            room -= size
        return datagrams
