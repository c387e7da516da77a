"""What a program that runs until it is stopped does: it says sentences, ends at a signal, and waits for a broker.

Its output is sentences for a person, or one JSON object per line for a program that collects logs.
"""

import datetime
import re
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeVar

import msgspec

from precede.udfs.errors import Refused, Unreachable

RETRY_S = 2.0
REASON_LENGTH_MAX = 300
_CAUSES = re.compile(r"(?:Exception|Error): ([^\n]+)")

Say = Callable[[str], object]
Answer = TypeVar("Answer")


class Announcer:
    """Says a sentence; in JSON with its time, its level, and what it is about (query, batch, counts)."""

    def __init__(self, say: Say, form: str = "text") -> None:
        self.say = say
        self.form = form

    def __call__(self, sentence: str, *, level: str = "info", **about: Any) -> None:
        self.say(sentence if self.form == "text" else self._line(sentence, level, about))

    def refused(self, refusal: Exception) -> None:
        """Write a refusal as JSON; as text the command line prints it."""
        if self.form == "json":
            self(str(refusal), level="error")

    @staticmethod
    def _line(sentence: str, level: str, about: dict[str, Any]) -> str:
        time = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
        known = {name: value for name, value in about.items() if value is not None}
        return msgspec.json.encode({"time": time, "level": level, "message": sentence, **known}).decode()


@contextmanager
def set_on_signals(stopping: threading.Event) -> Iterator[None]:
    """Set the event at Ctrl-C or SIGTERM; a second signal raises KeyboardInterrupt at once."""

    came = threading.Event()  # the event itself may be set for another reason

    def handle(_number: int, _frame: FrameType | None) -> None:
        if came.is_set():
            raise KeyboardInterrupt
        came.set()
        stopping.set()

    if threading.current_thread() is not threading.main_thread():  # only the main thread may set handlers
        yield
        return
    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def host_and_port(listens: str) -> tuple[str, int]:
    """Where pages are served; a port alone means that only this machine can reach them."""
    host, _, port = listens.rpartition(":")
    return host.strip("[]") or "127.0.0.1", int(port)


def broker_retry(
    ask: Callable[[], Answer], *, patience_s: float, pause: Callable[[float], bool], say: Announcer
) -> Answer | None:
    """The broker's answer, asked for again for `patience_s`; that it does not answer is said once.

    None where `pause`, which waits for so many seconds, says to stop. Raises Refused.
    """
    from precede.ingest.kafka.clients import retry  # loads Kafka, which who only asks for settings does not need

    seconds = f"{patience_s:.0f} s"
    try:
        return retry(
            ask,
            passes=lambda error: isinstance(error, Unreachable),
            for_s=patience_s,
            pause_s=RETRY_S,
            pause=pause,
            tell=lambda away: say(f"{str(away).rstrip('.')}; trying again for {seconds}.", level="warning"),
        )
    except Unreachable as away:
        raise Refused(f"{str(away).rstrip('.')}; gave up after {seconds}.") from away


def reason_of(error: Any) -> str:
    """The innermost cause in one line; a log has the rest."""
    from confluent_kafka import KafkaException

    if isinstance(error, KafkaException):
        return str(error.args[0].str()).rstrip(".")
    text = str(error).strip() or type(error).__name__
    causes = _CAUSES.findall(text)
    line = str(causes[-1] if causes else text.strip().splitlines()[0])
    return line[:REASON_LENGTH_MAX].rstrip(". ")
