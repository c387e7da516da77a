"""The thread that drives segments: waits for datagrams and deadlines, and gives other threads their turn.

    runner = SegmentRunner()
    runner.add(link)                    # raises Refused if the network drops multicast
    with runner.use(link) as now_ms:
        link.segment.send(...)          # under the lock; what it causes is sent and told afterwards
    runner.close()

All links of a runner share one lock, so a listener may use the segments of all of them.
"""

import select
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import RLock, Thread
from time import monotonic, sleep

from precede.ingest.segment.link import Link, clock_ms
from precede.udfs.errors import PrecedeError, Refused

ECHO_S = 2.0
"""An own datagram comes back within this time, or the network drops multicast."""
LOOK_S = 0.002
SELECT_MAX = 1_024
"""`select` takes no descriptors from here on."""


class SegmentRunner:
    """Drives the links that were added, until it is closed."""

    def __init__(self) -> None:
        self.failure: BaseException | None = None
        """Why it has stopped by itself."""
        self._lock = RLock()
        self._links: list[Link] = []
        self._wakes_ms = 0.0
        """When the thread looks again by itself."""
        self._closed = False
        self._bell, self._ring = socket.socketpair()
        self._bell.setblocking(False)
        self._ring.setblocking(False)
        self._thread = Thread(target=self._run, name="precede segments", daemon=True)
        self._thread.start()

    # ── for other threads ─────────────────────────────────────────────────────────────────────────────────────────

    def add(self, link: Link, *, echo_s: float = ECHO_S) -> None:
        """Drive this link, too. Raises Refused if its own datagrams do not come back to it."""
        with self._lock:
            self._links.append(link)
            self._wake()
        deadline = monotonic() + echo_s
        while not link.hears_itself:
            if monotonic() > deadline:
                self.remove(link)
                raise Refused(_why_silent(link))
            self.check()
            sleep(LOOK_S)

    def remove(self, link: Link) -> None:
        """Drive it no more, and close its socket."""
        with self._lock:
            if link in self._links:
                self._links.remove(link)
            link.socket.close()
            self._wake()

    @contextmanager
    def use(self, link: Link) -> Iterator[float]:
        """Call the segment of a link: alone, and at the time that this yields."""
        with self._lock:
            self.check()
            try:
                yield clock_ms()
            finally:
                link.deadline_ms = min(link.deadline_ms, link.segment.deadline_ms())
                link.hand_on()
                if link.deadline_ms < self._wakes_ms:
                    self._wake()

    def wait_until(self, met: Callable[[float], bool], timeout_s: float) -> bool:
        """Wait until something holds, which is asked under the lock with the time; returns whether it came to hold."""
        deadline = monotonic() + timeout_s
        while True:
            with self._lock:
                self.check()
                if met(clock_ms()):
                    return True
            if monotonic() >= deadline:
                return False
            sleep(LOOK_S)

    def counts(self, link: Link) -> dict[str, int]:
        """What is counted of a link."""
        with self._lock:
            return link.counts()

    def check(self) -> None:
        """Raise PrecedeError if the thread has stopped by itself."""
        if self.failure is not None:
            failure = f"{type(self.failure).__name__}: {self.failure}"
            raise PrecedeError(f"The segment has stopped because of an error in precede ({failure}).") from self.failure
        if self._closed:
            raise Refused("The segment is closed: open it again.")

    @property
    def is_running(self) -> bool:
        """Whether it drives its links."""
        return not self._closed and self.failure is None

    def close(self) -> None:
        """Stop, and close the sockets of all links; to close again does nothing."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._wake()
        self._thread.join()
        for link in self._links:
            link.socket.close()
        self._bell.close()
        self._ring.close()

    def _wake(self) -> None:
        self._wakes_ms = 0.0
        with suppress(BlockingIOError):  # it has been rung for often enough
            self._ring.send(b"!")

    # ── the thread ────────────────────────────────────────────────────────────────────────────────────────────────

    def _run(self) -> None:
        try:
            while not self._closed:
                self._wait(self._turn())
        except BaseException as error:  # noqa: BLE001 (those who wait for this thread must be told)
            self.failure = error

    def _turn(self) -> float:
        """Give each link its turn; returns for how long there is nothing to do."""
        with self._lock:
            for link in self._links:
                link.turn()
            self._wakes_ms = min((link.deadline_ms for link in self._links), default=clock_ms() + 60_000)
            return max(0.0, self._wakes_ms - clock_ms()) / 1_000

    def _wait(self, timeout_s: float) -> None:
        files = [self._bell.fileno(), *(link.socket.fileno() for link in self._links if not link.is_paused)]
        files = [file for file in files if file >= 0]  # one that is removed just now has no file any more
        try:
            ready = select.select(files, (), (), timeout_s)[0] if max(files) < SELECT_MAX else _poll(files, timeout_s)
        except OSError:  # or its file was closed after that
            return
        if self._bell.fileno() in ready:
            with suppress(BlockingIOError):
                while self._bell.recv(64):
                    pass


def _poll(files: list[int], timeout_s: float) -> list[int]:
    """`select` for descriptors of any size; it counts whole milliseconds."""
    polling = select.poll()
    for file in files:
        polling.register(file, select.POLLIN)
    return [file for file, _ in polling.poll(timeout_s * 1_000)]


def _why_silent(link: Link) -> str:
    one = link.socket
    because = "" if one.trouble is None else f" ({one.trouble})"
    return (
        f"Nothing that was sent to the segment {one.address} on the interface {one.interface} came back{because}: this"
        " network drops multicast, as many clouds and pod networks do, or a firewall does. Let UDP to and from"
        f" {one.address.host} pass, name another interface, or let the members meet through Kafka."
    )
