"""Runs of sequence numbers: the paper's Ordering List, OL (Bhavanasi and Iyer, S_b, VI-A and Algorithms 1 and 2).

The printed algorithms err in four places (the membership test compares the wrong way round, the prose of the bridge
case loses numbers, the left neighbour is extended at the wrong end, a number may be inserted twice); vector IV-1 and
the tests of this file hold the rulings.
"""

from bisect import bisect_right
from collections.abc import Iterator


class Runs:
    """A set of positive integers as sorted, disjoint, non-touching runs [low, high]."""

    __slots__ = ("highs", "lows")

    def __init__(self) -> None:
        self.lows: list[int] = []
        self.highs: list[int] = []

    def __contains__(self, number: int) -> bool:
        highs = self.highs
        if not highs or number > highs[-1]:
            return False
        if number >= self.lows[-1]:
            return True
        at = bisect_right(self.lows, number) - 1
        return at >= 0 and number <= highs[at]

    def __len__(self) -> int:
        """How many runs there are (not how many numbers)."""
        return len(self.lows)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self.lows, self.highs, strict=True)

    def add(self, number: int) -> None:
        """Insert one number; a number that is there already changes nothing."""
        lows, highs = self.lows, self.highs
        if highs and number == highs[-1] + 1:  # in order: the one case that must be fast
            highs[-1] = number
            return
        if not highs or number > highs[-1]:
            lows.append(number)
            highs.append(number)
            return
        right = bisect_right(lows, number)  # the first run that begins after the number
        left = right - 1
        if left >= 0 and number <= highs[left]:
            return
        joins_left = left >= 0 and highs[left] + 1 == number
        joins_right = right < len(lows) and lows[right] - 1 == number
        if joins_left and joins_right:
            highs[left] = highs[right]
            del lows[right], highs[right]
        elif joins_left:
            highs[left] = number
        elif joins_right:
            lows[right] = number
        else:
            lows.insert(right, number)
            highs.insert(right, number)

    def opens_run(self, number: int) -> bool:
        """Whether adding this number would make one run more."""
        if number in self:
            return False
        return (number - 1) not in self and (number + 1) not in self

    def missing(self, first: int, last: int) -> Iterator[int]:
        """The numbers of [first, last] that are not in the set, without a step for those that are."""
        at = bisect_right(self.lows, first) - 1
        if at >= 0 and first <= self.highs[at]:
            first = self.highs[at] + 1
        at += 1
        while first <= last:
            stop = min(last, self.lows[at] - 1) if at < len(self.lows) else last
            yield from range(first, stop + 1)
            if at >= len(self.lows):
                return
            first = self.highs[at] + 1
            at += 1

    def missing_count(self, first: int, last: int) -> int:
        """How many numbers of [first, last] are not in the set."""
        count = last - first + 1
        at = max(bisect_right(self.lows, first) - 1, 0)
        while at < len(self.lows) and self.lows[at] <= last:
            count -= max(0, min(last, self.highs[at]) - max(first, self.lows[at]) + 1)
            at += 1
        return count

    def dump(self) -> int | list[int]:
        """The runs as plain data: the one number n for the one run [1, n], else low, high, low, high, ..."""
        lows, highs = self.lows, self.highs
        if len(lows) == 1 and lows[0] == 1:
            return highs[0]
        flat: list[int] = []
        for low, high in zip(lows, highs, strict=True):
            flat.append(low)
            flat.append(high)
        return flat

    @classmethod
    def load(cls, dumped: int | list[int]) -> "Runs":
        """The runs that `dump` wrote."""
        runs = cls()
        if dumped.__class__ is int:
            runs.lows.append(1)
            runs.highs.append(dumped)
        else:
            assert isinstance(dumped, list)
            runs.lows = dumped[0::2]
            runs.highs = dumped[1::2]
        return runs
