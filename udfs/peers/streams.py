"""What a peer has heard of each origin: which of its frames are here, which are known to exist, and what it may cost.

No one can prove to be who it says, not even by a checksum, because all peers share the key. So everything that an
origin makes a peer do is paid from what was heard of it: requests for its frames from `ask_credit`, repairs for its
requests from `repair_credit`, and pages from `page_credit`. Each byte heard earns AMPLIFICATION of them.
"""

from collections.abc import Iterator

from precede.udfs.engine.runs import Runs
from precede.udfs.peers.frames import VectorEntry

ORIGINS_MAX = 256
LOOKAHEAD = 10_000
"""How far beyond the frames without a gap a frame is taken."""
LOOKBACK = 64
"""How many frames before the first one heard of an origin are asked for; all earlier ones are left to synchronising."""
AMPLIFICATION = 8
"""So many bytes are sent for one byte of an origin; heartbeats, which name it, bring that to ten at most."""
CREDIT_BYTES_MAX = 256 * 1024
PAGE_CREDIT_BYTES_MAX = 640 * 1024
"""A page may be one record of the largest size."""
FORGET_MS = 120_000
"""An origin that was silent for this time is forgotten."""
PROVEN_DATAGRAMS = 3
"""An origin counts as one more peer to share the medium with once so many datagrams of it were heard, as a flood of
made-up origins would slow all down that they share it with."""
LIVE_MS = 3_000
"""An origin that was heard within this time counts as present."""


class MissingFrame:
    """A missing frame that is being asked for."""

    __slots__ = ("asked", "due_ms", "others", "since_ms")

    def __init__(self, since_ms: float, due_ms: float) -> None:
        self.since_ms = since_ms
        self.due_ms = due_ms
        self.asked = 0
        """How often this peer asked."""
        self.others = 0
        """How often others asked for it since then."""


class OriginStream:
    """One origin, as far as it was heard here."""

    __slots__ = (
        *("ask_credit", "begun", "datagrams", "first_kept", "heard_ms", "highest", "mean_bytes"),
        *("next_try_ms", "noticed", "origin", "page_credit"),
        *("repair_credit", "runs", "unacked", "unanswered", "wanted"),
    )

    def __init__(self, origin: bytes, now_ms: float) -> None:
        self.origin = origin
        self.runs = Runs()
        """The frames that are here, or given up."""
        self.highest = 0
        """The largest seq that is known to exist, as far as the lookahead."""
        self.noticed = 0
        """Up to this seq the gaps are being asked for."""
        self.wanted: dict[int, MissingFrame] = {}
        """The missing frames that are being asked for (asking.py)."""
        self.unanswered = 0
        """How many frames were asked for since one came that had been missing."""
        self.next_try_ms = 0.0
        """When to ask again if all seems in vain."""
        self.first_kept = 1
        """The first frame that its origin still keeps."""
        self.heard_ms = now_ms
        self.datagrams = 0
        """How many datagrams of it were heard."""
        self.begun = False
        """Whether it is known from where on its frames are wanted."""
        self.unacked = 0
        """How many of its frames arrived since this peer last told what it has."""
        self.mean_bytes = 200.0
        """The mean size of its frames."""
        self.ask_credit = 0.0
        self.repair_credit = 0.0
        self.page_credit = 0.0

    def begin(self, first: int) -> None:
        """Take this as the first frame that is wanted."""
        self.begun = True
        self.runs = Runs()
        self.runs.fill(first - 1)
        self.wanted.clear()
        self.highest = self.noticed = first - 1

    def earn(self, size: int) -> None:
        """Something of this size was heard from the origin."""
        earned = AMPLIFICATION * size
        self.ask_credit = min(self.ask_credit + earned, CREDIT_BYTES_MAX)
        self.repair_credit = min(self.repair_credit + earned, CREDIT_BYTES_MAX)
        self.page_credit = min(self.page_credit + earned, PAGE_CREDIT_BYTES_MAX)

    def advance(self, count: int, size: int) -> None:
        """The next `count` frames are here, of `size` bytes in all, and nothing was missing before them."""
        seq = self.runs.prefix = self.runs.prefix + count
        self.highest = max(self.highest, seq)
        self.noticed = max(self.noticed, seq)
        self.mean_bytes += (size / count - self.mean_bytes) * min(count, 16) / 16

    def claim(self, highest: int) -> None:
        """Frames up to this one exist, somebody says."""
        highest = min(highest, self.runs.prefix + LOOKAHEAD)
        if highest > self.highest:
            self.highest = highest

    def deny(self, next_seq: int) -> None:
        """The origin itself says that this seq is not used yet: what others claimed beyond it does not exist."""
        if self.highest < next_seq:
            return
        self.highest = max(next_seq - 1, self.runs.largest)
        self.noticed = min(self.noticed, self.highest)
        for seq in [seq for seq in self.wanted if seq > self.highest]:
            del self.wanted[seq]

    def is_taken(self, seq: int) -> bool:
        """Whether the seq lies within the lookahead."""
        return seq <= self.runs.prefix + LOOKAHEAD

    def entry(self) -> VectorEntry:
        """What is here, for a heartbeat."""
        runs = self.runs
        return VectorEntry(self.origin, runs.prefix, runs.largest)


class Streams:
    """All origins that were heard, at most ORIGINS_MAX of them."""

    def __init__(self) -> None:
        self.by_origin: dict[bytes, OriginStream] = {}

    def get(self, origin: bytes) -> OriginStream | None:
        return self.by_origin.get(origin)

    def of(self, origin: bytes, now_ms: float) -> OriginStream:
        """What is known of an origin: nothing of one that is forgotten, which has then earned nothing."""
        return self.by_origin.get(origin) or OriginStream(origin, now_ms)

    def heard(self, origin: bytes, now_ms: float) -> OriginStream:
        """The stream of an origin that a datagram came from; beyond the limit the least known one makes room."""
        stream = self.by_origin.get(origin)
        if stream is None:
            if len(self.by_origin) >= ORIGINS_MAX:
                # Who said little is forgotten first: a flood of forged origins then pushes out itself.
                least = min(self.by_origin.values(), key=lambda one: (one.datagrams, one.heard_ms))
                del self.by_origin[least.origin]
            stream = self.by_origin[origin] = OriginStream(origin, now_ms)
        stream.heard_ms = now_ms
        stream.datagrams += 1
        return stream

    def live(self, now_ms: float) -> Iterator[OriginStream]:
        """The origins that were heard lately."""
        return (one for one in self.by_origin.values() if one.heard_ms + LIVE_MS >= now_ms)

    def forget_silent(self, now_ms: float) -> None:
        """Forget the origins that were silent for long."""
        for origin in [one.origin for one in self.by_origin.values() if one.heard_ms + FORGET_MS < now_ms]:
            del self.by_origin[origin]
