"""The messages that a member keeps of a group, under their ids, in the order in which they came.

One dict of all of them would stand still for tens of milliseconds whenever it grows, and at all members at once. So
each sender has a small one, and the order is kept as runs of seqs.
"""

from collections import deque
from collections.abc import Iterator

from precede.udfs.records.messages import Id, Who


class MessageStore:
    """Values under ids."""

    def __init__(self) -> None:
        self._by_sender: dict[Who, dict[int, bytes]] = {}
        self._came: deque[tuple[Who, int, int]] = deque()
        """Of whom which seqs came, from first to last, the oldest first; some of them may have been dropped since."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __contains__(self, id_: Id) -> bool:
        return id_[2] in self._by_sender.get(id_[:2], ())

    def __iter__(self) -> Iterator[Id]:
        return (id_ for id_, _ in self.items())

    def items(self) -> Iterator[tuple[Id, bytes]]:
        """The ids and values, the oldest first."""
        for who, first, last in self._came:
            values = self._by_sender[who]
            for seq in range(first, last + 1):
                if seq in values:
                    yield (*who, seq), values[seq]

    def get(self, id_: Id) -> bytes | None:
        """A value, if it is kept."""
        values = self._by_sender.get(id_[:2])
        return None if values is None else values.get(id_[2])

    def put(self, who: Who, first: int, values: list[bytes]) -> None:
        """Keep the values of consecutive seqs, none of which is kept yet."""
        kept = self._by_sender.get(who)
        if kept is None:
            kept = self._by_sender[who] = {}
        last = first + len(values) - 1
        kept.update(zip(range(first, last + 1), values, strict=True))
        self._came.append((who, first, last))
        self._count += len(values)

    def drop(self, id_: Id) -> bytes | None:
        """Keep this one no longer; returns its value, if it was kept."""
        value = self._by_sender.get(id_[:2], {}).pop(id_[2], None)
        self._count -= value is not None
        return value

    def drop_oldest(self) -> tuple[Id, bytes]:
        """Keep the one that came first no longer; there is one at least."""
        while True:
            who, first, last = self._came.popleft()
            if first < last:
                self._came.appendleft((who, first + 1, last))
            value = self.drop((*who, first))
            if value is not None:
                return (*who, first), value

    def clear(self) -> None:
        """Keep nothing."""
        self._by_sender.clear()
        self._came.clear()
        self._count = 0
