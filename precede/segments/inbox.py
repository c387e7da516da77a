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
        """Whether a record waits here."""
        return self._put != self._taken
