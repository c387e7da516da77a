"""How what happens in a group reaches the application: it waits until a thread takes it, or callbacks are called."""

import logging
import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from threading import Condition
from time import time
from typing import Any

from precede.reading.delivery import Delivery, told_apart
from precede.udfs.orders import has_destinations
from precede.udfs.peers.catalogue import Listing
from precede.udfs.peers.events import Delivered, Event, RecordRefused, ViewChanged
from precede.udfs.records.messages import Id, Message
from precede.udfs.records.published import lenient_reader

EVENTS_MAX = 200_000
BYTES_MAX = 64 * 1024 * 1024
COST = 300
"""What one event takes in memory beside the bytes of its record."""


class EventQueue:
    """A queue of events; one thread puts, one takes."""

    def __init__(self) -> None:
        self._events: deque[Event] = deque()
        self._changed = Condition()
        self._is_awaited = False
        self.is_closed = False
        """Whether nothing more comes."""
        self._put = self._taken = 0
        """How many records; each is counted by one thread."""
        self._put_bytes = self._taken_bytes = 0
        self._in_hand: list[Event] = []
        """What was taken last: who takes more is done with it."""

    @property
    def is_full(self) -> bool:
        """Whether so much waits here that the network should wait, too."""
        return self._put_bytes - self._taken_bytes > BYTES_MAX or len(self._events) > EVENTS_MAX

    @property
    def is_low(self) -> bool:
        """Whether there is plenty of room again."""
        return self._put_bytes - self._taken_bytes < BYTES_MAX // 2 and len(self._events) < EVENTS_MAX // 2

    def put(self, event: Event) -> None:
        """Add an event; `wake` tells of it."""
        self._events.append(event)
        if isinstance(event, Delivered):
            self._put += 1
            self._put_bytes += COST + len(event.value)

    def wake(self) -> None:
        """Tell those who wait that there is something."""
        if self._is_awaited:
            with self._changed:
                self._changed.notify_all()

    def close(self) -> None:
        """Nothing more comes."""
        self.is_closed = True
        with self._changed:
            self._changed.notify_all()

    def take(self) -> Event | None:
        """The next event, if one is there."""
        if not self._events:
            self._in_hand = []
            return None
        self._in_hand = [self._events[0]]
        return self._take_first()

    def take_all(self) -> list[Event]:
        """All events that are there."""
        self._in_hand = found = list(self._events)
        for _ in found:
            self._take_first()
        return found

    def _take_first(self) -> Event:
        event = self._events.popleft()
        if isinstance(event, Delivered):
            self._taken += 1
            self._taken_bytes += COST + len(event.value)
        return event

    def waiting(self, *, is_end: bool = False) -> list[Event]:
        """What is not handed over, in its order, and, unless it is the end, what was taken last."""
        events = list(self._events)  # before the others: what is taken meanwhile stands in both
        in_hand = [] if is_end else self._in_hand
        here = set(map(id, events))
        return [*(one for one in in_hand if id(one) not in here), *events]

    def is_ready(self) -> bool:
        """Whether there is no need to wait: an event is here, or nothing more comes."""
        return bool(self._events) or self.is_closed

    def wait(self, timeout_s: float) -> None:
        """Wait until it is ready, or the time is over."""
        with self._changed:
            self._is_awaited = True
            if not self.is_ready():
                self._changed.wait(timeout_s)
            self._is_awaited = False

    @property
    def has_records(self) -> bool:
        return self._put != self._taken


_LOGGER = logging.getLogger("precede.segment")


class Callbacks:
    """The calls that an application asked for."""

    def __init__(
        self,
        *,
        on_message: Callable[[Delivery], object] | None = None,
        on_view: Callable[[str, list[str]], object] | None = None,
        on_offer: Callable[[Listing], object] | None = None,
        on_refused: Callable[[str, Id | None, str, str], object] | None = None,
    ) -> None:
        self.takes_messages = on_message is not None
        self._on_message = on_message
        self._on_view = on_view
        self._on_offer = on_offer
        self._on_refused = on_refused
        self._calls: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._put = self._made = 0
        """How many calls; each is counted by one thread."""
        self._thread: threading.Thread | None = None
        if any((on_message, on_view, on_offer, on_refused)):
            self._thread = threading.Thread(target=self._run, name="precede callbacks", daemon=True)

    def start(self) -> None:
        if self._thread is not None:
            self._thread.start()

    def close(self) -> None:
        """Make the calls that are due, and end."""
        self._calls.put(None)
        if (
            self._thread is not None
            and self._thread.ident is not None
            and self._thread is not threading.current_thread()
        ):
            self._thread.join()

    @property
    def are_made(self) -> bool:
        return self._made == self._put

    @property
    def wanted(self) -> bool:
        return self._thread is not None

    def offer(self, listing: Listing) -> None:
        self._call(self._on_offer, listing)

    def tell(self, event: Event, order: str, name: str) -> None:
        """Something happened in a group."""
        if isinstance(event, Delivered):
            if self._on_message is not None and isinstance(event.record, Message) and not event.is_abandoned:
                on_message = self._on_message
                self._put += 1
                self._calls.put(lambda: on_message(as_peer_delivery(event, order, name)))
        elif isinstance(event, ViewChanged):
            self._call(self._on_view, event.group, list(event.members))
        elif isinstance(event, RecordRefused):
            self._call(self._on_refused, event.group, event.id, event.code, event.reason)

    def _call(self, function: Callable[..., object] | None, *arguments: Any) -> None:
        if function is not None:
            self._put += 1
            self._calls.put(lambda: function(*arguments))

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            try:
                call()
            except Exception:
                _LOGGER.exception("A callback of the application failed; the next ones are called all the same.")
            self._made += 1


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


def as_peer_delivery(one: Delivered, order: str, name: str) -> Delivery:
    """What `name` was told, as a delivery."""
    delivery = _read(one.value)
    delivery.record = one.value
    delivery.order = order
    delivery.status = "abandoned" if one.is_abandoned else "delivered"
    delivery.destination = name if has_destinations(order) else None
    delivery.released_ms = int(time() * 1_000)
    delivery.arrived_ms = delivery.released_ms - int(one.waited_ms)
    return told_apart(delivery)
