"""Compares what a live reader made with the ordered topic, as that comes.

Of each output only a hash is kept until the ordered topic has the same bytes. Only so many are kept: a job that is
down for hours leaves what was made meanwhile without comparison.
"""

from enum import Enum

OUTPUTS_MAX = 500_000


class Found(Enum):
    """What a record of the ordered topic is to the outputs that were noted."""

    EQUAL = 0
    UNKNOWN = 1
    """No output has these bytes."""
    TOO_EARLY = 2
    """An output has these bytes, but the one before it in its group has not come."""


class Comparison:
    """The outputs that the ordered topic has not shown yet."""

    def __init__(self, begin: dict[int, int], *, outputs_max: int = OUTPUTS_MAX) -> None:
        self.begin = dict(begin)
        """Per raw partition: what was released below this offset is not compared."""
        self._outputs_max = outputs_max
        self._noted: dict[int, int] = {}
        """The hash of each output, and that of the one before it in its group; 0 if none was left."""
        self._last: dict[bytes, int] = {}
        """The newest output of each group that has any."""
        self._fresh: list[tuple[list[bytes], list[int]]] = []
        """Keys and hashes that are not in the two dicts yet: a reader that catches up has no time for that."""
        self._fresh_count = 0

    def __len__(self) -> int:
        return len(self._noted) + self._fresh_count

    def note(self, keys: list[bytes], values: list[bytes]) -> None:
        """The kernel made these outputs; those of a group come in their order. The lists must not change any more."""
        self._fresh.append((keys, list(map(hash, values))))
        self._fresh_count += len(keys)

    def find(self, key: bytes, value: bytes) -> Found:
        """Look for a record of the ordered topic; an output that was found is forgotten."""
        if self._fresh:
            self._sort_in()
        mark = hash(value)
        before = self._noted.get(mark)
        if before is None:
            return Found.UNKNOWN
        if before in self._noted:
            return Found.TOO_EARLY
        del self._noted[mark]
        if self._last.get(key) == mark:
            del self._last[key]
        return Found.EQUAL

    def _sort_in(self) -> None:
        noted, last = self._noted, self._last
        for keys, marks in self._fresh:
            for key, mark in zip(keys, marks, strict=True):
                noted[mark] = last.get(key, 0)
                last[key] = mark
        self._fresh.clear()
        self._fresh_count = 0

    def keep_bounded(self, reached: dict[int, int]) -> None:
        """With too many outputs noted, forget them all, and compare only what is released from here on."""
        if len(self) > self._outputs_max:
            self._noted.clear()
            self._last.clear()
            self._fresh.clear()
            self._fresh_count = 0
            self.begin = dict(reached)
