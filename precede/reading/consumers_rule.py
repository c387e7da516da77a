"""The consumer's rule: drop a position at or below the last one, deliver the next one; anything else is a hole."""

from collections.abc import Iterable

from precede.ingest.follower_token import Last
from precede.reading.delivery import Delivery
from precede.udfs.errors import Hole, Refused


class ConsumersRule:
    """Applies the rule: knows the last position delivered per group and destination."""

    def __init__(self, last: Iterable[Last] = (), *, from_beginning: bool, is_claimed: bool = False) -> None:
        """`is_claimed` where the last positions are what an application says: `check_claims` looks at them."""
        self._last = {(group, destination): position for group, destination, position in last}
        self._begun = dict(self._last)
        self._claims = {place: position for place, position in self._last.items() if position} if is_claimed else {}
        self._shown: dict[tuple[str, str | None], int] = {}
        """While there are claims, the last position that records had."""
        # A reader that starts in the middle cannot know what came before the first record of a group.
        self._from_beginning = from_beginning

    @property
    def last(self) -> list[Last]:
        """The last position of each group and destination."""
        return [(group, destination, position) for (group, destination), position in self._last.items()]

    def admits(self, delivery: Delivery) -> bool:
        """Whether to deliver it; False if it was delivered before. Raises Hole once if any position is missing."""
        place = (delivery.group, delivery.destination)
        if self._claims:
            self._shown[place] = delivery.position
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

    def check_claims(self, *, lacks_beginning: bool) -> None:
        """At the end of the topic: raise Refused if a group has not come as far as the application says.

        Where the topic has lost its beginning, it may have lost all records of a group.
        """
        for (group, destination), position in self._claims.items():
            shown = self._shown.get((group, destination), 0)
            if shown < position and (shown or not (self._shown or lacks_beginning)):
                raise Refused(
                    f"The group {group} has no position {position}: the last one is {shown}, so everything up to "
                    f"{position} would be passed over in silence. Give since= a position that was handed over; one "
                    "that only a live reader was handed is there when the job has written it."
                )
        self._claims = {}

    def begins_with(self, hole: Hole) -> bool:
        """Whether nothing was delivered between the beginning and this hole."""
        place = (hole.delivery.group, hole.delivery.destination)
        return hole.last == self._begun.get(place, 0)

    def note(self, delivery: Delivery) -> None:
        """Count on behind this delivery, which came in another way."""
        self._last[delivery.group, delivery.destination] = delivery.position
