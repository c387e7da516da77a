"""A delivery of a peer, in the form of those of the log."""

from time import time
from typing import Any

from precede.reading.delivery import Delivery
from precede.udfs.orders import has_destinations
from precede.udfs.peers.events import Delivered
from precede.udfs.records.lenient import lenient_reader


class PeerDelivery(Delivery, kw_only=True):
    """One delivered record, as a peer hands it over; position, partition and offsets are the log's, and None here."""

    position: Any = None
    order: str = ""
    status: str = "delivered"
    partition: Any = None
    offset: Any = None
    arrived_ms: int = 0
    released_offset: Any = None
    released_ms: int = 0


_read = lenient_reader(PeerDelivery)


def as_peer_delivery(one: Delivered, order: str, name: str) -> PeerDelivery:
    """What `name` was told, as a delivery."""
    delivery = _read(one.value)
    delivery.record = one.value
    delivery.order = order
    delivery.status = "abandoned" if one.is_abandoned else "delivered"
    delivery.destination = name if has_destinations(order) else None
    delivery.released_ms = int(time() * 1_000)
    delivery.arrived_ms = delivery.released_ms - int(one.waited_ms)
    return delivery
