"""One streaming query, watched: started again when it fails, later each time, with a sentence."""

import re
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaException
from py4j.protocol import Py4JError

from streaming.errors import Refused
from streaming.kafka import Unreachable

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

GONE = (Py4JError, OSError)
"""How calls into a Spark that has ended fail."""

SEE_S = 1.0
FIRST_RETRY_S = 1.0
LAST_RETRY_S = 30.0

# What no retry can mend: these are raised in executors, and their sentence is for a person.
FINAL = re.compile(
    r"(?:udfs\.shard\.StateTooNew|udfs\.snapshot\.UnreadableBlob|streaming\.history_rows\.NotOurs): ([^\n]+)"
)
CAUSES = re.compile(r"(?:Exception|Error): ([^\n]+)")
REASON_LENGTH_MAX = 300


class QueryWatch:
    """A query and what became of it."""

    def __init__(
        self, name: str, start: Callable[[], "StreamingQuery"], say: Callable[[str], object], patience_s: float
    ) -> None:
        self.name = name
        self.done = False
        self.rows = 0
        """Rows that went in since the job began."""
        self._start = start
        self._say = say
        self._patience_s = patience_s
        self._query: StreamingQuery | None = None
        self._failures = 0
        self._failing_since = 0.0
        self._retry_at = 0.0
        self._last_batch = -1
        self._seen_at = 0.0

    def look(self) -> None:
        """Start it if it does not run, and see how it is."""
        if self.done:
            return
        if self._query is None:
            if time.monotonic() >= self._retry_at:
                self._try_start()
            return
        active = self._query.isActive
        now = time.monotonic()
        if not active or now - self._seen_at >= SEE_S:
            self._seen_at = now
            self._see_progress(self._query)
        if not active:
            failure = self._query.exception()
            self._query = None
            if failure is None:
                self.done = True
            else:
                self._failed(failure)

    def stop(self) -> None:
        """End it, where it still runs."""
        query, self._query = self._query, None
        if query is not None:
            with suppress(*GONE):
                query.stop()

    def _try_start(self) -> None:
        from pyspark.errors import PySparkException

        try:
            self._query = self._start()
        except (KafkaException, Unreachable, PySparkException) as error:
            self._failed(error)

    def _see_progress(self, query: "StreamingQuery") -> None:
        """Reading one progress is cheap, reading all is not: that is done only where one was missed."""
        last = query.lastProgress
        if last is None:
            return
        if self._failures:
            self._say(f"The {self.name} query is at work again.")
            self._failures = 0
        for progress in [last] if last.batchId <= self._last_batch + 1 else query.recentProgress:
            if progress.batchId > self._last_batch:
                self._last_batch = progress.batchId
                self.rows += progress.numInputRows

    def _failed(self, error: Exception) -> None:
        text = str(error)
        final = FINAL.search(text)
        if final:
            raise Refused(final.group(1)) from error
        now = time.monotonic()
        if self._failures == 0:
            self._failing_since = now
        self._failures += 1
        reason = reason_of(error)
        if now - self._failing_since > self._patience_s:
            raise Refused(f"The {self.name} query has failed for {self._patience_s:.0f} s: {reason}.") from error
        wait_s = min(FIRST_RETRY_S * 2 ** (self._failures - 1), LAST_RETRY_S)
        self._retry_at = now + wait_s
        self._say(f"The {self.name} query stopped: {reason}; it starts again in {wait_s:.0f} s.")


def reason_of(error: Any) -> str:
    """The innermost cause in one line; the whole story is in Spark's log."""
    if isinstance(error, KafkaException):
        return str(error.args[0].str()).rstrip(".")
    text = str(error)
    causes = CAUSES.findall(text)
    line = str(causes[-1] if causes else text.strip().splitlines()[0])
    return line[:REASON_LENGTH_MAX].rstrip(". ")
