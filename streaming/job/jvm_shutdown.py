"""Where the driver's JVM is told to end, as cluster managers do, the job stops between two batches first."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from py4j.protocol import Py4JError

PRIORITY = 1000
SECONDS_MAX = 60


@contextmanager
def stop_with_jvm(stopping: threading.Event) -> Iterator[None]:
    """Stop the job between two batches where the JVM is told to end, as cluster managers do with a driver.

    The JVM waits until this is left. Hadoop runs its hooks one after the other, those of a higher priority first, and
    Spark's own, which ends the context, is one of them.
    """
    from pyspark import SparkContext
    from pyspark.java_gateway import ensure_callback_server_started

    gateway: Any = SparkContext._gateway
    ensure_callback_server_started(gateway)  # type: ignore[no-untyped-call]
    hook, manager = _ShutdownHook(stopping), gateway.jvm.org.apache.hadoop.util.ShutdownHookManager.get()
    manager.addShutdownHook(hook, PRIORITY, SECONDS_MAX, gateway.jvm.java.util.concurrent.TimeUnit.SECONDS)
    try:
        yield
    finally:
        hook.ended.set()
        with suppress(Py4JError, OSError):  # it cannot be removed while it runs, or where the JVM has ended
            manager.removeShutdownHook(hook)


class _ShutdownHook:
    """What the JVM runs before it ends."""

    def __init__(self, stopping: threading.Event) -> None:
        self._stopping = stopping
        self.ended = threading.Event()

    def run(self) -> None:
        self._stopping.set()
        self.ended.wait(SECONDS_MAX)

    def hashCode(self) -> int:  # noqa: N802 (Java's name)
        return id(self) & 0x7FFFFFFF

    def equals(self, other: object) -> bool:
        return other is self

    class Java:
        """Says to py4j what this is in Java."""

        implements = ("java.lang.Runnable",)
