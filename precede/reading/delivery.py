"""One delivered record, as an application gets it."""

import json
import sys
from decimal import Decimal
from threading import Lock
from typing import Any

import msgspec

from precede.udfs.errors import Refused
from precede.udfs.records.messages import Id
from precede.udfs.records.published import OrderedRecord, lenient_reader
from precede.udfs.records.strict import DEPTH_MAX

DIGITS_MAX = 4_000
IDLE_S = 0.5
"""How long one read waits for new records; a stop may come late by this much."""


class Delivery(OrderedRecord, kw_only=True):
    """One delivered record of the ordered topic, as an application gets it."""

    epoch: int = 0
    after: list[Id] = msgspec.field(default_factory=list)
    raw_data: msgspec.Raw = msgspec.field(default=msgspec.Raw(b""), name="data")
    record: bytes = b""  # the whole record as in the topic; records have no field of this name

    @property
    def data(self) -> Any:
        """The application's value; None if the record has none."""
        if not self.raw_data:
            return None
        try:
            return json.loads(bytes(self.raw_data))
        except (ValueError, RecursionError):  # more digits or levels than Python accepts by default
            return _parse_extreme(bytes(self.raw_data))

    @property
    def id(self) -> tuple[str | None, int, int | None]:
        return self.sender, self.epoch, self.seq

    @property
    def held_ms(self) -> int:
        """How long the message was held."""
        return self.released_ms - self.arrived_ms


_read = lenient_reader(Delivery)

_one_at_a_time = Lock()


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
    return delivery
