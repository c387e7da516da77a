"""Watches one streaming query: when it fails it is started again after a growing pause, and a sentence says why."""

import math
import re
import time
from collections.abc import Callable
from typing import Protocol

from confluent_kafka import KafkaException

from precede.ingest.service.running import reason_of
from precede.udfs.errors import Refused, Unreachable

PROGRESS_S = 1.0
FIRST_RETRY_S = 1.0
LAST_RETRY_S = 30.0

# Raised in an executor: its sentence is for a person, and no retry helps.
REFUSED = re.compile(r"udfs\.errors\.Refused: ([^\n]+)")
LACKS = re.compile(r"ModuleNotFoundError: No module named '([^'\n]+)'")


class QueryError(Exception):
    """An engine could not start a query; it may work when it is tried again."""


class RunningQuery(Protocol):
    """A query that was started, whatever engine runs it."""

    @property
    def is_active(self) -> bool:
        """Whether it runs."""

    @property
    def failure(self) -> Exception | None:
        """Why it ended; None if all was done."""

    def stop(self) -> None:
        """End it; nothing happens if it has ended."""

    def note_progress(self, keeper: "QueryKeeper") -> None:
        """Tell the keeper what was done since the last call."""


class QueryKeeper:
    """A query and its state."""

    def __init__(
        self,
        name: str,
        start: Callable[[], RunningQuery],
        say: Callable[..., object],
        patience_s: float,
        observe: Callable[[str, str, float], object],
        every_s: float = 0.0,
    ) -> None:
        """With an infinite `patience_s` the query is restarted for ever.

        `observe(query, phase, seconds)` gets the time of each phase of each batch.
        """
        self.name = name
        self.every_s = every_s
        """The query's trigger interval; between two triggers it reports no progress."""
        self.done = False
        self.rows = 0
        """Rows read since the job began."""
        self.batches = 0
        self.batch = -1
        """The last finished batch."""
        self.restarts = 0
        self.progress_at = 0.0
        """When the query last reported progress: a batch, or that there was nothing to do."""
        self.behind: int | None = None
        """Records of its source that were not yet read at that moment."""
        self.reached: dict[tuple[str, int], int] = {}
        """The next offset of each topic and partition of its source, where the query reports it."""
        self._start = start
        self._say = say
        self._patience_s = patience_s
        self.observe = observe
        self._query: RunningQuery | None = None
        self._failures = 0
        self._failing_since = 0.0
        self._retry_at = 0.0
        self._checked_at = 0.0

    @property
    def running(self) -> bool:
        return self._query is not None

    def check(self) -> None:
        """Start the query if it does not run; take in its progress, or its failure."""
        if self.done:
            return
        if self._query is None:
            if time.monotonic() >= self._retry_at:
                self._try_start()
            return
        active = self._query.is_active
        now = time.monotonic()
        if not active or now - self._checked_at >= PROGRESS_S:
            self._checked_at = now
            self._query.note_progress(self)
        if not active:
            failure = self._query.failure
            self._query = None
            if failure is None:
                self.done = True
            else:
                self._failed(failure)

    def stop(self) -> None:
        """Stop the query if it runs."""
        query, self._query = self._query, None
        if query is not None:
            query.stop()

    def works(self) -> None:
        """The query makes progress."""
        if self._failures:
            self._say(f"The {self.name} query works again.", query=self.name)
            self._failures = 0

    def _try_start(self) -> None:
        try:
            self._query = self._start()
        except ConnectionError:  # the engine has ended
            raise
        except InterruptedError:  # the job is stopping, and no query starts any more
            return
        except (KafkaException, Unreachable, QueryError, OSError) as error:
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        if isinstance(error, Refused):
            raise error
        text = str(error)
        refused = refusal_in(text)
        if refused and self._patience_s < math.inf:
            raise Refused(refused) from error
        now = time.monotonic()
        if self._failures == 0:
            self._failing_since = now
        self._failures += 1
        self.restarts += 1
        reason = refused.rstrip(".") if refused else reason_of(error)
        if now - self._failing_since > self._patience_s:
            raise Refused(f"The {self.name} query has failed for {self._patience_s:.0f} s: {reason}.") from error
        wait_s = min(FIRST_RETRY_S * 2 ** (self._failures - 1), LAST_RETRY_S)
        self._retry_at = now + wait_s
        sentence = f"The {self.name} query stopped: {reason}; it starts again in {wait_s:.0f} s."
        self._say(sentence, level="warning", query=self.name, batch=self.batch + 1)


def refusal_in(text: str) -> str | None:
    """The sentence of a failure that no retry mends; None where one may help."""
    if refused := REFUSED.search(text):
        return refused.group(1)
    if lacks := LACKS.search(text):
        return (
            f"The Python of Spark's executors has no module {lacks.group(1)}: send precede along with --py-files "
            "precede.zip, and install the packages it needs on every worker, or set PYSPARK_PYTHON to a Python that "
            "has them."
        )
    return None
