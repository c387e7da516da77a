"""A courier between members and the topic whose path delays, reorders, repeats and loses messages, as a seed decides.

Real networks sometimes do all of this; a demo, a test or a benchmark must do it on every run, in the same way. The
caller passes in the time, so a test can play an hour in a millisecond.

>>> out = []
>>> path = LossyPath(seed=1, delay_s=(0.0, 1.0))
>>> courier = Courier(out.append, path)
>>> courier.take("first", now_s=0.0), courier.take("second", now_s=0.0)
(Fate(delays_s=(0.13436424411240122,)), Fate(delays_s=(0.49543508709194095,)))
>>> courier.pump(now_s=0.3), out
(1, ['first'])
"""

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

Item = TypeVar("Item")


@dataclass(frozen=True)
class Fate:
    """What happens to one message: it arrives once for each delay, and is lost if there is none."""

    delays_s: tuple[float, ...]

    @property
    def lost(self) -> bool:
        return not self.delays_s


class LossyPath:
    """Draws the fate of each message in turn from its seed."""

    def __init__(
        self,
        *,
        seed: int,
        delay_s: tuple[float, float] = (0.0, 0.1),
        repeat: float = 0.0,
        loss: float = 0.0,
    ) -> None:
        if not 0 <= delay_s[0] <= delay_s[1]:
            raise ValueError(f"delay_s must be (least, most) with 0 <= least <= most, not {delay_s}")
        for name, share in (("repeat", repeat), ("loss", loss)):
            if not 0 <= share <= 1:
                raise ValueError(f"{name} is a share between 0 and 1, not {share}")
        self._random = random.Random(seed)  # noqa: S311 (a plan that can be repeated, not a secret)
        self._delay_s = delay_s
        self._repeat = repeat
        self._loss = loss

    def fate(self) -> Fate:
        # Each fate draws the same number of values, so changing one share leaves the rest of the plan unchanged.
        first, second = self._random.uniform(*self._delay_s), self._random.uniform(*self._delay_s)
        repeated, lost = self._random.random() < self._repeat, self._random.random() < self._loss
        if lost:
            return Fate(())
        return Fate((first, first + second) if repeated else (first,))


class Courier(Generic[Item]):
    """Takes messages from members and publishes each at the times in its fate."""

    def __init__(self, publish: Callable[[Item], object], path: LossyPath) -> None:
        self._publish = publish
        self._path = path
        self._due: list[tuple[float, int, Item]] = []
        self._taken = 0  # breaks ties between equal times, so that items need not be comparable
        self.lost = 0
        self.repeated = 0

    def take(self, item: Item, *, now_s: float) -> Fate:
        fate = self._path.fate()
        self.lost += fate.lost
        self.repeated += len(fate.delays_s) > 1
        for delay_s in fate.delays_s:
            heapq.heappush(self._due, (now_s + delay_s, self._taken, item))
            self._taken += 1
        return fate

    def pump(self, *, now_s: float) -> int:
        """Publish everything due by now, in order of time; returns how many."""
        published = 0
        while self._due and self._due[0][0] <= now_s:
            self._publish(heapq.heappop(self._due)[2])
            published += 1
        return published

    @property
    def under_way(self) -> int:
        """How many arrivals are still to come."""
        return len(self._due)
