"""Ctrl-C and SIGTERM end the job between two batches."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def set_on_signals(stopping: threading.Event) -> Iterator[None]:
    """Set the event at the first signal; a second one raises KeyboardInterrupt at once."""

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
