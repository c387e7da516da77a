"""The one family of errors: what precede raises for a person or a program to act on.

The text of each is a sentence that says what happened and what to do. A wrong argument is a ValueError instead, as in
Python itself.
"""

from typing import Any


class PrecedeError(Exception):
    """What all errors of precede have in common."""


class Refused(PrecedeError):
    """What was asked cannot be done as things are, and a person must change something first."""


class Unreachable(PrecedeError):
    """No broker answered. This may pass by itself: the same call may succeed later."""


class AccessDenied(PrecedeError):
    """A broker answered, but rejected the credentials, or its access rules do not allow what was asked."""


class Unconfirmed(PrecedeError):
    """Kafka did not confirm a record. It may have it, so only the very same bytes may be sent again."""


class Hole(PrecedeError):
    """Positions are missing: something behind the stream lost records, or the beginning of the topic is gone."""

    def __init__(self, delivery: Any, last: int) -> None:
        """`delivery` is the record behind the hole, `last` the position before it."""
        self.delivery = delivery
        self.last = last
        place = delivery.group if delivery.destination is None else f"{delivery.group} for {delivery.destination}"
        first, end = last + 1, delivery.position - 1
        missing = f"position {first} is" if first == end else f"positions {first} to {end} are"
        super().__init__(f"In group {place} {missing} missing: after {last} came {delivery.position}.")


class CallFailed(PrecedeError):
    """A method that was invoked raised an error; the text is what that object said."""
