"""Lower bounds that only rise, one per member, and the least of them at once."""

from heapq import heappop, heappush, heapreplace

Who = tuple[str, int]
"""(sender, epoch)"""


class Floors(dict[Who, int]):
    """Of each member and epoch the least that may still come from it."""

    __slots__ = ("_lowest",)

    def __init__(self) -> None:
        super().__init__()
        self._lowest: list[tuple[int, str, int]] = []
        """The floors as a heap, perhaps as they were: they only rise, so looking at the top is enough."""

    def begin(self, who: Who, floor: int) -> None:
        """A member from here on."""
        heappush(self._lowest, (floor, *who))
        self[who] = floor

    def lowest(self) -> tuple[int, str, int] | None:
        """The floor that holds back most, with whose it is."""
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
