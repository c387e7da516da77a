"""The consumer's rule: drop a position at or below the last one, deliver the next one; anything else is a hole."""

from collections.abc import Iterable

from precede.ingest.follower_token import Last
from precede.reading.delivery import Delivery
from precede.udfs.errors import Hole


class ConsumersRule:
    """Applies the rule: knows the last position delivered per group and destination."""

    def __init__(self, last: Iterable[Last] = (), *, from_beginning: bool) -> None:
        self._last = {(group, destination): position for group, destination, position in last}
        # A reader that starts in the middle cannot know what came before the first record of a group.
        self._from_beginning = from_beginning

    @property
    def last(self) -> list[Last]:
        """The last position of each group and destination."""
        return [(group, destination, position) for (group, destination), position in self._last.items()]

    def admits(self, delivery: Delivery) -> bool:
        """Whether to deliver it; False if it was delivered before. Raises Hole once if any position is missing."""
        place = (delivery.group, delivery.destination)
        last = self._last.get(place)
        if last is None:
            last = 0 if self._from_beginning else delivery.position - 1
        if delivery.position > last + 1:
            self._last[place] = delivery.position - 1
            raise Hole(delivery, last)
        if delivery.position <= last:
            return False
        self._last[place] = delivery.position
        return True

    def note(self, delivery: Delivery) -> None:
        """Count on behind this delivery, which came in another way."""
        self._last[delivery.group, delivery.destination] = delivery.position
