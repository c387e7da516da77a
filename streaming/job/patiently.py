"""Asks the broker something for as long as the setting `patience_s` says, and tells once that it does not answer."""

from collections.abc import Callable
from typing import TypeVar

from precede.ingest.kafka.retry import retry
from precede.streaming.job.announcer import Announcer
from precede.udfs.errors import Refused, Unreachable

RETRY_S = 2.0

Answer = TypeVar("Answer")


def ask_patiently(
    ask: Callable[[], Answer], *, patience_s: float, pause: Callable[[float], bool], say: Announcer
) -> Answer | None:
    """The broker's answer; None where `pause`, which waits for so many seconds, says to stop. Raises Refused."""
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
