"""The monitoring of a job: its metrics, its health, and whether it is stuck, as pages of one port (page_server.py).

It is healthy where every query reports progress, Kafka answers, and monitors work. A query reports progress when a
batch ends. While there is nothing to do it reports every ten seconds, or at each trigger. A query that is stuck, that
fails repeatedly, or that takes longer than that to start, does not.
"""

import time
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from precede.ingest.service.broker_monitor import BrokerMonitor, silent_s, trouble_with
from precede.ingest.service.monitor import troubles
from precede.ingest.service.page_server import PageServer
from precede.streaming.history import tables
from precede.streaming.history.tables import TABLES, history_name
from precede.streaming.monitoring.query_keeper import QueryKeeper
from precede.streaming.settings import Settings

if TYPE_CHECKING:
    from precede.streaming.order.sink import Sink

STUCK_S_MAX = 600.0
"""The main thread looks five times a second; starting Spark and restoring a large state take a minute or two."""


SILENT_S_MAX = 120.0
"""How long a query may be silent beyond its trigger interval; the largest batch and a restart take less."""


class QueryHealth(msgspec.Struct):
    """One query: whether it runs now, its last batch, and how long ago it reported progress."""

    running: bool
    batch: int | None
    silent_s: float | None


class Health(msgspec.Struct):
    """The answer; `problems` says in sentences why the job is not healthy."""

    healthy: bool
    problems: list[str]
    queries: dict[str, QueryHealth]
    kafka_silent_s: float | None


def judge(
    keepers: Iterable[QueryKeeper], began_at: float, kafka_answered_at: float | None, *, step: str = "it has just begun"
) -> Health:
    """The health now, by the process's clock; a query without any progress counts as silent since the job began.

    `step` says what a job does that has no queries yet.
    """
    now = time.monotonic()
    problems: list[str] = []
    queries: dict[str, QueryHealth] = {}
    for keeper in keepers:
        since_s = now - max(keeper.progress_at, began_at)
        queries[keeper.name] = QueryHealth(
            keeper.running,
            keeper.batch if keeper.batch >= 0 else None,
            round(since_s, 1) if keeper.progress_at else None,
        )
        if keeper.done:
            continue
        if not keeper.progress_at:
            problems.append(f"The {keeper.name} query has not begun yet.")
        elif since_s > SILENT_S_MAX + keeper.every_s:
            problems.append(f"The {keeper.name} query has been silent for {since_s:.0f} s.")
        elif not keeper.running:
            problems.append(f"The {keeper.name} query has stopped and will be started again.")
    away_s = silent_s(kafka_answered_at)
    away = trouble_with(kafka_answered_at)
    problems += [*([] if away is None else [away]), *troubles()]
    if not queries:
        problems.append(f"The job is starting: {step}.")
    return Health(not problems, problems, queries, None if away_s is None else round(away_s, 1))


class MonitoringServer:
    """Answers while it is open; the job tells it which queries and which sink to report."""

    def __init__(self, settings: Settings) -> None:
        from precede.streaming.monitoring.metrics import Metrics

        assert settings.metrics is not None
        self.began_at = time.monotonic()
        self.broker = BrokerMonitor(settings.bootstrap, settings.raw_topic)
        self.metrics = Metrics(settings, self.broker, lambda: self.health().healthy)
        self._beat_at = self.began_at
        self.step = "it has just begun"
        """What the start does now, as a part of a sentence."""
        self._watches: list[QueryKeeper] = []
        self._server = PageServer(settings.metrics, self)

    @property
    def port(self) -> int:
        """The port it listens at."""
        return self._server.port

    def open(self) -> None:
        """Answer from now on; nothing is known yet of Kafka and of what is held."""
        self._server.open()

    def follow_kafka(self) -> None:
        """Ask Kafka from now on; where it was away for the whole start, the topics are there only now."""
        self.broker.start()

    def close(self) -> None:
        self._server.close()
        self.broker.stop()

    def text(self) -> bytes:
        return self.metrics.text()

    def show(self, keepers: list[QueryKeeper], sink: "Sink | None") -> None:
        """Report these queries and this sink from now on."""
        self._watches = self.metrics.keepers = keepers
        self.metrics.sink = sink
        for table in TABLES:
            for one in keepers:
                if one.name == history_name(table):
                    topic = tables.topic(self.metrics.settings, table)
                    self.broker.reached[topic] = partial(_reached, one, topic)
        if sink is not None:
            self.broker.reached[sink.settings.raw_topic] = partial(_processed, sink)

    def beat(self) -> None:
        """The main thread of the job goes on."""
        self._beat_at = time.monotonic()

    def stuck_s(self) -> float | None:
        """How long the main thread has been stuck; None where it is not."""
        silent_s = time.monotonic() - self._beat_at
        return silent_s if silent_s > STUCK_S_MAX else None

    def health(self) -> Health:
        return judge(self._watches, self.began_at, self.broker.answered_at, step=self.step)


def _reached(keeper: QueryKeeper, topic: str) -> dict[int, int]:
    return {at: offset for (name, at), offset in keeper.reached.items() if name == topic}


def _processed(sink: "Sink") -> dict[int, int]:
    """Of the partitions that the job owns, once it is known how far they were processed before."""
    if not sink.is_token_known:
        return {}
    return dict.fromkeys(sink.ownership.partitions, 0) | sink.counts.next
