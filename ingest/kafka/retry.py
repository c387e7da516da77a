"""Repeats a call while its error may pass by itself."""

import time
from collections.abc import Callable
from typing import TypeVar

Answer = TypeVar("Answer")


def retry(
    ask: Callable[[], Answer],
    *,
    passes: Callable[[Exception], bool],
    for_s: float,
    pause_s: float,
    pause: Callable[[float], bool | None] = time.sleep,
    tell: Callable[[Exception], object] = lambda _: None,
) -> Answer | None:
    """The answer of the call; raises an error that cannot pass, or that is still there after `for_s` seconds.

    `tell` gets the first error that may pass. If `pause` returns True, the caller no longer waits, and the result is
    None.
    """
    deadline = time.monotonic() + for_s
    has_told = False
    while True:
        try:
            return ask()
        except Exception as error:
            if not passes(error):
                raise
            if not has_told:
                tell(error)
                has_told = True
            if time.monotonic() >= deadline:
                raise
        if pause(pause_s):
            return None
