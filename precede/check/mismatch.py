"""Says what is wrong with an ordered record that is not the one that must come next."""

from precede.check.group import GroupSequence
from precede.check.records import ABANDONED, OrderedRead, RawRecord
from precede.check.release import Waiting
from precede.check.witness import Shown, shown
from precede.udfs.records.identifiers import id_text
from precede.udfs.records.messages import Id

Wrong = tuple[str, str, tuple[Shown, ...]]
"""The broken promise, a sentence, and the records that show it."""


class Expected:
    """A record that must be published before anything else."""

    __slots__ = ("arrived", "one", "place")

    def __init__(self, arrived: RawRecord, place: str | None, one: Waiting | None = None) -> None:
        self.arrived = arrived
        self.place = place
        self.one = one
        """The message or stand-in; None for a membership record."""

    @property
    def shown(self) -> Shown:
        arrived = self.arrived
        name: str | None = None
        if self.one is not None:
            name = id_text(self.one.id)
        elif arrived.record is not None:
            name = arrived.record.kind if isinstance(arrived.record.kind, str) else None
        return Shown(name, arrived.partition, arrived.offset, None, self.place)


class Book(dict[Id, Waiting]):
    """What has arrived and is not settled, by its id; and the messages among it by their offset."""

    def __init__(self) -> None:
        super().__init__()
        self.by_offset: dict[int, Waiting] = {}


def wrong_with_known(one: OrderedRead, at: Shown, waiting: Waiting) -> Wrong | None:
    """What is wrong with a record of a message that waits, apart from its time."""
    is_stand_in = waiting.message is None
    if waiting.offset != one.offset:
        return "fields", f"{at} names another offset than the log, where it stands at {waiting.offset}", (at,)
    if is_stand_in != (one.status == ABANDONED):
        what = "was given up on" if is_stand_in else "is there, and was not given up on"
        return "account", f"{at} has the status {one.status}, and it {what}", (at,)
    if waiting.message is not None and one.head != waiting.arrived.value[:-1]:
        return "bytes", f"{at} differs from its raw record{difference(one.head, waiting.arrived.value)}", (at,)
    if one.destination is not None and one.destination not in waiting.left:
        if waiting.message is not None and one.destination in (waiting.message.to or ()):
            return "once", f"{at} was delivered at {one.destination} before", (at,)
        return "destination", f"{at} was delivered to {one.destination}, to whom it was not sent", (at,)
    return None


def wrong_with_unknown(
    one: OrderedRead, at: Shown, id_: Id, sequence: GroupSequence, book: Book, refused_as: str | None
) -> Wrong:
    """What is wrong with a record of a message that does not wait."""
    by_offset = book.by_offset.get(one.offset)
    is_settled = id_ in sequence.settled
    if is_settled and not sequence.has_destinations:
        return "once", f"{at} was delivered before, or was given up on", (at,)
    if by_offset is not None:
        return "bytes", f"{at} is not what its offset has, which is {id_text(by_offset.id)}", (at,)
    if refused_as is not None:
        return "account", f"{at} was refused as {refused_as}, and was delivered all the same", (at,)
    if is_settled:
        return "once", f"{at} was delivered before to all its destinations", (at,)
    return "invented", f"{at} is not in the raw log, or was refused there", (at,)


def wrong_with_time(
    one: OrderedRead, waiting: Waiting | None, expected: Expected | None, *, is_ready: bool, is_message: bool
) -> Wrong:
    """It is what it says, and its time has not come."""
    at = shown(one, None if waiting is None else id_text(waiting.id))
    if expected is None and not is_message:
        return "invented", f"{at} takes effect, though the log does not say so here", (at,)
    if expected is None:
        return "early", f"{at} was released by offset {one.released_offset}, before it may be", (at,)
    other = expected.shown
    if waiting is None:
        return "account", f"{other} must come here, and {at} comes instead", (at, other)
    if is_ready:
        return "sequence", f"{at} and {other} are released by one record, and {other} comes first", (at, other)
    sentence = f"{at} was released by offset {one.released_offset}, before it may be, and before {other}"
    return "early", sentence, (at, other)


def difference(head: bytes, value: bytes) -> str:
    """Where the two begin to differ."""
    raw = value[:-1]
    at = next(
        (at for at, (one, other) in enumerate(zip(head, raw, strict=False)) if one != other), min(len(head), len(raw))
    )
    return f" from byte {at} on"
