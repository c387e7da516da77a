"""The job's metrics for Prometheus, read on request from numbers that the job has anyway; only times are recorded.

Units stand last in a name. Counters begin at 0 with each start of the job; what is held is known after a restart too.
"""

import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from precede.ingest.service.broker_monitor import BrokerMonitor
from precede.streaming.history.tables import TABLES, history_name
from precede.streaming.monitoring.history_monitor import HistoryMonitor
from precede.streaming.monitoring.query_keeper import QueryKeeper
from precede.streaming.monitoring.retention_monitor import RetentionMonitor
from precede.streaming.order import counts as counts_file
from precede.streaming.order.counts import JobCounts
from precede.streaming.places import place
from precede.streaming.places.place import LocalPlace
from precede.streaming.raw_partitions import of_partitions
from precede.streaming.settings import Settings
from precede.udfs.codes import CODES

if TYPE_CHECKING:
    from precede.streaming.order.counts import Times
    from precede.streaming.order.sink import Sink

BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)


class Metrics(Collector):
    """The metrics of one job."""

    def __init__(self, settings: Settings, broker: BrokerMonitor, healthy: Callable[[], bool]) -> None:
        self.settings = settings
        self.broker = broker
        self.healthy = healthy
        self.sink: Sink | None = None
        self._at_start = JobCounts()
        """Shown until there is a sink, since Spark takes some time to start."""
        self.keepers: list[QueryKeeper] = []
        self.retention: RetentionMonitor | None = None
        """Where the raw topic has a retention."""
        self.history: HistoryMonitor | None = None
        """Where the job writes history."""
        self.registry = CollectorRegistry()
        self._phases = Histogram(
            "precede_batch_seconds",
            "Time of a batch by phase; triggerExecution is the whole of it.",
            ["query", "phase"],
            buckets=BUCKETS_S,
            registry=self.registry,
        )
        ProcessCollector(registry=self.registry)
        self.registry.register(self)

    def read_held(self) -> None:
        """Show what was held when the last job ended; the checkpoint can be read."""
        if not self.settings.runs_without_spark:
            self._at_start = counts_file.load(self.settings.checkpoint_place)

    def observe(self, query: str, phase: str, seconds: float) -> None:
        """Record how long a phase of a batch took."""
        self._phases.labels(query, phase).observe(seconds)

    def text(self) -> bytes:
        """All metrics in Prometheus's text format."""
        return generate_latest(self.registry)

    def describe(self) -> Iterable[Metric]:
        """Empty: there are no numbers yet when the registry calls this."""
        return []

    def collect(self) -> Iterator[Metric]:
        settings = self.settings
        info = {"order": settings.order, "engine": settings.engine, "only": settings.only or ""}
        info |= {"raw_partitions": settings.raw_partitions} if settings.raw_partitions else {}
        info |= {} if settings.runs_without_spark else {"shards": str(settings.shards)}
        yield InfoMetricFamily("precede_job", "What the job was started with.", info)
        yield GaugeMetricFamily("precede_healthy", "1 where the health endpoint says so.", int(self.healthy()))
        if settings.only != "history":
            yield from self._ordering(self.sink.counts if self.sink else self._at_start)
            if self.sink:
                yield from self._times(self.sink.times)
            if self.sink and self.sink.is_token_known:  # without it the lag would be the whole log
                yield from self._lag(self.sink)
            if self.retention is not None:
                yield GaugeMetricFamily(
                    "precede_retention_used_ratio",
                    "How much of the raw topic's retention what is not ordered yet has used up, in tenths.",
                    self.retention.used,
                )
        yield from self._queries()
        if self.history is not None:
            yield self._history_difference(self.history.differences.copy())
        yield self._disks()

    def _ordering(self, counts: JobCounts) -> Iterator[Metric]:
        yield CounterMetricFamily("precede_read_records", "Raw records processed.", counts.read)
        yield CounterMetricFamily("precede_delivered_records", "Ordered records published.", counts.delivered)
        yield CounterMetricFamily("precede_duplicate_records", "Exact copies dropped.", counts.duplicates)
        dead = CounterMetricFamily("precede_dead_letter_records", "Dead letters by code.", labels=["code"])
        for code in CODES:  # each begins at 0, or the first dead letter of a code would not count as an increase
            dead.add_metric([code], counts.codes[code])
        yield dead
        yield GaugeMetricFamily("precede_held_messages", "Messages held now.", counts.held_now)
        yield GaugeMetricFamily("precede_gaps", "Gaps that held messages wait for.", counts.gaps_now)
        state_bytes = sum(counts.state_bytes.copy().values())
        yield GaugeMetricFamily("precede_state_bytes", "The state of all groups, as last written.", state_bytes)
        oldest_ms = counts.oldest_ms
        age_s = 0.0 if oldest_ms is None else max(0.0, time.time() - oldest_ms / 1000)
        yield GaugeMetricFamily("precede_held_oldest_seconds", "How long the oldest held message has waited.", age_s)

    def _lag(self, sink: "Sink") -> Iterator[Metric]:
        lag = GaugeMetricFamily("precede_lag_records", "Raw records not yet processed.", labels=["partition"])
        waited = GaugeMetricFamily(
            "precede_lag_seconds", "How long the oldest of them has waited, seen every 5 s.", labels=["partition"]
        )
        ends = of_partitions(sink.ownership.partitions, self.broker.ends.copy())
        for partition, records in sink.counts.lag(dict(sorted(ends.items()))).items():
            lag.add_metric([str(partition)], records)
            next_offset = sink.counts.next.get(partition, 0)
            waited_s = self.broker.waited_s(self.settings.raw_topic, partition, next_offset)
            waited.add_metric([str(partition)], waited_s)
        yield from (lag, waited)

    def _times(self, times: "Times") -> Iterator[Metric]:
        for name, about, found in (
            ("delay", "Time of a message from its arrival, or from its release where it was held, to the commit.",
             times.delay),
            ("hold", "Time for which a message that was held had to wait.", times.hold),
        ):  # fmt: skip
            family = HistogramMetricFamily(f"precede_{name}_seconds", about)
            family.add_metric([], found.buckets(), found.sum_s)
            yield family

    def _history_lag(self) -> Metric:
        """By table; only of queries that have said up to where they have read."""
        lag = GaugeMetricFamily(
            "precede_history_lag_seconds",
            "How long the oldest record that is not in the table has waited, seen every 5 s.",
            labels=["table"],
        )
        for table in TABLES:
            for keeper in self.keepers:
                if keeper.name == history_name(table) and keeper.reached:
                    waited_s = [self.broker.waited_s(*place, offset) for place, offset in keeper.reached.items()]
                    lag.add_metric([table], max(waited_s))
        return lag

    def _history_difference(self, differences: dict[str, int]) -> Metric:
        rows = GaugeMetricFamily(
            "precede_history_difference_rows",
            "Rows that the table has and that were not written to it, or, below 0, those it lacks; seen every 60 s.",
            labels=["table"],
        )
        for table, difference in differences.items():
            rows.add_metric([table], difference)
        return rows

    def _queries(self) -> Iterator[Metric]:
        running = GaugeMetricFamily("precede_query_running", "1 while the query runs.", labels=["query"])
        batches = CounterMetricFamily("precede_batches", "Finished batches.", labels=["query"])
        restarts = CounterMetricFamily(
            "precede_query_restarts", "How often the query failed and was started again.", labels=["query"]
        )
        silent = GaugeMetricFamily(
            "precede_query_silent_seconds", "Time since the query last reported progress.", labels=["query"]
        )
        behind = GaugeMetricFamily(
            "precede_query_behind_records",
            "Records of its source not yet read, as last reported.",
            labels=["query"],
        )
        for keeper in self.keepers:
            name = [keeper.name]
            running.add_metric(name, int(keeper.running))
            batches.add_metric(name, keeper.batches)
            restarts.add_metric(name, keeper.restarts)
            if keeper.progress_at:
                silent.add_metric(name, time.monotonic() - keeper.progress_at)
            if keeper.behind is not None:
                behind.add_metric(name, keeper.behind)
        yield from (running, batches, restarts, silent, behind, self._history_lag())

    def _disks(self) -> Metric:
        free = GaugeMetricFamily("precede_disk_free_bytes", "Free space on the folder's disk.", labels=["folder"])
        folders = ("checkpoint",) if self.settings.only == "order" else ("checkpoint", "delta")
        for name in ("cache",) if self.settings.runs_without_spark else folders:
            folder = place.at(getattr(self.settings, name))
            with suppress(OSError):
                if isinstance(folder, LocalPlace):  # a store does not fill up
                    free.add_metric([name], shutil.disk_usage(folder.path).free)
        return free
