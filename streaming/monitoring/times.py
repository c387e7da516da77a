"""How long messages take, in seconds: from arrival or release to the commit, and how long they were held.

The times stand in the ordered records themselves. Of a long list only every n-th record is read and counts for the
others, so that looking costs next to nothing however much is published at once; of up to `SAMPLES_MAX` all are read.
"""

import time
from bisect import bisect_left
from collections.abc import Sequence
from contextlib import suppress
from itertools import accumulate
from random import randrange

from precede.udfs.records.published import read_times

DELAY_BOUNDS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600)
HOLD_BOUNDS_S = (0.01, 0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600, 86400)
SAMPLES_MAX = 32


class TimeHistogram:
    """Counts by upper bound; one thread adds, others read."""

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
