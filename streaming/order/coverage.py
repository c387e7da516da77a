"""The horizon: per raw partition the offset such that the state topic covers, for every group, all that lies below it.

Each shard reports the first offset that the topic does not cover of it. A shard without input is silent, and what a
restarted job has in its state is not known before it speaks; so after a start the horizon stays where it is until every
shard has reported. A job that starts with no state at all knows all of them.
"""

from collections.abc import Mapping


class Coverage:
    """What the shards reported, and how far the topic covers everything."""

    def __init__(self, published: Mapping[int, int], shards: int, *, is_fresh: bool) -> None:
        """`published` is the horizon in the progress topic; a fresh job has no state that is not in the topic."""
        self._published = dict(published)
        self._silent = set() if is_fresh else set(range(shards))
        self._uncovered: dict[int, dict[int, int]] = {}

    @property
    def published(self) -> dict[int, int]:
        """The horizon as it is committed."""
        return self._published.copy()

    @property
    def lacks_states(self) -> bool:
        """Whether a shard reported a change that is not in the state topic."""
        return bool(self._uncovered)

    def report(self, shard: int, uncovered: Mapping[int, int]) -> None:
        """Take what a shard says, from the batch that is published next or was published last."""
        self._silent.discard(shard)
        if uncovered:
            self._uncovered[shard] = dict(uncovered)
        else:
            self._uncovered.pop(shard, None)

    def cover_all(self) -> None:
        """All states are in the topic."""
        self._silent.clear()
        self._uncovered.clear()

    def moved(self, reached: Mapping[int, int]) -> dict[int, int]:
        """Where the horizon moves to, of the partitions that are processed up to `reached`; it never goes back."""
        if self._silent:
            return {}
        found: dict[int, int] = {}
        for partition, next_offset in reached.items():
            firsts = [first[partition] for first in self._uncovered.values() if partition in first]
            offset = min(firsts, default=next_offset)
            if min(offset, next_offset) > self._published.get(partition, 0):
                found[partition] = min(offset, next_offset)
        return found

    def commit(self, moved: Mapping[int, int]) -> None:
        """The horizon was published."""
        self._published.update(moved)
