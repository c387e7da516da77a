"""The frames that a peer keeps so that it can send them again: its own and those of others.

Where the room is full, the origin that takes most of it loses its oldest frames: a flood then pushes out itself.
"""

from collections import deque

Stored = tuple[int, bytes]
"""kind and body."""

STORE_BYTES_MAX = 32 * 1024 * 1024
FRAME_COST = 200
"""What one frame takes in memory beside its body."""


class _Kept:
    """The frames of one origin."""

    __slots__ = ("age", "frames", "highest", "size")

    def __init__(self) -> None:
        self.frames: dict[int, Stored] = {}
        self.age: deque[int] = deque()
        """Their seqs in the order in which they came."""
        self.highest = 0
        """The largest seq that was ever kept."""
        self.size = 0


class FrameStore:
    """Frames by origin and seq, bounded in bytes."""

    def __init__(self, bytes_max: int = STORE_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._kept: dict[bytes, _Kept] = {}
        self.size = 0

    def get(self, origin: bytes, seq: int) -> Stored | None:
        """A frame, if it is kept."""
        kept = self._kept.get(origin)
        return None if kept is None else kept.frames.get(seq)

    def put(self, origin: bytes, seq: int, kind: int, body: bytes) -> None:
        """Keep a frame; what was kept under its seq, before its origin was forgotten for a while, makes room."""
        kept = self._of(origin)
        before = kept.frames.get(seq)
        if before is None:
            kept.age.append(seq)
        kept.frames[seq] = (kind, body)
        kept.highest = max(kept.highest, seq)
        size = len(body) + FRAME_COST if before is None else len(body) - len(before[1])
        kept.size += size
        self.size += size
        if self.size > self._bytes_max:
            self._make_room()

    def put_next(self, origin: bytes, first: int, frames: list[Stored]) -> None:
        """Keep frames of consecutive seqs."""
        kept = self._of(origin)
        if first <= kept.highest:
            for seq, (kind, body) in enumerate(frames, first):
                self.put(origin, seq, kind, body)
            return
        seqs = range(first, first + len(frames))
        kept.frames.update(zip(seqs, frames, strict=True))
        kept.age += seqs
        kept.highest = seqs[-1]
        size = sum([len(body) for _, body in frames]) + len(frames) * FRAME_COST
        kept.size += size
        self.size += size
        if self.size > self._bytes_max:
            self._make_room()

    def _of(self, origin: bytes) -> _Kept:
        kept = self._kept.get(origin)
        if kept is None:
            kept = self._kept[origin] = _Kept()
        return kept

    def first_kept(self, origin: bytes) -> int | None:
        """The first seq of an origin whose frames were put in order of seq, as one's own are."""
        kept = self._kept.get(origin)
        return None if kept is None else kept.age[0]

    def _make_room(self) -> None:
        """Drop a fiftieth at once, so that the heaviest origin is looked for seldom."""
        while self.size > self._bytes_max * 0.98:
            origin, kept = max(self._kept.items(), key=lambda one: one[1].size)
            least = min(kept.size * 0.98, kept.size - self.size + self._bytes_max * 0.98)
            while kept.age and kept.size > least:
                _, body = kept.frames.pop(kept.age.popleft())
                kept.size -= len(body) + FRAME_COST
                self.size -= len(body) + FRAME_COST
            if not kept.age:
                del self._kept[origin]
