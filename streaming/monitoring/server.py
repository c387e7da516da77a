"""The monitoring of a job: its metrics, its health, and whether it is stuck, as pages of one port (page_server.py)."""

import time
from functools import partial
from typing import TYPE_CHECKING

from precede.ingest.service.broker_monitor import BrokerMonitor
from precede.ingest.service.page_server import PageServer
from precede.streaming.history import tables
from precede.streaming.history.tables import TABLES, history_name
from precede.streaming.job.settings import Settings
from precede.streaming.job.watch import QueryWatch
from precede.streaming.monitoring.health import Health, judge

if TYPE_CHECKING:
    from precede.streaming.order.sink import Sink

STUCK_S_MAX = 600.0
"""The main thread looks five times a second; starting Spark and restoring a large state take a minute or two."""


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
        self._watches: list[QueryWatch] = []
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

    def watch(self, watches: list[QueryWatch], sink: "Sink | None") -> None:
        """Report these queries and this sink from now on."""
        self._watches = self.metrics.watches = watches
        self.metrics.sink = sink
        for table in TABLES:
            for one in watches:
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


def _reached(watch: QueryWatch, topic: str) -> dict[int, int]:
    return {at: offset for (name, at), offset in watch.reached.items() if name == topic}


def _processed(sink: "Sink") -> dict[int, int]:
    """Of the partitions that the job owns, once it is known how far they were processed before."""
    if not sink.is_token_known:
        return {}
    return dict.fromkeys(sink.ownership.partitions, 0) | sink.counts.next
