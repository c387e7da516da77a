"""What was processed since the job began, what each shard holds, and how long messages take.

All is counted on the driver from the packed rows. The times, in seconds, stand in the ordered records themselves: from
arrival or release to the commit, and how long they were held. Of a long list only every n-th record is read and counts
for the others, so that looking costs next to nothing however much is published at once; of up to `SAMPLES_MAX` all are
read.
"""

import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import accumulate
from random import randrange

import msgspec

from precede.streaming.places.place import Place
from precede.udfs.records.published import read_times
from precede.udfs.steps import NOTHING_WAITS, Records, ShardWaiting

FILE = "held.json"
EVERY_S = 10.0


@dataclass
class JobCounts:
    """The counts of one batch, or of all batches so far."""

    batches: int = 0
    read: int = 0
    delivered: int = 0
    dead: int = 0
    duplicates: int = 0
    codes: Counter[str] = field(default_factory=Counter)
    """Dead letters by code."""
    next: dict[int, int] = field(default_factory=dict)
    """Per raw partition, the offset after the last processed one."""
    held: dict[int, int] = field(default_factory=dict)
    """Per shard, how many messages it holds; for one batch, only the shards that had records in it."""
    waiting: dict[int, ShardWaiting] = field(default_factory=dict)
    """Per shard, when the oldest held message arrived, and how many gaps there are."""
    state_bytes: dict[int, int] = field(default_factory=dict)
    """Per shard, the size of its state."""
    seconds: dict[str, float] = field(default_factory=dict)
    """How long the parts of the last batch took."""

    def add_row(self, shard: int, partition: int, offset: int, records: Records) -> None:
        """Count a packed row, whether or not its records are published already."""
        self.next[partition] = max(offset + 1, self.next.get(partition, 0))
        self.held[shard] = records.held
        if records.waiting is not None:
            self.waiting[shard] = records.waiting
            self.state_bytes[shard] = records.state_bytes

    def add_published(self, records: Records) -> None:
        """Count records that are published now."""
        self.read += records.read
        self.delivered += len(records.ordered)
        self.dead += len(records.dead)
        self.duplicates += records.duplicates
        self.codes.update(records.dead_codes)

    def add_batch(self, batch: "JobCounts") -> None:
        """Add the counts of a batch that is committed."""
        for name in ("batches", "read", "delivered", "dead", "duplicates"):
            setattr(self, name, getattr(self, name) + getattr(batch, name))
        for name in ("codes", "next", "held", "waiting", "state_bytes", "seconds"):
            mine = getattr(self, name)
            mine.update(getattr(batch, name))

    def forget_shards(self) -> None:
        """The query begins with other state, so what an earlier one said of its shards does not count."""
        for name in ("held", "waiting", "state_bytes"):
            getattr(self, name).clear()

    def lag(self, ends: Mapping[int, tuple[int, int]]) -> dict[int, int]:
        """Raw records not yet processed, by partition; `ends` are the first and next offset of each partition."""
        return {at: max(0, end - max(first, self.next.get(at, 0))) for at, (first, end) in ends.items()}

    @property
    def held_now(self) -> int:
        return sum(self.held.values())

    @property
    def gaps_now(self) -> int:
        return sum(gaps for _, gaps in list(self.waiting.values()))

    @property
    def oldest_ms(self) -> int | None:
        """When the oldest of the messages held now arrived."""
        return min((oldest for oldest, _ in list(self.waiting.values()) if oldest), default=None)


class _Shards(msgspec.Struct):
    """The file: per shard, messages held, bytes of its state, arrival of the oldest message held, gaps."""

    shards: dict[int, tuple[int, int, int, int]]
    v: int = 1


class CountsFile:
    """Keeps what each shard holds in the checkpoint's folder: a shard reports it only in batches with its records.

    It is written when it has changed and some seconds have passed, and at the end, because in a store each write costs.
    """

    def __init__(self, folder: Place) -> None:
        self._folder = folder
        self._written: dict[int, tuple[int, int, int, int]] | None = None
        self._written_at = time.monotonic()

    def save_if_due(self, counts: JobCounts) -> None:
        if time.monotonic() >= self._written_at + EVERY_S:
            self.save(counts)

    def save(self, counts: JobCounts) -> None:
        """Write it now, unless it is written like this already."""
        shards = {
            shard: (held, counts.state_bytes.get(shard, 0), *counts.waiting.get(shard, NOTHING_WAITS))
            for shard, held in counts.held.items()
        }
        self._written_at = time.monotonic()
        if shards == self._written:
            return
        self._written = shards
        with suppress(OSError):  # these numbers only inform; a full disk is reported by what needs the disk
            (self._folder / FILE).replace(msgspec.json.encode(_Shards(shards)), durable=False)


def load(folder: Place) -> JobCounts:
    """The counts at the start of a job: nothing is processed yet, but what is held is known."""
    counts = JobCounts()
    with suppress(OSError, msgspec.DecodeError):
        for shard, (held, size, oldest, gaps) in msgspec.json.decode(
            (folder / FILE).read(), type=_Shards
        ).shards.items():
            counts.held[shard] = held
            counts.state_bytes[shard] = size
            counts.waiting[shard] = (oldest, gaps)
    return counts


# ── how long messages take ────────────────────────────────────────────────────────────────────────────────────────────

DELAY_BOUNDS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600)
HOLD_BOUNDS_S = (0.01, 0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600, 86400)
SAMPLES_MAX = 32


class TimeHistogram:
    """JobCounts by upper bound; one thread adds, others read."""

    def __init__(self, bounds_s: Sequence[float]) -> None:
        self.bounds_s = tuple(bounds_s)
        self.sum_s = 0.0
        self._counts = [0.0] * (len(self.bounds_s) + 1)

    def add(self, seconds: float, count: float) -> None:
        self._counts[bisect_left(self.bounds_s, seconds)] += count
        self.sum_s += seconds * count

    def buckets(self) -> list[tuple[str, float]]:
        """As Prometheus has them: each bound, and how many were not above it."""
        names = [*(f"{bound:g}" for bound in self.bounds_s), "+Inf"]
        return list(zip(names, accumulate(self._counts), strict=True))


class Times:
    """The times of what is published."""

    def __init__(self) -> None:
        self.delay = TimeHistogram(DELAY_BOUNDS_S)
        self.hold = TimeHistogram(HOLD_BOUNDS_S)
        self._released: list[tuple[int, float]] = []
        self._held_s: list[tuple[float, float]] = []

    def begin(self) -> None:
        """A transaction begins; what was noted for one that failed does not count."""
        self._released, self._held_s = [], []

    def note(self, ordered: Sequence[bytes]) -> None:
        """Ordered records go into the open transaction."""
        step = -(-len(ordered) // SAMPLES_MAX)
        some = ordered if step <= 1 else ordered[randrange(step) :: step]  # noqa: S311
        for value in some:
            with suppress(ValueError):  # these numbers only inform
                found = read_times(value)
                count = len(ordered) / len(some)
                self._released.append((found.released_ms, count))
                if found.released_offset != found.offset:
                    self._held_s.append(((found.released_ms - found.arrived_ms) / 1000, count))

    def committed(self) -> None:
        """Readers see the records now; the broker's clock may differ from that of this machine."""
        now_ms = time.time() * 1000
        for released_ms, count in self._released:
            self.delay.add(max(0.0, now_ms - released_ms) / 1000, count)
        for held_s, count in self._held_s:
            self.hold.add(max(0.0, held_s), count)
        self.begin()
