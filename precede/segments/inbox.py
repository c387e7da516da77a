"""What one group has told this process, until a thread takes it."""

from collections import deque
from threading import Condition
from time import monotonic

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

    def take(self, timeout_s: float) -> Event | None:
        """The next event, or None if none came in that time, or it is closed."""
        if not self._events:
            self._wait(timeout_s)
        try:
            event = self._events.popleft()
        except IndexError:
            return None
        if isinstance(event, Delivered):
            self._taken += 1
            self._taken_bytes += COST + len(event.value)
        return event

    def take_all(self, timeout_s: float) -> list[Event]:
        """All that is there, or what comes first in that time."""
        found = []
        event = self.take(timeout_s)
        while event is not None:
            found.append(event)
            event = self.take(0.0) if self._events else None
        return found

    def _wait(self, timeout_s: float) -> None:
        deadline = monotonic() + timeout_s
        with self._changed:
            self._is_awaited = True
            while not self._events and not self.is_closed and (left := deadline - monotonic()) > 0:
                self._changed.wait(left)
            self._is_awaited = False

    @property
    def has_records(self) -> bool:
        """Whether a record waits here."""
        return self._put != self._taken
