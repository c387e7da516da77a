"""One delivered record, as an application gets it."""

import json
import sys
from decimal import Decimal
from threading import Lock
from typing import TYPE_CHECKING, Any

import msgspec

from precede.udfs.errors import Refused
from precede.udfs.records.identifiers import MessageId
from precede.udfs.records.published import OrderedRecord, lenient_reader
from precede.udfs.records.strict import DEPTH_MAX

DIGITS_MAX = 4_000
IDLE_S = 0.5
"""How long one read waits for new records; a stop may come late by this much."""


class Delivery(OrderedRecord, kw_only=True):
    """One delivered record of the ordered topic, as an application gets it: a message, a view, or an abandoned one."""

    epoch: int = 0
    after: list[MessageId] = msgspec.field(default_factory=list)  # type: ignore[assignment]  # a list never changes here
    raw_data: msgspec.Raw = msgspec.field(default=msgspec.Raw(b""), name="data")
    raw_meta: msgspec.Raw = msgspec.field(default=msgspec.Raw(b""), name="meta")
    record: bytes = b""  # the whole record as in the topic; records have no field of this name

    @property
    def data(self) -> Any:
        """The application's value; None if the record has none."""
        return _parse(self.raw_data)

    @property
    def meta(self) -> Any:
        """What the sender added about the message, such as trace context; None if it added nothing."""
        return _parse(self.raw_meta)

    @property
    def id(self) -> MessageId | None:
        """The id, if it has one: views have none."""
        return None if self.sender is None or self.seq is None else MessageId(self.sender, self.epoch, self.seq)

    @property
    def held_ms(self) -> int:
        """How long the message was held."""
        return self.released_ms - self.arrived_ms

    def __repr__(self) -> str:
        what = f"{self.kind} of {self.sender}" if self.id is None else str(self.id)
        place = f"{self.group}, position {self.position}"
        return f"<{self.status} {what} in {place}: {len(self.raw_data):,} bytes of data>"


class DeliveredMessage(Delivery):
    """A message of the group."""

    if TYPE_CHECKING:
        sender: str
        seq: int

        @property
        def id(self) -> MessageId: ...


class AbandonedMessage(DeliveredMessage):
    """What stands for a message that the group has given up on: it has an id and no data."""


class ViewChange(Delivery):
    """A `create`, `join`, `leave` or `evict`, which changes who is in the group; it has no id."""

    @property
    def id(self) -> None:
        """None: it takes no seq."""


def told_apart(delivery: Delivery) -> Delivery:
    """The same delivery, as the class of what it is."""
    if delivery.kind != "message":
        delivery.__class__ = ViewChange
    elif delivery.status == "delivered":
        delivery.__class__ = DeliveredMessage
    else:
        delivery.__class__ = AbandonedMessage
    return delivery


_read = lenient_reader(Delivery)

_one_at_a_time = Lock()


def _parse(raw: msgspec.Raw) -> Any:
    if not raw:
        return None
    try:
        return json.loads(bytes(raw))
    except (ValueError, RecursionError):  # more digits or levels than Python accepts by default
        return _parse_extreme(bytes(raw))


def _parse_extreme(text: bytes) -> Any:
    """Parse valid JSON of any size: an integer with very many digits becomes a `Decimal`."""
    with _one_at_a_time:
        limit = sys.getrecursionlimit()
        sys.setrecursionlimit(limit + 2 * DEPTH_MAX)
        try:
            return json.loads(text, parse_int=_integer)
        finally:
            sys.setrecursionlimit(limit)


def _integer(digits: str) -> int | Decimal:
    return int(digits) if len(digits) <= DIGITS_MAX else Decimal(digits)


def as_delivery(record: bytes, where: str) -> Delivery:
    """Read one ordered record."""
    try:
        delivery = _read(record)
    except msgspec.DecodeError as error:
        raise Refused(f"{where} holds a record that precede did not write: {error}.") from error
    delivery.record = record
    return told_apart(delivery)
