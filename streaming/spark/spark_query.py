"""A streaming query of Spark, as the job sees it."""

import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec
from py4j.protocol import Py4JError

from precede.streaming.monitoring.query_keeper import QueryError, QueryKeeper

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import StreamingQueryProgress
    from pyspark.sql.streaming.query import StreamingQuery

SPARK_ENDED = (Py4JError, OSError)
"""What calls into Spark raise when it has ended."""


class SparkQuery:
    """A query that was started; its progress is read from Spark."""

    def __init__(self, query: "StreamingQuery") -> None:
        self._query = query
        self._last_progress = ""

    @property
    def is_active(self) -> bool:
        return self._query.isActive

    @property
    def failure(self) -> Exception | None:
        return self._query.exception()

    def stop(self) -> None:
        with suppress(*SPARK_ENDED):
            self._query.stop()

    def note_progress(self, keeper: QueryKeeper) -> None:
        """Read the last progress, which is cheap; all of them, which is not, only where one was missed."""
        last = self._query.lastProgress
        if last is None:
            if not keeper.progress_at and self._query.status["message"].startswith("Waiting"):
                keeper.progress_at = time.monotonic()  # there was nothing to do yet
            return
        keeper.works()
        if last.timestamp == self._last_progress:
            return
        self._last_progress, keeper.progress_at = last.timestamp, time.monotonic()
        for progress in [last] if last.batchId <= keeper.batch + 1 else self._query.recentProgress:
            # When there was nothing to do, the progress names the next batch.
            if progress.batchId > keeper.batch and "addBatch" in progress.durationMs:
                _count(progress, keeper)
        keeper.behind = behind(last)
        keeper.reached = reached(last) or keeper.reached


def started(start: "Callable[[], StreamingQuery]") -> SparkQuery:
    """Start a query; raises QueryError where Spark did not."""
    from pyspark.errors import PySparkException

    try:
        return SparkQuery(start())
    except PySparkException as error:
        raise QueryError(str(error)) from error


def _count(progress: "StreamingQueryProgress", keeper: QueryKeeper) -> None:
    keeper.batch = progress.batchId
    keeper.batches += 1
    keeper.rows += progress.numInputRows
    for phase, milliseconds in progress.durationMs.items():
        keeper.observe(keeper.name, phase, milliseconds / 1000)


def behind(progress: "StreamingQueryProgress") -> int | None:
    """How many records of its source the query had not read."""
    latest = {place: end for source in progress.sources for place, end in _offsets(source.latestOffset).items()}
    done = reached(progress)
    return sum(max(0, end - done.get(at, 0)) for at, end in latest.items()) if latest and done else None


def reached(progress: "StreamingQueryProgress") -> dict[tuple[str, int], int]:
    """Up to where the query has read its source; empty where it does not say so."""
    return {place: offset for source in progress.sources for place, offset in _offsets(source.endOffset).items()}


def _offsets(text: str | None) -> dict[tuple[str, int], int]:
    """Kafka's offsets as Spark writes them, by topic and partition."""
    topics = msgspec.json.decode(text or "null") or {}
    return {(topic, int(at)): offset for topic, places in topics.items() for at, offset in places.items()}
