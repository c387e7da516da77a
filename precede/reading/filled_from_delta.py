"""Deliveries that the ordered topic has no more, from the Delta tables: its lost beginning, and holes."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import msgspec

from precede.ingest.follower_token import FollowerToken, Released
from precede.reading.delivery import Delivery
from precede.reading.delta_history import NO_OPTIONS, DeltaHistory, DeltaReleases, released_place
from precede.reading.live_source import LiveSource
from precede.reading.ordered_topic import OrderedTopic
from precede.udfs.errors import Hole


class HoleFiller:
    """Reads the ordered topic, or live, and hands over from Delta what is missing there."""

    def __init__(
        self,
        topic: OrderedTopic | LiveSource,
        history_of: Callable[[Delivery], DeltaHistory | None],
        older: Iterator[Delivery],
    ) -> None:
        """`history_of` the record behind a hole is where to look; `older` comes before the topic."""
        self._topic = topic
        self._history_of = history_of
        self._older = older

    def poll(self, timeout_s: float) -> Delivery | None:
        """The next message, or None if none came in this time. Raises Hole once if Delta lacks it, too."""
        older = next(self._older, None)
        if older is None:
            try:
                return self._topic.poll(timeout_s)
            except Hole as hole:
                history = self._history_of(hole.delivery)
                if history is None:
                    raise
                self._older = history.between(hole.last + 1, hole.delivery.position - 1)
                older = next(self._older, None)
                if older is None:
                    raise
        self._topic.continue_after(older)
        return older


class FilledFromDelta:
    """A source of deliveries for a `Follower`, which needs Delta only where the ordered topic is not enough.

    Where the topic's beginning is gone, everything that Delta has comes first, in the order in which the raw partitions
    released it. Of the topic, the consumer's rule then drops what was handed over.
    """

    def __init__(
        self, topic: OrderedTopic, root: Path | str, group: str | None, *, storage: Mapping[str, str] = NO_OPTIONS
    ) -> None:
        """With `storage` delta-rs reaches a root that is in a store."""
        self._topic = topic
        self._root = root
        self._storage = storage
        self._group = group
        self._kept = topic.token
        self._places = dict(self._kept.from_delta)
        self._older: Iterator[Delivery] | None = None
        self._next: Delivery | None = None
        self._catches_up = bool(self._places)
        self._filler = HoleFiller(topic, self._history_of, iter(()))

    @property
    def token(self) -> FollowerToken:
        """Where to continue after the last delivered message."""
        token = self._topic.token
        if not self._catches_up:
            return msgspec.structs.replace(token, from_delta={})
        return msgspec.structs.replace(token, offsets=self._kept.offsets, from_delta=dict(self._places))

    @property
    def at_end(self) -> bool:
        """Whether everything was delivered, according to the last reads."""
        return not self._catches_up and self._topic.at_end

    @property
    def is_catching_up(self) -> bool:
        """Whether records came lately, and the end has not been seen yet."""
        return self._topic.is_catching_up

    @property
    def waits_for(self) -> str | None:
        """What must be there before anything can be read; None if it is."""
        return self._topic.waits_for

    def poll(self, timeout_s: float) -> Delivery | None:
        """The next message, or None if none came in this time. Raises Hole once if positions are missing."""
        if not self._topic.begin(timeout_s):
            return None
        if self._older is None:
            self._catches_up = self._topic.lacks_beginning
            self._older = self._from_delta() if self._catches_up else iter(())
        while True:
            self._next = self._next or next(self._older, None)
            if self._next is None:
                self._catches_up = False
                return self._filler.poll(timeout_s)
            one = self._next
            admitted = self._topic.admits(one)  # after a hole the record stays here, to be delivered next
            self._next = None
            if self._group is None:
                place = self._places.get(one.partition, Released(0))
                self._places[one.partition] = place.with_record(*released_place(one))
            if admitted:
                return one

    def is_at_cut(self, hole: Hole) -> bool:
        """Whether the topic had lost its beginning, and so had Delta."""
        return self._topic.is_at_cut(hole)

    def give_back(self) -> None:
        """Nothing: the application keeps the token with what it handled."""

    def close(self) -> None:
        """Close the connection to the broker."""
        self._topic.close()

    def _history_of(self, behind: Delivery) -> DeltaHistory:
        return DeltaHistory(self._root, behind.group, behind.destination, storage=self._storage)

    def _from_delta(self) -> Iterator[Delivery]:
        releases = DeltaReleases(self._root, self._group, storage=self._storage)
        last = {destination: position for _, destination, position in self._kept.last}
        return releases.read(self._places, position_above=last[None] if self._group is not None and None in last else 0)
