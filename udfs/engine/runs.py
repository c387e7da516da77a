"""Runs of sequence numbers: the paper's Ordering List, OL (Bhavanasi and Iyer, S_b, VI-A and Algorithms 1 and 2).

A run is a stretch of numbers that are in the set; what lies between two runs is a gap. The printed algorithms err in
four places (the membership test compares the wrong way round, the prose of the bridge case loses numbers, the left
neighbour is extended at the wrong end, a number may be inserted twice); vector IV-1 and the tests of this file hold the
rulings.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator

NO_RUNS: list[int] = []
"""Shared by all sets that have no runs beyond the prefix; never changed."""


def merged(ranges: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """The same numbers as disjoint, non-touching ranges in order."""
    first = end = None
    for low, high in sorted(ranges):
        if first is None or end is None or low > end + 1:
            if first is not None and end is not None:
                yield first, end
            first, end = low, high
        else:
            end = max(end, high)
    if first is not None and end is not None:
        yield first, end


class Runs:
    """A set of positive integers as sorted, disjoint, non-touching runs.

    The run that begins at 1 is one number, the others are one flat list, because every object that the machine has to
    look at for a message may be a cache miss.
    """

    __slots__ = ("beyond", "prefix")

    def __init__(self) -> None:
        self.prefix = 0
        """[1, prefix] is in the set."""
        self.beyond = NO_RUNS
        """The other runs: low, high + 1, low, high + 1, ... A number is in the set where an odd count of these is not
        above it."""

    def __contains__(self, number: int) -> bool:
        if number <= self.prefix:
            return number > 0
        return bisect_right(self.beyond, number) & 1 == 1

    @property
    def largest(self) -> int:
        """The largest number in the set; 0 where there is none."""
        return self.beyond[-1] - 1 if self.beyond else self.prefix

    def extend(self, count: int) -> None:
        """Insert so many numbers after the largest one."""
        if self.beyond:
            self.beyond[-1] += count
        else:
            self.prefix += count

    def run_count(self) -> int:
        """How many runs there are."""
        return len(self.beyond) // 2 + (self.prefix > 0)

    def runs(self) -> Iterator[tuple[int, int]]:
        """Each run as (low, high)."""
        if self.prefix:
            yield 1, self.prefix
        for at in range(0, len(self.beyond), 2):
            yield self.beyond[at], self.beyond[at + 1] - 1

    def add(self, number: int) -> None:
        """Insert one number; a number that is already there changes nothing (Algorithm 2, with its test first)."""
        beyond = self.beyond
        if number <= self.prefix:
            return
        if number == self.prefix + 1:
            self.prefix = number
            if beyond and beyond[0] == number + 1:
                self.prefix = beyond[1] - 1
                del beyond[:2]
            return
        at = bisect_right(beyond, number)
        if at & 1:
            return
        joins_left = at > 0 and beyond[at - 1] == number
        joins_right = at < len(beyond) and beyond[at] == number + 1
        if joins_left and joins_right:
            del beyond[at - 1 : at + 1]
        elif joins_left:
            beyond[at - 1] = number + 1
        elif joins_right:
            beyond[at] = number
        elif beyond is NO_RUNS:
            self.beyond = [number, number + 1]
        else:
            beyond[at:at] = (number, number + 1)

    def add_range(self, low: int, high: int) -> None:
        """Insert all numbers from low to high."""
        self.add_ranges([(low, high)])

    def add_ranges(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Insert all numbers of several ranges, in one pass over the set."""
        whole = list(merged([*self.runs(), *ranges]))
        if not whole:
            return
        prefix = whole.pop(0)[1] if whole[0][0] == 1 else 0
        self.fill([prefix, *(bound for first, last in whole for bound in (first, last + 1))])

    def drop_first(self) -> None:
        """Take the lowest run out."""
        if self.prefix:
            self.prefix = 0
        else:
            del self.beyond[:2]

    def opens_run(self, number: int) -> bool:
        """Whether adding this number would begin one more run."""
        return number > 0 and number not in self and number - 1 not in self and number + 1 not in self

    def run_count_with(self, ranges: list[tuple[int, int]]) -> int:
        """How many runs there would be with these ranges added."""
        return sum(1 for _ in merged([*self.runs(), *ranges]))

    def missing(self, first: int, last: int) -> Iterator[int]:
        """The numbers of [first, last] that are not in the set, without a step for those that are."""
        for low, high in self.gaps(first, last):
            yield from range(low, high + 1)

    def missing_count(self, first: int, last: int) -> int:
        """How many numbers of [first, last] are not in the set."""
        return sum(high - low + 1 for low, high in self.gaps(first, last))

    def gaps(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """The stretches of [first, last] that are not in the set, each as (low, high)."""
        beyond = self.beyond
        first = max(first, self.prefix + 1)
        at = bisect_right(beyond, first)
        if at & 1:
            first = beyond[at]
            at += 1
        while first <= last:
            if at == len(beyond):
                yield first, last
                return
            if first < beyond[at]:
                yield first, min(last, beyond[at] - 1)
            first = beyond[at + 1]
            at += 2

    def covered(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """The stretches of [first, last] that are in the set, each as (low, high)."""
        following = first
        for low, high in self.gaps(first, last):
            if following < low:
                yield following, low - 1
            following = high + 1
        if following <= last:
            yield following, last

    def last_absent(self, number: int) -> int:
        """The largest number up to this one that is not in the set; 0 where there is none."""
        at = bisect_right(self.beyond, number)
        if at & 1:
            number = self.beyond[at - 1] - 1
        return number if number > self.prefix else 0

    def absent_from(self, number: int) -> int:
        """The first number of the gap that ends at this number, which is not in the set."""
        at = bisect_right(self.beyond, number)
        return self.beyond[at - 1] if at else self.prefix + 1

    def dump(self) -> int | list[int]:
        """The runs as plain data: the prefix alone, or else the prefix and the others in one list."""
        return [self.prefix, *self.beyond] if self.beyond else self.prefix

    def fill(self, dumped: int | list[int]) -> None:
        """Take the runs that `dump` returned."""
        if isinstance(dumped, int):
            self.prefix = dumped
        else:
            self.prefix = dumped[0]
            self.beyond = dumped[1:]
