"""Shows on standard error what is being read, where that takes longer than a moment."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from precede.terminal_text import plain

TERMINAL_AFTER_S, TERMINAL_EVERY_S = 1.0, 0.2
LINE_EVERY_S = 10.0
"""Where standard error is no terminal, a line is written this often."""
CLEAR_LINE = "\r\x1b[K"


@contextmanager
def shown_progress() -> Iterator[Callable[[str, float], None]]:
    """A function that takes what is being read, and which part of it was read: 0 to 1."""
    is_terminal = sys.stderr.isatty()
    next_at = time.monotonic() + (TERMINAL_AFTER_S if is_terminal else LINE_EVERY_S)
    is_shown = False

    def tell(what: str, part: float) -> None:
        nonlocal next_at, is_shown
        now = time.monotonic()
        if now < next_at:
            return
        line = f"Reading {plain(what)}: {min(100, round(part * 100))} %"
        sys.stderr.write(f"{CLEAR_LINE}{line}" if is_terminal else f"{line}\n")
        sys.stderr.flush()
        is_shown = True
        next_at = now + (TERMINAL_EVERY_S if is_terminal else LINE_EVERY_S)

    try:
        yield tell
    finally:
        if is_shown and is_terminal:
            sys.stderr.write(CLEAR_LINE)
            sys.stderr.flush()
