"""The job: checks, Spark, the queries, and the end.

Problems that a person must fix are refused before Spark starts. A query that fails is started again, with a growing
pause, and the job says why. Nothing is lost by that: Spark's checkpoint and the token are still as the last whole batch
left them.
"""

import math
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from py4j.protocol import Py4JNetworkError

from precede.ingest.kafka import reading
from precede.ingest.kafka.retry import retry
from precede.ingest.kafka.topics import Topic, describe
from precede.streaming.history import tables
from precede.streaming.history.tables import GAPS, TABLES
from precede.streaming.job import checkpoint, group_places, start_checks
from precede.streaming.job.announcer import Announcer, Say
from precede.streaming.job.checkpoint import Checkpoint
from precede.streaming.job.settings import Settings
from precede.streaming.job.status import Status
from precede.streaming.job.stop_signals import set_on_signals
from precede.streaming.job.ticker import Ticker
from precede.streaming.job.watch import SPARK_ENDED, QueryWatch, reason_of
from precede.streaming.monitoring.server import MonitoringServer
from precede.streaming.order.sink import Sink
from precede.udfs.errors import Refused, Unreachable

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

Answer = TypeVar("Answer")

WATCH_S = 0.2
RETRY_S = 2.0
STOP_S_MAX = 45.0  # a little longer than a commit may take


def print_at_once(sentence: str) -> None:
    """Print a line without buffering."""
    print(sentence, flush=True)  # noqa: T201 (this is what the job is asked to do)


def ignore_time(_query: str, _phase: str, _seconds: float) -> None:
    """Used in place of metrics where none are served."""


def history_name(table: str) -> str:
    """The name of a table's history query, as sentences and metrics show it."""
    return f"history of {table}"


def run(
    settings: Settings,
    *,
    say: Say = print_at_once,
    spark: "SparkSession | None" = None,
    key: "Ed25519PrivateKey | None" = None,
) -> None:
    """Run until everything is done or the job is stopped; raises Refused for problems that a person must fix.

    A session that is given is used and left running. With a service key the job signs the records it writes itself.
    """
    announcer = Announcer(say, settings.log_format)
    try:
        Job(settings, announcer, spark, key).run()
    except Refused as refusal:
        announcer.refused(refusal)
        raise


class Job:
    """One run of the job."""

    def __init__(
        self,
        settings: Settings,
        say: Announcer,
        spark: "SparkSession | None" = None,
        key: "Ed25519PrivateKey | None" = None,
    ) -> None:
        self.settings = settings
        self.key = key
        self.say = say
        self.spark = spark
        self.orders = settings.only != "history"
        self.writes_history = settings.only != "order"
        self.stopping = threading.Event()
        self.publishing = threading.Lock()
        self.sink: Sink | None = None
        self.ticker: Ticker | None = None
        self.partitions = 0
        """How many partitions the raw topic had when the job was started."""
        self.status = Status(settings)
        self.monitoring: MonitoringServer | None = None

    def run(self) -> None:
        """Check, start, watch, stop."""
        settings = self.settings
        with ExitStack() as stack:
            stack.enter_context(set_on_signals(self.stopping))
            self._lock_folders(stack)
            self._serve_monitoring(stack)
            topics = self._find_topics()
            if self.stopping.is_set():
                return
            planned = self._check(topics)
            if self.stopping.is_set():
                return
            if self.orders:
                raw, progress = topics[settings.raw_topic], topics[settings.progress_topic]
                self.partitions = raw.partitions
                self.sink = Sink(settings, raw, progress, self.key)
                stack.callback(self.sink.close)
                if settings.tick_s and not settings.once:  # with `once` the log is processed as it is
                    self.ticker = Ticker(settings, topics[settings.raw_topic].partitions)
                    stack.callback(self.ticker.close)
            spark = self.spark or self._start_spark(stack)
            self._check_group_places(spark, planned, topics)
            self._write_checkpoint(spark, planned, topics)
            self._run_queries(spark)
            done = settings.once and not self.stopping.is_set()
            self.say(self.status.line("Done" if done else "Stopped"), **self.status.facts())

    def _start_spark(self, stack: ExitStack) -> "SparkSession":
        from precede.streaming.job import jars, session

        needed = jars.ensure("spark", home=self.settings.jars_home, say=self.say)
        self.say("Starting Spark.")
        spark = session.start(self.settings, needed, self.settings.logs)
        stack.callback(_stop_spark, spark)
        return spark

    # ── before the start ──────────────────────────────────────────────────────────────────────────────────────────

    def _lock_folders(self, stack: ExitStack) -> None:
        folder = Path(self.settings.checkpoint)
        checkpoint.make_writable("checkpoint", folder)
        if self.orders:
            stack.enter_context(checkpoint.lock_part(folder, "order"))
        if self.writes_history:
            stack.enter_context(checkpoint.lock_part(folder, "history"))
            checkpoint.make_writable("delta", Path(self.settings.delta))

    def _serve_monitoring(self, stack: ExitStack) -> None:
        if self.settings.metrics is not None:
            self.monitoring = MonitoringServer(self.settings)
            self.monitoring.open()
            stack.callback(self.monitoring.close)
            self.say(f"Metrics and health are at port {self.monitoring.port}.")

    def _find_topics(self) -> dict[str, Topic]:
        """The topics this job needs; empty where the job was stopped while it waited for the broker."""
        settings = self.settings
        names = [settings.ordered_topic, settings.dead_letter_topic, settings.control_topic]
        if self.orders:
            names += [settings.raw_topic, settings.progress_topic]
        topics = self._patiently(lambda: describe(settings.bootstrap, names)) or {}
        for name in names:
            if topics and name not in topics:
                raise Refused(f"The topic {name} does not exist; `precede run` creates it with the settings it needs.")
        return topics

    def _patiently(self, ask: Callable[[], Answer]) -> Answer | None:
        """The broker's answer, waited for at most `patience_s`; None where the job was stopped meanwhile."""
        if self.stopping.is_set():
            return None
        seconds = f"{self.settings.patience_s:.0f} s"
        try:
            return retry(
                ask,
                passes=lambda error: isinstance(error, Unreachable),
                for_s=self.settings.patience_s,
                pause_s=RETRY_S,
                pause=self.stopping.wait,
                tell=lambda away: self.say(f"{reason_of(away)}; trying again for {seconds}.", level="warning"),
            )
        except Unreachable as away:
            raise Refused(f"{reason_of(away)}; gave up after {seconds}.") from away

    def _check(self, topics: dict[str, Topic]) -> Checkpoint:
        """The checkpoint's file as it will be written; nothing is changed yet, except that a rebuild removes tables."""
        settings = self.settings
        planned = checkpoint.read(Path(settings.checkpoint))
        if self.orders:
            planned.order = start_checks.check_order(settings, planned.order, topics, self._patiently)
        if self.writes_history and settings.rebuild_delta:
            planned.history = start_checks.rebuild_history(settings, planned.history, topics, self._patiently, self.say)
        elif self.writes_history:
            planned.history = start_checks.check_history(settings, planned.history, topics)
        return planned

    def _check_group_places(self, spark: "SparkSession", planned: Checkpoint, topics: dict[str, Topic]) -> None:
        """A checkpoint of an older release is continued only if its groups live where their keys say."""
        if self.orders and planned.order is not None and planned.order.partitioner is None:
            group_places.check_checkpoint(self.settings, topics[self.settings.raw_topic], spark)
            planned.order.partitioner = self.settings.partitioner

    def _write_checkpoint(self, spark: "SparkSession", planned: Checkpoint, topics: dict[str, Topic]) -> None:
        """Create the tables, and write the checkpoint's file before the queries write anything."""
        if planned.history is not None and self.writes_history:
            for table in TABLES:
                topic = topics[tables.topic(self.settings, table)]
                planned.history.tables[table] = tables.create(spark, self.settings, table, topic)
        checkpoint.update(
            Path(self.settings.checkpoint),
            order=planned.order if self.orders else None,
            history=planned.history if self.writes_history else None,
        )

    # ── the queries ───────────────────────────────────────────────────────────────────────────────────────────────

    def _run_queries(self, spark: "SparkSession") -> None:
        order, history = self._watches(spark)
        if self.monitoring:
            self.monitoring.watch(order + history, self.sink)
        if not self.settings.once:
            self._watch(order + history)
            return
        self._watch(order)  # history last, so that it finds all that was ordered
        if self._patiently(self._is_control_topic_empty):
            history = [watch for watch in history if watch.name != history_name(GAPS)]
        self._watch(history)

    def _watches(self, spark: "SparkSession") -> tuple[list[QueryWatch], list[QueryWatch]]:
        """The watch of the order query, and those of the history queries, as far as this job runs them."""
        from precede.streaming.history import query as history_query

        settings = self.settings
        observe = self.monitoring.metrics.observe if self.monitoring else ignore_time
        begin = partial(self._start_order, spark)
        order = [QueryWatch("order", begin, self.say, settings.patience_s, observe, settings.trigger_ms / 1000)]
        # Beside the order query, history is retried for ever: ordering continues, however long Delta is away.
        patience_s = math.inf if self.orders and not settings.once else settings.patience_s
        history = [
            QueryWatch(
                history_name(table),
                partial(history_query.start, spark, settings, table, drain=settings.once),
                self.say,
                patience_s,
                observe,
                settings.history_every_s,
            )
            for table in TABLES
        ]
        return order if self.orders else [], history if self.writes_history else []

    def _is_control_topic_empty(self) -> bool:
        """Usually it is; the query is skipped then, because even without records it takes a second."""
        name = self.settings.control_topic
        partitions = describe(self.settings.bootstrap, [name])[name].partitions
        return all(end == 0 for _, end in reading.ends(self.settings.bootstrap, name, partitions))

    def _start_order(self, spark: "SparkSession") -> "StreamingQuery":
        from precede.streaming.order import query as order_query

        assert self.sink is not None
        self.sink.open()
        return order_query.start(
            spark,
            self.settings,
            self._publish,
            key=self.key,
            partitions=self.partitions,
            drain=self.settings.once,
        )

    def _publish(self, batch: "DataFrame", _batch_id: int) -> None:
        """Spark calls this for each micro-batch; a job that is stopping does not begin a new one."""
        assert self.sink is not None
        with self.publishing:
            if self.stopping.is_set():
                raise InterruptedError("The job is stopping.")
            self.sink.publish(batch)
            if self.monitoring:
                for phase, seconds in self.sink.counts.seconds.items():
                    self.monitoring.metrics.observe("order", phase, seconds)

    def _watch(self, watches: list[QueryWatch]) -> None:
        try:
            while not self.stopping.is_set() and not all(watch.done for watch in watches):
                for watch in watches:
                    if self.sink is not None and self.sink.refused is not None:
                        raise self.sink.refused
                    watch.check()
                self._report(watches)
                self.stopping.wait(WATCH_S)
        except (Py4JNetworkError, ConnectionError) as error:
            raise Refused(f"Spark ended unexpectedly; its last log lines are in {self.settings.logs}.") from error
        finally:
            self._stop(watches)

    def _report(self, watches: list[QueryWatch]) -> None:
        if self.sink is not None:
            self.sink.announce(self.say)
            self.status.counts, self.status.is_kafka_away = self.sink.counts, self.sink.notices.is_kafka_away
        if self.sink is not None and self.ticker is not None:
            self.ticker.tick_if_due(self.sink.counts.held_now if self.sink.counts.held else None)
        self.status.written = sum(watch.rows for watch in watches if watch.name not in ("order", history_name(GAPS)))
        self.status.batches |= {watch.name: watch.batch for watch in watches if watch.batch >= 0}
        line = self.status.line_if_due()
        if line:
            self.say(line, **self.status.facts())

    def _stop(self, watches: list[QueryWatch]) -> None:
        """Stop between batches: a batch that is being published is finished; the next start does the rest."""
        if self.sink is not None:
            self.sink.is_stopping = self.stopping.is_set()
        if self.publishing.acquire(timeout=STOP_S_MAX):
            self.publishing.release()
        for watch in watches:
            watch.stop()


def _stop_spark(spark: "SparkSession") -> None:
    with suppress(*SPARK_ENDED):
        spark.stop()
