"""What the views of both demos share: lines, or a picture that is drawn a few times a second."""

import time
from collections.abc import Callable
from typing import Self

from rich.console import Console, Group
from rich.live import Live

from precede.terminal_text import safe_text

FRAMES_PER_S = 8


class Lines:
    """Prints lines, and what the demo does whenever that changes."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._state = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def _print_state(self, state: str) -> None:
        if state != self._state:
            self._console.print(f"{state} ...", highlight=False, markup=False)
        self._state = state

    def _print_line(self, text: str) -> None:
        self._console.print(safe_text(text), soft_wrap=True)


class Picture:
    """Draws a picture in the terminal, over and over."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, auto_refresh=False, vertical_overflow="crop")
        self._drawn_s = 0.0

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def _draw(self, picture: Callable[[], Group]) -> None:
        """Draw this, unless that was done a moment ago."""
        now_s = time.monotonic()
        if now_s - self._drawn_s >= 1 / FRAMES_PER_S:
            self._drawn_s = now_s
            self._live.update(picture(), refresh=True)
