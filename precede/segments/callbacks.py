"""Calls an application back, in a thread of its own, one call after the other."""

import logging
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

from precede.reading.delivery import Delivery
from precede.segments.peer_delivery import as_peer_delivery
from precede.udfs.peers.catalogue import Listing
from precede.udfs.peers.events import Delivered, Event, RecordRefused, ViewChanged
from precede.udfs.records.messages import Id, Message

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
        """Begin to call."""
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
        """Whether all calls are made."""
        return self._made == self._put

    @property
    def wanted(self) -> bool:
        """Whether any call is wanted."""
        return self._thread is not None

    def offer(self, listing: Listing) -> None:
        """A group is offered."""
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
