"""Who may write into a folder: one process at a time.

On this machine the operating system's lock says so, and it ends with the process, kill -9 included, so a restart need
not wait. A store has no locks. There it is a lease, a file that its holder renews: who finds one waits until it has
seen no renewal for 30 s by its own clock, and then takes it. No clock is compared with another one.

A lease is never overwritten by another process. Each holder creates the file with the next number, which a store lets
only one of them do, and renews only that. The highest number holds. So a holder that slept sees at its next look that a
higher one is there, and what it still writes into its own file has no effect.
"""

import os
import platform
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress

import msgspec

from precede.ingest.files import locked
from precede.ingest.service.monitor import Monitor
from precede.streaming.places.place import LocalPlace, Place
from precede.udfs.errors import Refused, TakenOver

EXPIRES_S = 30.0
RENEW_S = 12.0
LOOK_S = 2.0

Say = Callable[..., object]


class LeaseRecord(msgspec.Struct):
    """The content of a lease's file."""

    token: str
    """Another one for each holder."""
    who: str
    renewals: int = 0
    released: bool = False


class LeaseWait:
    """Decides by what is seen of the newest lease whether it may be taken; `now` is the watcher's own clock."""

    def __init__(self, now: float) -> None:
        self._seen: tuple[int, bytes] | None = None
        self._since = now
        self.was_renewed = False

    def look(self, number: int, content: bytes, now: float) -> bool:
        """Whether the lease is free to take."""
        held = _read(content)
        if number == 0 or (held is not None and held.released):
            return True
        if (number, content) != self._seen:
            self.was_renewed = self._seen is not None
            self._seen, self._since = (number, content), now
        return now - self._since >= EXPIRES_S


class Lease:
    """A lease that is held; a thread renews it until it is released."""

    def __init__(self, folder: Place, number: int, held: LeaseRecord, lost: Callable[[Refused], object]) -> None:
        self._folder = folder
        self._number = number
        self._held = held
        self._lost = lost
        # Where the store fails now and then, another process cannot take the lease either.
        self._monitor: Monitor[None] = Monitor(
            "lease-monitor",
            lambda _: self._renew_or_finish(),
            every_s=RENEW_S,
            first_s=RENEW_S,
            undone=f"the lease in {folder} is not renewed, and after {EXPIRES_S:.0f} s another process may take it",
        )
        self._monitor.start()

    def _renew_or_finish(self) -> None:
        if not self.renew():
            self._monitor.finish()

    def renew(self) -> bool:
        """Renew it; where another process has taken it meanwhile, tell that and return False."""
        newest = max(_numbers(self._folder), default=0)
        if newest > self._number:
            taker = _read(_content(self._folder, newest))
            self._lost(
                TakenOver(
                    f"Another process{'' if taker is None else f' ({taker.who})'} has taken {self._folder}, because "
                    f"this one had not renewed its lease there for {EXPIRES_S:.0f} s."
                )
            )
            return False
        self._held.renewals += 1
        self._write()
        return True

    def release(self) -> None:
        """Let the next process take it without waiting."""
        self._monitor.stop(RENEW_S)
        self._held.released = True
        with suppress(OSError):  # then the next one waits until it expires
            self._write()

    def _write(self) -> None:
        _file(self._folder, self._number).replace(msgspec.json.encode(self._held), durable=False)


class _Attempt:
    """What a process that wants a lease has seen of it."""

    def __init__(self, folder: Place, refusal: str | None, say: Say, lost: Callable[[Refused], object]) -> None:
        self._folder = folder
        self._refusal = refusal
        self._say = say
        self._lost = lost
        self._waiting: LeaseWait | None = None
        self._has_told = False

    def take(self, now: float) -> Lease | None:
        """The lease if it is free; raises the refusal where another process renews it."""
        folder = self._folder
        if self._waiting is None:
            self._waiting = LeaseWait(now)
        number = max(_numbers(folder), default=0)
        content = _content(folder, number) if number else b""
        if self._waiting.look(number, content, now):
            held = LeaseRecord(uuid.uuid4().hex, _own_name())
            if _file(folder, number + 1).create(msgspec.json.encode(held)):
                _remove_older(folder, number + 1)
                return Lease(folder, number + 1, held, self._lost)
            return None
        holder = _read(content)
        who = "another process" if holder is None else holder.who
        if self._waiting.was_renewed and self._refusal is not None:
            raise Refused(f"{self._refusal.rstrip('.')}; {who} renews its lease.")
        if not self._has_told:
            self._has_told = True
            self._say(
                f"A lease of {who} is in {folder}: waiting until it has not been renewed for {EXPIRES_S:.0f} s.",
                level="warning",
            )
        return None


def take(
    folders: Mapping[Place, str | None],
    *,
    say: Say,
    lost: Callable[[Refused], object],
    pause: Callable[[float], object] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> list[Lease]:
    """Take the leases of these folders, or wait for them, for all at the same time.

    The value is the sentence with which a lease that another process renews is refused; None waits for it. Takes none
    where `pause` says by a true value that this process is to stop.
    """
    taken: list[Lease] = []
    attempts = [_Attempt(folder, refusal, say, lost) for folder, refusal in folders.items()]
    try:
        while True:
            for attempt in attempts.copy():
                lease = attempt.take(clock())
                if lease is not None:
                    taken.append(lease)
                    attempts.remove(attempt)
            if not attempts:
                return taken
            if pause(LOOK_S):
                break
    except BaseException:
        _release(taken)
        raise
    _release(taken)
    return []


def _release(leases: list[Lease]) -> None:
    for lease in leases:
        lease.release()


@contextmanager
def only_one(
    folder: Place,
    *parts: str,
    refusal: str | None = None,
    say: Say = lambda *_, **__: None,
    lost: Callable[[Refused], object] = lambda _: None,
    pause: Callable[[float], object] = time.sleep,
) -> Iterator[None]:
    """Keep other processes from these parts of the folder; with a refusal this raises it where one is using a part.

    The refusal names the part as `{part}`. `lost` is told where another process took a part while this one slept. Where
    `pause` says that this process is to stop, nothing is taken.
    """
    sentences = {part: None if refusal is None else refusal.replace("{part}", part) for part in parts}
    if isinstance(folder, LocalPlace):
        with ExitStack() as stack:
            for part, sentence in sentences.items():
                stack.enter_context(locked(folder.path / f".{part}.lock", refusal=sentence))
            yield
        return
    wanted = {folder / f".{part}.lease": sentence for part, sentence in sentences.items()}
    leases = take(wanted, say=say, lost=lost, pause=pause)
    try:
        yield
    finally:
        _release(leases)


def _own_name() -> str:
    return f"process {os.getpid()} on {platform.node()}"


def _file(folder: Place, number: int) -> Place:
    return folder / str(number)


def _numbers(folder: Place) -> list[int]:
    return [int(name) for name in folder.names() if name.isdecimal()]


def _content(folder: Place, number: int) -> bytes:
    try:
        return _file(folder, number).read()
    except FileNotFoundError:
        return b""


def _read(content: bytes) -> LeaseRecord | None:
    """The holder; None for a file that was not written to its end."""
    try:
        return msgspec.json.decode(content, type=LeaseRecord)
    except msgspec.DecodeError:
        return None


def _remove_older(folder: Place, number: int) -> None:
    for old in _numbers(folder):
        if old < number:
            with suppress(OSError):
                _file(folder, old).remove()
