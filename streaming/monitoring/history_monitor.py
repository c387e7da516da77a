"""Whether the tables still have the rows that were written to them, while the job writes; seen by their logs alone.

What is right is noted in the checkpoint each time, so that the next start has little of the logs to read, and knows
the number even where the logs were cleaned meanwhile.
"""

from contextlib import suppress

from precede.ingest.service.monitor import PASSING, Monitor
from precede.ingest.service.running import Announcer
from precede.streaming.history import tables
from precede.streaming.history.tables import BY_BATCHES
from precede.streaming.settings import Settings

EVERY_S = 60.0


class HistoryMonitor:
    """Compares the rows of each table, and says so once where they are wrong."""

    def __init__(self, settings: Settings, say: Announcer) -> None:
        self.differences: dict[str, int] = {}
        """By table, the rows too many, or, below 0, the missing ones; only of tables that were looked at."""
        self._settings = settings
        self._say = say
        self._monitor: Monitor[None] = Monitor(
            "history-monitor",
            self._look,
            every_s=EVERY_S,
            undone="nothing notices rows of the Delta tables that were lost or doubled",
        )

    def start(self) -> None:
        self._monitor.start()

    def stop(self, *, is_owner: bool = True) -> None:
        """End; a job that still owns its folders notes what it has written last, if the tables can be read."""
        self._monitor.stop()
        if is_owner and not self._monitor.runs:
            with suppress(*PASSING):
                self._look()

    def _look(self, _client: None = None) -> None:
        for table in BY_BATCHES:
            compared = tables.compare_rows(self._settings, table)
            if compared is None:
                continue
            before = self.differences.get(table, 0)
            self.differences[table] = compared.difference
            tables.keep_rows(self._settings, table, compared)
            if compared.broken is not None and not before:
                self._say(tables.wrong_rows(self._settings, table, compared), level="warning")
