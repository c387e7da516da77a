"""The one family of errors: what precede raises for a person or a program to act on.

The text of each is a sentence that says what happened and what to do. A wrong argument is a ValueError instead, as in
Python itself.
"""

from typing import Any


class PrecedeError(Exception):
    """What all errors of precede have in common."""


class Refused(PrecedeError):
    """What was asked cannot be done as things are, and a person must change something first."""


class Rejected(Refused):
    """A group refused a record that is in its log: `code` and `reason` are those of the dead letter."""

    def __init__(self, code: str, reason: str) -> None:
        self.code = code
        self.reason = reason
        super().__init__(f"The group refused it ({code}): {reason}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.code, self.reason)


class Congested(Refused):
    """Others cannot follow at the moment; the same call succeeds when they can."""


class TakenOver(Refused):
    """Another job took over what this one wrote; it must not be started again by itself."""


class Unreachable(PrecedeError):
    """No broker answered. This may pass by itself: the same call may succeed later."""


class AccessDenied(PrecedeError):
    """A broker answered, but rejected the credentials, or its access rules do not allow what was asked."""


class Unconfirmed(PrecedeError):
    """Kafka did not confirm a record. It may have it, so only the very same bytes may be sent again.

    `id` is the id of the message that is kept for that, where `send` raises this of a message of its own: the next call
    sends it first.
    """

    id: tuple[str, int, int] | None = None


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

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.delivery, self.last)  # the text alone is not what it is made from


class Difference(PrecedeError):
    """A live reader made another record than the job: what it has delivered of this group lately may be wrong."""

    def __init__(self, group: str, where: str) -> None:
        """`where` is the first place at which the two differ."""
        self.group = group
        self.where = where
        super().__init__(
            f"Live reading of group {group} has ended: what this reader made from the raw topic is not what the "
            f"ordered topic has ({where}). What it delivered of this group shortly before may be wrong: compare it "
            "with the ordered topic. From here on the group is read from there."
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.group, self.where)


class Closed(PrecedeError):
    """What was called had been closed, or was closed while it waited."""

    def __init__(self, what: str) -> None:
        """`what` names the thing that is closed, such as "the member ann of travel"."""
        self.what = what
        super().__init__(f"{what[0].upper()}{what[1:]} is closed: open it again to go on.")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.what,)


class CallFailed(PrecedeError):
    """A method that was invoked raised an error; the text is what that object said."""
