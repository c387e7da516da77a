"""Lower bounds that only rise, one per member, and the least of them without a search."""

from heapq import heapify, heappop, heappush, heapreplace

from precede.udfs.records.messages import Who

SPARE = 64
"""How many outdated entries the heap may keep until they come to its top, beside as many as there are members."""


class Floors(dict[Who, int]):
    """Of each member and epoch the least that may still come from it."""

    __slots__ = ("_lowest",)

    def __init__(self) -> None:
        super().__init__()
        self._lowest: list[tuple[int, str, int]] = []
        """The floors as a heap, perhaps as they were earlier: they only rise, so a look at the top is enough."""

    def begin(self, who: Who, floor: int) -> None:
        """A member from here on."""
        self[who] = floor
        heappush(self._lowest, (floor, *who))
        if len(self._lowest) > 2 * len(self) + SPARE:  # more entries are outdated than not
            self._lowest = [(its, *other) for other, its in self.items()]
            heapify(self._lowest)

    def clear(self) -> None:
        """No members."""
        super().clear()
        self._lowest.clear()

    def lowest(self) -> tuple[int, str, int] | None:
        """The floor that holds back most, and its member."""
        heap = self._lowest
        while heap:
            floor, name, epoch = heap[0]
            now = self.get((name, epoch))
            if now == floor:
                return heap[0]
            if now is None:
                heappop(heap)
            else:
                heapreplace(heap, (now, name, epoch))
        return None
