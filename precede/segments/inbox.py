"""What one group has told this process, until a thread takes it."""

from collections import deque
from threading import Condition

from precede.udfs.peers.events import Delivered, Event

EVENTS_MAX = 200_000
BYTES_MAX = 64 * 1024 * 1024
COST = 300
"""What one event takes in memory beside the bytes of its record."""


class Inbox:
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
        try:
            event = self._events.popleft()
        except IndexError:
            return None
        if isinstance(event, Delivered):
            self._taken += 1
            self._taken_bytes += COST + len(event.value)
        return event

    def take_all(self) -> list[Event]:
        """All events that are there."""
        found = []
        while (event := self.take()) is not None:
            found.append(event)
        return found

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
        """Whether a record waits here."""
        return self._put != self._taken
