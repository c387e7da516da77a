"""A gateway between members and the topic, on a path that delays, reorders, repeats and loses: by a plan that a seed
fixes.

Real networks do all of this on some days; a demo, a test or a benchmark must do it on every run and the same way each
time. Time is handed in, so that a test can play an hour in a millisecond.

>>> out = []
>>> path = LossyPath(seed=1, delay_s=(0.0, 1.0))
>>> gateway = Gateway(out.append, path)
>>> gateway.take("first", now_s=0.0), gateway.take("second", now_s=0.0)
(Fate(delays_s=(0.13436424411240122,)), Fate(delays_s=(0.49543508709194095,)))
>>> gateway.pump(now_s=0.3), out
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
    """What becomes of one message: one arrival for each delay; none means that it is lost."""

    delays_s: tuple[float, ...]

    @property
    def lost(self) -> bool:
        return not self.delays_s


class LossyPath:
    """The plan: draws the fate of each message in turn from its seed."""

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
        self._random = random.Random(seed)  # noqa: S311 (a plan that can be drawn again, not a secret)
        self._delay_s = delay_s
        self._repeat = repeat
        self._loss = loss

    def fate(self) -> Fate:
        # Every fate draws the same number of values, so that changing one share leaves the rest of the plan as it was.
        first, second = self._random.uniform(*self._delay_s), self._random.uniform(*self._delay_s)
        repeated, lost = self._random.random() < self._repeat, self._random.random() < self._loss
        if lost:
            return Fate(())
        return Fate((first, first + second) if repeated else (first,))


class Gateway(Generic[Item]):
    """Takes what members send and hands it on when its fate says so."""

    def __init__(self, publish: Callable[[Item], object], path: LossyPath) -> None:
        self._publish = publish
        self._path = path
        self._due: list[tuple[float, int, Item]] = []
        self._taken = 0  # breaks ties between equal times, so that items need no order of their own
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
        """Publish everything due by now, in order of its time; answers how many."""
        published = 0
        while self._due and self._due[0][0] <= now_s:
            self._publish(heapq.heappop(self._due)[2])
            published += 1
        return published

    @property
    def under_way(self) -> int:
        """Arrivals still to come."""
        return len(self._due)
