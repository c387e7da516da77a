"""Heartbeats that came before the messages they cover: kept until these are there."""

from heapq import nlargest

from precede.udfs.records.messages import Who

PROMISES_MAX = 100
"""How many promises of one sender and epoch are kept. Beyond that the last but one is forgotten: the first ones count
first, and the last one, which says how far the sender has got, promises for both."""

Promise = tuple[int, int]
"""(time, clock_ms): no later message carries less of either."""


class Promises(dict[Who, dict[int, Promise]]):
    """By sender and epoch, and by the seq that follows on what the heartbeat covers: what it promises."""

    __slots__ = ()

    def add(self, who: Who, following: int, promise: Promise) -> None:
        """Keep a promise until everything below `following` is there."""
        promises = self.setdefault(who, {})
        _add(promises, following, promise)
        if len(promises) > PROMISES_MAX:
            last, forgotten = nlargest(2, promises)
            _add(promises, last, promises.pop(forgotten))

    def take(self, who: Who, following: int) -> Promise | None:
        """The promise that counts now that everything below `following` is there."""
        promises = self.get(who)
        if promises is None or following not in promises:
            return None
        promise = promises.pop(following)
        if not promises:
            del self[who]
        return promise


def _add(promises: dict[int, Promise], following: int, promise: Promise) -> None:
    """A sender that may say no less than two promises for one seq may say no less than the larger of each part."""
    before = promises.get(following, promise)
    promises[following] = max(before[0], promise[0]), max(before[1], promise[1])
