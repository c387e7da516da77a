"""The thread that drives segments: waits for datagrams and deadlines, and gives other threads their turn.

    runner = SegmentRunner()
    runner.add(link)                    # raises Refused if the network drops multicast
    with runner.use(link) as now_ms:
        link.segment.send(...)          # under the lock; what it causes is sent and told afterwards
    runner.close()

All links of a runner share one lock, so a listener may use the segments of all of them.

A thread that waits for what a listener is told does best to drive the links itself meanwhile (`drive`): then nothing
has to be passed from thread to thread. The runner's own thread stands by, and takes over where no one drives.
"""

import select
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from math import inf
from threading import Lock, RLock, Thread
from time import monotonic, sleep

from precede.ingest.segment.link import Link, clock_ms
from precede.udfs.errors import PrecedeError, Refused
from precede.udfs.peers.sending import LINGER_MS

ECHO_S = 2.0
"""An own datagram comes back within this time, or the network drops multicast."""
TURN_S = 0.001
"""Turns begin at least so far apart: to take together what arrives meanwhile costs less than to wake up for each."""
IDLE_S = 60.0
"""How long the thread waits where nothing is to be done."""
LOOK_S = 0.002
YIELD_S = 0.000_05
"""A lock goes to the one who asks for it first, which would be this thread again."""
STANDBY_S, STANDBY_IDLE_S = 0.003, 0.02
"""How often the thread that stands by looks whether anyone drives; the second where nothing happens."""
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
        self._turned_s = 0.0
        """When the last turn began that left nothing to do."""
        self._waiting = 0
        """How many threads wait for the lock, about; several may count at once."""
        self._driving = Lock()
        """Held by the thread that drives."""
        self._drives = 0
        """Counts what other threads drive."""
        self._heard = 0
        self._is_wanted = False
        """Whether another thread wants to drive."""
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
        self._waiting += 1
        with self._lock:
            self._waiting -= 1
            self.check()
            now_ms = clock_ms()
            try:
                yield now_ms
            finally:
                link.hand_on()
                # What was said may wait for more; to ask the segment for its deadline each time would cost more.
                link.deadline_ms = min(link.deadline_ms, now_ms + LINGER_MS)
                if link.deadline_ms < self._wakes_ms:
                    self._wake()

    def drive(self, met: Callable[[], bool], timeout_s: float) -> bool:
        """Drive from the calling thread until something holds, or the time is over; returns whether it drove.

        Only one thread can. If an error or Ctrl-C ends it within a segment, that segment is not used any more.
        """
        if not self._driving.acquire(blocking=False):
            self._is_wanted = True
            self._wake()
            if not self._driving.acquire(timeout=min(timeout_s, STANDBY_S)):
                return False
        try:
            self._is_wanted = False
            self._drives += 1
            deadline = monotonic() + timeout_s
            while self.is_running and not met():
                if self._early_s() <= 0:
                    self._turn_safely()
                left_s = deadline - monotonic()
                if met() or left_s <= 0:
                    break
                if self._waiting:
                    sleep(YIELD_S)
                self._wait(left_s)
        except Exception:
            self.check()  # raises it in words
            raise
        finally:
            self._driving.release()
        return True

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
        return not self._closed and self.failure is None

    def close(self) -> None:
        """Stop, and close the sockets of all links; to close again does nothing."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._wake()
        self._thread.join()
        self._driving.acquire(timeout=1.0)  # another thread may be about to notice
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
            while self.is_running:
                if not self._is_wanted and self._driving.acquire(blocking=False):
                    try:
                        self._drive_on()
                    finally:
                        self._driving.release()
                self._stand_by()
        except BaseException as error:  # noqa: BLE001 (those who wait for this thread must be told)
            self.failure = error

    def _drive_on(self) -> None:
        """Drive until another thread wants to."""
        while self.is_running and not self._is_wanted:
            self._turn_safely()
            if self._waiting:
                sleep(YIELD_S)
            self._wait(IDLE_S)

    def _stand_by(self) -> None:
        """Wait until no other thread drives."""
        drives = -1
        while self.is_running and (self._driving.locked() or self._is_wanted or self._drives != drives):
            drives, heard = self._drives, sum(link.socket.received for link in self._links)
            sleep(STANDBY_S if heard != self._heard else STANDBY_IDLE_S)
            self._heard = heard
            if not self._driving.locked():
                self._is_wanted = False

    def _turn_safely(self) -> None:
        try:
            self._turn()
        except BaseException as error:
            self.failure = error
            raise

    def _turn(self) -> None:
        """Give each link its turn."""
        turned_s = monotonic()
        with self._lock:
            for link in self._links:
                link.turn()
            self._wakes_ms = min((link.deadline_ms for link in self._links), default=inf)
        if self._wakes_ms > 0:
            self._turned_s = turned_s

    def _early_s(self) -> float:
        """For how long it is too early for the next turn; what arrives meanwhile waits, too."""
        return self._turned_s + TURN_S - monotonic()

    def _wait(self, timeout_s: float) -> None:
        """Wait until something is to be done, at most this time."""
        early_s = self._early_s()
        if early_s > 0:
            sleep(min(early_s, timeout_s))
            timeout_s -= early_s
        timeout_s = max(0.0, min(timeout_s, self._wakes_ms / 1_000 - monotonic()))
        files = [self._bell.fileno(), *(link.socket.fileno() for link in self._links if not link.is_paused)]
        files = [file for file in files if file >= 0]  # one that is removed just now has no file any more
        if not files:
            return  # it is being closed
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
