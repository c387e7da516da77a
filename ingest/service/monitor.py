"""A thread that looks at something again and again, and never dies in silence.

Whatever a look raises, the thread looks again. What may pass by itself (a broker that is away, a login without a token,
a full disk) is said when it has lasted for `QUIET_S`, because what works with the same broker says it sooner. All
else is an error in precede, and is said at once, with its traceback. Until a look succeeds it stands in `trouble`, and
the health of the process shows it (`troubles`).

What a look works with is made in the thread, by `opens`, and made again after an error in precede: to make a client can
fail like anything else.
"""

import logging
import sys
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Generic, TypeVar

from precede.udfs.errors import PrecedeError

QUIET_S = 60.0
STOP_S = 2.0
LAST_PAUSE_S = 30.0
"""The longest pause after an error in precede; the first one is a second."""
PASSING = (PrecedeError, OSError)
"""What passes, with what the client of Kafka raises, where one is loaded."""

_LOGGER = logging.getLogger("precede")

Client = TypeVar("Client")

_running: "set[Monitor[object]]" = set()


class Monitor(Generic[Client]):
    """Looks every `every_s`, in a thread of its own, from `start` to `stop`."""

    def __init__(
        self,
        name: str,
        look: Callable[[Client], float | None],
        *,
        opens: "Callable[[], AbstractContextManager[Client]]" = nullcontext,  # type: ignore[assignment]
        every_s: float,
        first_s: float = 0.0,
        undone: str,
        passing: tuple[type[Exception], ...] = PASSING,
    ) -> None:
        """`look` may return how many seconds to wait this time before the next one.

        `undone` ends the sentence "Until then ...": what is not done while looks fail. `first_s` is how long the first
        look waits.
        """
        self.name = name
        self.trouble: str | None = None
        """Why looks fail, as a sentence, once that is to be said; None while they succeed."""
        self._look = look
        self._opens = opens
        self._every_s = every_s
        self._first_s = first_s
        self._undone = undone
        self._passing = passing
        self._ended = threading.Event()
        self._woken = threading.Event()
        self._failing_since: float | None = None
        self._errors = 0
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def has_ended(self) -> bool:
        """Whether no look follows."""
        return self._ended.is_set()

    @property
    def runs(self) -> bool:
        """Whether its thread runs."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Begin; one that has begun goes on, and one that has ended stays as it is."""
        if self._thread.ident is None and not self._ended.is_set():
            _running.add(self)  # type: ignore[arg-type]
            self._thread.start()

    def wake(self) -> None:
        """Look now."""
        self._woken.set()

    def finish(self) -> None:
        """No look follows; may be called by the look itself."""
        self._ended.set()
        self._woken.set()

    def stop(self, wait_s: float = STOP_S) -> None:
        """End; waits at most this time for a look that is under way."""
        self.finish()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(wait_s)

    # ── in its thread ─────────────────────────────────────────────────────────────────────────────────────────────

    def _run(self) -> None:
        try:
            self._pause(self._first_s)
            while not self._ended.is_set():
                try:
                    with self._opens() as client:
                        self._look_until_ended(client)
                except (*self._passing, *_kafka_errors()) as error:
                    self._failed(error)
                    self._pause(self._every_s)
                except Exception as error:  # noqa: BLE001 (whatever it is, it is said, and the next look is taken)
                    self._broke(error)
                    self._pause(min(2.0 ** (self._errors - 1), LAST_PAUSE_S))
        finally:
            _running.discard(self)

    def _look_until_ended(self, client: Client) -> None:
        while not self._ended.is_set():
            pause_s = None
            try:
                pause_s = self._look(client)
            except (*self._passing, *_kafka_errors()) as error:
                self._failed(error)
            else:
                self._succeeded()
            self._pause(self._every_s if pause_s is None else pause_s)

    def _pause(self, seconds: float) -> None:
        if self._woken.wait(seconds) and not self._ended.is_set():
            self._woken.clear()

    def _failed(self, error: Exception) -> None:
        now = time.monotonic()
        if self._failing_since is None:
            self._failing_since = now
        elif self.trouble is None and now - self._failing_since >= QUIET_S:
            self._say(f"{self.name} has failed for {now - self._failing_since:.0f} s: {_sentence(error)}")

    def _broke(self, error: Exception) -> None:
        self._errors += 1
        if self._errors == 1:
            self._say(f"{self.name} fails by an error in precede: {_sentence(error)}", error)

    def _say(self, why: str, error: Exception | None = None) -> None:
        self.trouble = f"The thread {why}. Until it works again, {self._undone}."
        if error is None:
            _LOGGER.warning(self.trouble)
        else:
            _LOGGER.error(self.trouble, exc_info=error)

    def _succeeded(self) -> None:
        if self.trouble is not None:
            _LOGGER.warning("The thread %s works again.", self.name)
        self.trouble, self._failing_since, self._errors = None, None, 0


def troubles() -> list[str]:
    """Why monitors of this process fail now, as sentences."""
    return [monitor.trouble for monitor in list(_running) if monitor.trouble is not None]


def _kafka_errors() -> tuple[type[Exception], ...]:
    """What a client of Kafka raises; peers have monitors, too, and load none."""
    client = sys.modules.get("confluent_kafka")
    return () if client is None else (client.KafkaException,)


def _sentence(error: Exception) -> str:
    text = str(error.args[0].str()) if isinstance(error, _kafka_errors()) else str(error)
    return f"{type(error).__name__}: {text}".rstrip(". ") if not isinstance(error, PrecedeError) else text.rstrip(". ")
