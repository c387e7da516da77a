"""The engine Spark: the order query and the history queries as streaming queries of Spark."""

import math
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from typing import TYPE_CHECKING

from py4j.protocol import Py4JNetworkError

from precede.ingest.kafka import reading
from precede.ingest.kafka.topics import Topic, describe
from precede.ingest.service.running import Announcer
from precede.streaming.history import tables
from precede.streaming.history.tables import GAPS, TABLES, history_name
from precede.streaming.job.job import Job
from precede.streaming.monitoring.history_monitor import HistoryMonitor
from precede.streaming.monitoring.query_keeper import QueryKeeper
from precede.streaming.order.sink import Sink
from precede.streaming.places import spark_files
from precede.streaming.places.place import make_writable
from precede.streaming.settings import Settings
from precede.streaming.spark import checkpoint, checkpoint_reader, restore, store_monitor
from precede.streaming.spark.checkpoint import Checkpoint
from precede.streaming.spark.restored_files import RestoredFiles
from precede.streaming.spark.spark_query import SPARK_ENDED, SparkQuery, started
from precede.udfs.errors import Refused

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from pyspark.sql import DataFrame, SparkSession


class SparkJob(Job):
    """A job whose kernel runs in the Python workers of Spark."""

    def __init__(
        self,
        settings: Settings,
        say: Announcer,
        key: "Ed25519PrivateKey | None" = None,
        spark: "SparkSession | None" = None,
    ) -> None:
        """A session that is given is used and left running."""
        super().__init__(settings, say, key)
        self.spark = spark
        self._let_jvm_end: Callable[[], None] = lambda: None
        self.writes_history = settings.only != "order"
        self.planned = Checkpoint()
        """The checkpoint's file as it will be written."""
        self.publishing = threading.Lock()
        self.restored: RestoredFiles | None = None
        """The files of the state with which the checkpoint began, if it did not begin with the log."""

    def run(self, *, makes_topics: bool = False) -> None:
        try:
            super().run(makes_topics=makes_topics)
        finally:
            self._let_jvm_end()

    def run_queries(self, stack: ExitStack, /) -> None:
        self.begin("it starts Spark")
        spark = self.spark or self._start_spark(stack)
        self.begin("it starts its queries")
        self._write_checkpoint(spark, self.planned, self.topics)
        if self.writes_history:
            self._watch_history(stack)
        order, history = self._keepers(spark)
        if self.monitoring:
            self.monitoring.show(order + history, self.sink)
        if not self.settings.once:
            self.keep_running(order + history)
            return
        self.keep_running(order)  # history last, so that it finds all that was ordered
        if self.sink is not None and not self.stopping.is_set():
            checkpoint_reader.write_last_states(
                spark, self.settings, self.sink, self.topics[self.settings.raw_topic].partitions
            )
        if self.patiently(self._is_control_topic_empty):
            history = [keeper for keeper in history if keeper.name != history_name(GAPS)]
        self.keep_running(history)

    def _watch_history(self, stack: ExitStack) -> None:
        monitor = HistoryMonitor(self.settings, self.say)
        if self.monitoring:
            self.monitoring.metrics.history = monitor
        monitor.start()
        stack.callback(lambda: monitor.stop(is_owner=self.lost is None))

    def _start_spark(self, stack: ExitStack) -> "SparkSession":
        from precede.streaming.spark import session

        self.say("Starting Spark.")
        files = session.jars_for(self.settings, self.say)
        spark = session.start(self.settings, files, session.logs_folder(self.settings))
        stack.callback(_stop_spark, spark)
        self._let_jvm_end = session.stop_first(self.stopping)
        return spark

    # ── before the start ──────────────────────────────────────────────────────────────────────────────────────────

    def lock_folders(self, stack: ExitStack) -> None:
        from precede.streaming.spark import session

        settings, folder = self.settings, self.settings.checkpoint_place
        if settings.stores:
            session.reach_stores(settings, self.spark, self.say)
        make_writable("checkpoint", folder)
        about = {"say": self.say, "lost": self._lost, "pause": self._pause}
        parts = ["order"] * self.orders + ["history"] * self.writes_history
        stack.enter_context(checkpoint.lock_parts(folder, *parts, **about))
        if self.writes_history:
            make_writable("delta", settings.delta_place)

    def _lost(self, refusal: Refused) -> None:
        self.lost = refusal
        if self.sink is not None:
            self.sink.taken_over(refusal)

    def new_sink(self, raw: Topic, progress: Topic) -> Sink:
        folder = self.settings.checkpoint_place
        return Sink(self.settings, raw, progress, self.key, engine="spark", counts_folder=folder)

    def check(self) -> None:
        """Plan the checkpoint's file; nothing is changed yet, except that a rebuild removes tables."""
        settings, topics = self.settings, self.topics
        planned = checkpoint.read(settings.checkpoint_place)
        if self.orders:
            planned.order = checkpoint.check_order(settings, planned.order, topics, self.patiently)
        if self.writes_history and settings.rebuild_delta:
            planned.history = checkpoint.rebuild_history(settings, planned.history, topics, self.patiently, self.say)
        elif self.writes_history:
            planned.history = checkpoint.check_history(settings, planned.history, topics)
        self.planned = planned

    def _write_checkpoint(self, spark: "SparkSession", planned: Checkpoint, topics: dict[str, Topic]) -> None:
        """Create the tables, and write the checkpoint's file before the queries write anything."""
        if planned.history is not None and self.writes_history:
            for table in TABLES:
                topic = topics[tables.topic(self.settings, table)]
                planned.history.tables[table] = tables.create(spark, self.settings, table, topic)
        checkpoint.update(
            self.settings.checkpoint_place,
            order=planned.order if self.orders else None,
            history=planned.history if self.writes_history else None,
        )

    # ── the queries ───────────────────────────────────────────────────────────────────────────────────────────────

    def _keepers(self, spark: "SparkSession") -> tuple[list[QueryKeeper], list[QueryKeeper]]:
        """The keeper of the order query, and those of the history queries, as far as this job runs them."""
        from precede.streaming.spark import history_query

        settings = self.settings
        begin = partial(self._start_order, spark)
        order = [QueryKeeper("order", begin, self.say, settings.patience_s, self.observe, settings.pause_ms / 1000)]
        # Beside the order query, history is retried for ever: ordering continues, however long Delta is away.
        patience_s = math.inf if self.orders and not settings.once else settings.patience_s
        history = [
            QueryKeeper(
                history_name(table),
                partial(started, partial(history_query.start, spark, settings, table, drain=settings.once)),
                self.say,
                patience_s,
                self.observe,
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

    def _start_order(self, spark: "SparkSession") -> SparkQuery:
        from precede.streaming.spark import query as order_query

        assert self.sink is not None
        assert self.owner_monitor is not None
        self.begin(f"it takes {self.settings.ordered_topic} over, and waits for what another job has left open there")
        self.sink.open()
        self.owner_monitor.start()
        self.begin(f"it prepares the checkpoint {self.settings.checkpoint}, and waits for the first batch of Spark")
        partitions = self.topics[self.settings.raw_topic].partitions
        self.restored = restore.begin(self.settings, self.sink, self.say, check_stop=self._check_stop)
        last_commit = spark_files.last_commit(self.settings.order_checkpoint)
        self.sink.follow_horizon(is_fresh=last_commit == spark_files.NO_BATCH)
        begin = partial(
            order_query.start,
            spark,
            self.settings,
            self._publish,
            key=self.key,
            partitions=partitions,
            owned=self.sink.ownership.partitions,
            state=self.sink.state,
            restored=self.restored,
            drain=self.settings.once,
        )
        return started(begin)

    def _check_stop(self) -> None:
        """Raise where the query shall not start any more."""
        assert self.sink is not None
        if self.sink.refused is not None:
            raise self.sink.refused
        if self.stopping.is_set():
            raise InterruptedError("The job is stopping.")

    def _publish(self, batch: "DataFrame", batch_id: int) -> None:
        """Spark calls this for each micro-batch; a job that is stopping does not begin a new one."""
        assert self.sink is not None
        with self.publishing:
            if self.stopping.is_set():
                raise InterruptedError("The job is stopping.")
            if self.restored is not None:
                self.restored.begins(batch_id)
            self.sink.publish(batch)
            if self.restored is not None:
                self.restored.published(batch_id, self.sink.shards)
            for phase, seconds in self.sink.counts.seconds.items():
                self.observe("order", phase, seconds)

    def keep_running(self, keepers: list[QueryKeeper]) -> None:
        try:
            with store_monitor.watching(self.settings.stores, keepers, self.say):
                super().keep_running(keepers)
        except (Py4JNetworkError, ConnectionError) as error:
            from precede.streaming.spark import session

            raise Refused(
                f"Spark ended unexpectedly; its last log lines are {session.where_logs_are(self.settings)}."
            ) from error

    def report(self, keepers: list[QueryKeeper]) -> None:
        self.status.written = sum(keeper.rows for keeper in keepers if keeper.name not in ("order", history_name(GAPS)))
        super().report(keepers)

    def end_batch(self, seconds: float) -> None:
        if self.publishing.acquire(timeout=seconds):
            self.publishing.release()


def _stop_spark(spark: "SparkSession") -> None:
    with suppress(*SPARK_ENDED):
        spark.stop()
