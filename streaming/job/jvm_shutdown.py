"""Where the driver's JVM is told to end, as cluster managers do, the job stops between two batches first."""

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from py4j.protocol import Py4JError

PRIORITY = 1000
SECONDS_MAX = 60


def stop_first(stopping: threading.Event) -> Callable[[], None]:
    """When the JVM is told to end, set `stopping`, and let it wait until the returned function is called.

    Hadoop runs its hooks one after the other, those of a higher priority first. Spark's own, which ends the context, is
    one of them.
    """
    from pyspark import SparkContext
    from pyspark.java_gateway import ensure_callback_server_started

    gateway: Any = SparkContext._gateway
    ensure_callback_server_started(gateway)  # type: ignore[no-untyped-call]
    manager = gateway.jvm.org.apache.hadoop.util.ShutdownHookManager.get()
    seconds = gateway.jvm.java.util.concurrent.TimeUnit.SECONDS
    hook = _Hook(stopping)
    thread = gateway.jvm.java.lang.Thread(hook)  # Java asks for its hash, for example
    manager.addShutdownHook(thread, PRIORITY, SECONDS_MAX, seconds)

    def end() -> None:
        hook.ended.set()
        with suppress(Py4JError, OSError):  # the JVM is just ending, or has ended
            manager.removeShutdownHook(thread)

    return end


class _Hook:
    """What the JVM runs before it ends."""

    def __init__(self, stopping: threading.Event) -> None:
        self._stopping = stopping
        self.ended = threading.Event()

    def run(self) -> None:
        self._stopping.set()
        self.ended.wait(SECONDS_MAX)

    class Java:
        """Says to py4j what this is in Java."""

        implements = ("java.lang.Runnable",)
