"""One search for what held messages wait for, whose effort is bounded whatever their stamps name.

A stamp may name one sender ten thousand times, and as many held messages may each name it again. So the seqs of a
sender are walked once in a search, and no search looks at more than so many.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from precede.udfs.engine.held import HeldMessage
from precede.udfs.records.messages import SEQ_MAX, Id, Who

if TYPE_CHECKING:
    from precede.udfs.engine.group import Group

LOOKED_MAX = 200_000
"""At how many entries and seqs one search looks: as many as a group may hold."""


class Search:
    """What is found missing, at most so many ids of each sender, for more of them are named by nobody."""

    __slots__ = ("_absent", "_at_most", "_group", "_left", "_reached", "found")

    def __init__(self, group: "Group", at_most: int) -> None:
        self.found: set[Id] = set()
        self._group = group
        self._at_most = at_most
        self._left = LOOKED_MAX
        self._reached: dict[Who, int] = {}
        """Up to which seq each sender was walked."""
        self._absent: dict[Who, int] = {}

    def up_to(self, name: str, epoch: int, last: int) -> Iterator[HeldMessage]:
        """What is held of a sender up to this seq and was not walked before; what is not here is found missing."""
        who = name, epoch
        first = self._reached.get(who, 0) + 1
        self._left -= 1
        if first > last or self._left < 0:
            return
        self._reached[who] = last
        for seq in self._group.missing_of(name, epoch, first, last):
            self._left -= 1
            below = self._group.held.get((name, epoch, seq))
            if below is not None:
                yield below
            elif self._is_enough(who, seq):
                self._reached[who] = SEQ_MAX
                return
            if self._left < 0:
                return

    def at(self, id_: Id) -> list[HeldMessage]:
        """What is held under this very id; one that is neither held nor settled is found missing."""
        below = self._group.held.get(id_)
        if below is not None:
            return [below]
        name, epoch, seq = id_
        self.found.update((name, epoch, absent) for absent in self._group.missing_of(name, epoch, seq, seq))
        return []

    def _is_enough(self, who: Who, seq: int) -> bool:
        self.found.add((*who, seq))
        self._absent[who] = self._absent.get(who, 0) + 1
        return self._absent[who] == self._at_most
