"""Searches for what held messages wait for; their effort is bounded whatever the stamps name.

A stamp may name one sender ten thousand times, and as many held messages may each name it again. So a search walks the
seqs of a sender once, and no search looks at more than so many.
"""

from collections.abc import Iterator
from itertools import islice

from precede.udfs.engine.held import HeldMessage
from precede.udfs.engine.senders import sender_key
from precede.udfs.engine.state import GroupState
from precede.udfs.records.messages import SEQ_MAX, Id, Who

LISTED_MAX = 20
"""How many of the ids that one message waits for are named, and how many of the messages that wait for one gap."""
WALK_MAX = 1_000
"""How many held messages one search for what is missing passes through."""
LOOKED_MAX = 200_000
"""How many entries and seqs one search looks at: as many as a group may hold."""


class Look:
    """One look at a group that asks of many held messages what each waits for; the group must not change meanwhile."""

    __slots__ = ("_absent", "at_most", "group")

    def __init__(self, group: GroupState, at_most: int = LISTED_MAX) -> None:
        self.group = group
        self.at_most = at_most
        """How many missing ids are named of each message."""
        self._absent: dict[Who, list[int]] = {}
        """Of each sender the first seqs that are absent; every message of it that asks needs the same ones."""

    def search(self) -> "Search":
        """A new search, for one held message."""
        return Search(self.group, self.at_most)

    def missing_before(self, id_: Id) -> list[Id]:
        """The ids of the same sender below this one that are neither settled nor here."""
        name, epoch, seq = id_
        absent = self._absent.get((name, epoch))
        if absent is None:
            group = self.group
            sender = group.senders[sender_key(name, epoch)]
            seqs = (one for one in sender.missing(1, sender.highest) if (name, epoch, one) not in group.held)
            absent = self._absent[name, epoch] = list(islice(seqs, self.at_most))
        return [(name, epoch, one) for one in absent if one < seq]


class Search:
    """What one search finds missing; of each sender at most so many ids, because no more of them are ever named."""

    __slots__ = ("_absent", "_at_most", "_group", "_left", "_reached", "found")

    def __init__(self, group: GroupState, at_most: int) -> None:
        self.found: set[Id] = set()
        self._group = group
        self._at_most = at_most
        self._left = LOOKED_MAX
        self._reached: dict[Who, int] = {}
        """The seq up to which each sender was walked."""
        self._absent: dict[Who, int] = {}
        """How many ids of each sender were found missing."""

    def up_to(self, name: str, epoch: int, last: int) -> Iterator[HeldMessage]:
        """The held messages of a sender up to this seq that were not walked before; absent ids are found missing."""
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
        """The message held under this very id; an id that is neither held nor settled is found missing."""
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
