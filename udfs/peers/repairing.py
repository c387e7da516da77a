"""Sends frames again that others miss: the origin soon, others after a longer random delay, and each frame once.

Who hears a frame repaired does not repair it too, and for a while no request for it counts, because it may have been
under way. Who asks is served as far as it has earned that by what it said (streams.py): a forged request draws at most
ten bytes for each of its own, whatever the name.

What can be sent again is in the `FrameStore`: the frames of this peer and those of others. Where its room is full, the
origin that takes most of it loses its oldest frames: a flood then pushes out itself.
"""

from collections import OrderedDict, deque
from heapq import heappop, heappush

from precede.udfs.peers.frames import (
    BUNDLE_BYTES_MAX,
    FRAME,
    REPAIR,
    REPAIR_HEAD,
    Chance,
    DropCounts,
    frame_bytes,
    write_repair,
)
from precede.udfs.peers.streams import OriginStream

Stored = tuple[int, bytes]
"""kind and body."""

STORE_BYTES_MAX = 32 * 1024 * 1024
FRAME_COST = 200
"""What one frame takes in memory beside its body."""


class _KeptFrames:
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
        self._kept: dict[bytes, _KeptFrames] = {}
        self.size = 0

    def get(self, origin: bytes, seq: int) -> Stored | None:
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

    def _of(self, origin: bytes) -> _KeptFrames:
        kept = self._kept.get(origin)
        if kept is None:
            kept = self._kept[origin] = _KeptFrames()
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


OWN_MS = 2.0
"""A peer repairs its own frames within this time."""
OTHERS_MS = (4.0, 20.0)
"""How long a peer waits before it repairs the frames of others."""
PEERS_USUAL = 16
"""With more peers than this, OTHERS_MS grows in proportion, so that they do not all answer at once."""
HOLD_MS = 15.0
"""How long after a repair no request for the same frame counts."""
PER_SECOND_MAX = 2_000
BURST = 64
PENDING_MAX = 10_000
ROOM = BUNDLE_BYTES_MAX - 36
COST = 36 + FRAME.size + REPAIR_HEAD.size
"""What a repair has beside the body of the frame, if it is alone in its datagram."""

Place = tuple[bytes, int]
"""origin, seq."""


class Repairing:
    """The repairs of one peer."""

    def __init__(self, own: bytes, store: FrameStore, chance: Chance, counts: DropCounts) -> None:
        self._own = own
        self._store = store
        self._chance = chance
        self._counts = counts
        self._pending: set[Place] = set()
        """The repairs that will be sent unless somebody else sends them."""
        self._due: list[tuple[float, Place]] = []
        self._held: OrderedDict[Place, float] = OrderedDict()
        """When each frame was repaired last, the oldest first."""
        self._tokens = float(BURST)
        self._refilled_ms = 0.0
        self.sent = 0

    def request(self, asker: OriginStream, origin: bytes, first: int, last: int, *, peers: int, now_ms: float) -> bool:
        """Somebody asks for these frames; returns whether it may ask for more.

        All who hear the request charge the asker for the same frames, so together they send what it has earned.
        """
        delay_ms = self._delay_ms(origin, peers)
        for seq in range(first, last + 1):
            place = origin, seq
            stored = self._store.get(origin, seq)
            if stored is None or place in self._pending or self._held.get(place, -HOLD_MS) + HOLD_MS > now_ms:
                continue
            cost = len(stored[1]) + COST
            if asker.repair_credit < cost:
                self._counts.add("repairs_not_earned")
                return False
            if len(self._pending) >= PENDING_MAX:
                self._counts.add("repairs_crowded_out")
                return False
            asker.repair_credit -= cost
            self._pending.add(place)
            heappush(self._due, (now_ms + delay_ms, place))
        return True

    def _delay_ms(self, origin: bytes, peers: int) -> float:
        if origin == self._own:
            return self._chance.uniform(0, OWN_MS)
        low, high = OTHERS_MS
        return self._chance.uniform(low, low + (high - low) * max(1.0, peers / PEERS_USUAL))

    def heard(self, origin: bytes, seq: int, now_ms: float) -> None:
        """Somebody else repaired a frame."""
        place = origin, seq
        self._pending.discard(place)
        self._hold(place, now_ms)

    def deadline_ms(self) -> float | None:
        while self._due and self._due[0][1] not in self._pending:
            heappop(self._due)
        if not self._due:
            return None
        wait_ms = 0.0 if self._tokens >= 1 else (1 - self._tokens) * 1_000 / PER_SECOND_MAX
        return max(self._due[0][0], self._refilled_ms + wait_ms)

    def due(self, now_ms: float) -> list[list[bytes]]:
        """The repairs that are due now, as the frames of one datagram each."""
        self._tokens = min(BURST, self._tokens + (now_ms - self._refilled_ms) * PER_SECOND_MAX / 1_000)
        self._refilled_ms = now_ms
        datagrams: list[list[bytes]] = []
        room = 0
        while self._due and self._due[0][0] <= now_ms and self._tokens >= 1:
            place = heappop(self._due)[1]
            stored = self._store.get(*place)
            if place not in self._pending:
                continue
            self._pending.discard(place)
            if stored is None:
                continue
            size = len(stored[1]) + REPAIR_HEAD.size + FRAME.size
            self._tokens -= 1
            self._hold(place, now_ms)
            if size > room:
                datagrams.append([])
                room = ROOM
            datagrams[-1].append(frame_bytes(REPAIR, place[1], write_repair(place[0], *stored)))
            room -= size
            self.sent += 1
        return datagrams

    def _hold(self, place: Place, now_ms: float) -> None:
        held = self._held
        held[place] = now_ms
        held.move_to_end(place)
        while len(held) > PENDING_MAX or next(iter(held.values())) + HOLD_MS <= now_ms:
            held.popitem(last=False)
