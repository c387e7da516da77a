"""Says what is wrong with a store that keeps the job waiting.

A store's client tries again by itself for minutes, and says nothing meanwhile. So where a query has been silent for
long, this asks the store once, without trying again, in its own thread, which a stuck job does not block.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from precede.ingest.service.monitor import Monitor
from precede.streaming.monitoring.query_keeper import QueryKeeper
from precede.streaming.places.place import Place

LOOK_S = 4.0
SILENT_S = 12.0
"""A query that has nothing to do reports that every ten seconds."""


class StoreMonitor:
    """Asks the stores of these places, while one of these queries is silent or a store fails."""

    def __init__(self, places: Sequence[Place], keepers: Sequence[QueryKeeper], say: Callable[..., object]) -> None:
        self._stores = {_store_of(place): place for place in places}
        self._watches = keepers
        self._say = say
        self._began_at = time.monotonic()
        self._failing: set[str] = set()

    def look_if_silent(self) -> None:
        """Ask where there is a reason to, and say what is new."""
        if not self._failing and not any(map(self._is_silent, self._watches)):
            return
        for store, place in self._stores.items():
            trouble = place.trouble()
            if trouble is not None and store not in self._failing:
                self._failing.add(store)
                sentence = f"The store {store} fails: {trouble}; nothing is lost, and the job continues when it works."
                self._say(sentence, level="warning")
            elif trouble is None and store in self._failing:
                self._failing.discard(store)
                self._say(f"The store {store} works again.")

    def _is_silent(self, keeper: QueryKeeper) -> bool:
        silent_s = time.monotonic() - max(keeper.progress_at, self._began_at)
        return not keeper.done and silent_s > SILENT_S + keeper.every_s


@contextmanager
def watching(places: Sequence[Place], keepers: Sequence[QueryKeeper], say: Callable[..., object]) -> Iterator[None]:
    """Watch the stores of these places for as long as this lasts."""
    if not places:
        yield
        return
    stores = StoreMonitor(places, keepers, say)
    monitor: Monitor[None] = Monitor(
        "store-monitor",
        lambda _: stores.look_if_silent(),
        every_s=LOOK_S,
        first_s=LOOK_S,
        undone="nothing says which store keeps the job waiting",
    )
    monitor.start()
    try:
        yield
    finally:
        monitor.stop(LOOK_S)


def _store_of(place: Place) -> str:
    """The scheme and the host of its URI."""
    return "/".join(place.location.split("/")[:3])
