"""The job: both queries, from the first check to the last sentence.

What a person must mend is refused before Spark starts. A query that fails is started again, later each time,
and says why; nothing is lost by it, since Spark's checkpoint and the token stand where the last whole batch left them.
"""

import math
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from types import FrameType
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
from precede.streaming.job.ticker import Ticker
from precede.streaming.job.watch import GONE, QueryWatch, reason_of
from precede.streaming.monitoring.server import Outside
from precede.streaming.order.sink import Sink
from precede.udfs.errors import Refused, Unreachable

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

Answer = TypeVar("Answer")

LOOK_S = 0.2
RETRY_S = 2.0
STOP_S_MAX = 45.0  # a little longer than a commit may take


def say_aloud(sentence: str) -> None:
    """A line for whoever watches, at once."""
    print(sentence, flush=True)  # noqa: T201 (this is what the job is asked to do)


def unobserved(_query: str, _phase: str, _seconds: float) -> None:
    """Nobody wants to know."""


def run(
    settings: Settings,
    *,
    say: Say = say_aloud,
    spark: "SparkSession | None" = None,
    key: "Ed25519PrivateKey | None" = None,
) -> None:
    """Run until everything is done or somebody stops it; raises Refused for what a person must mend.

    A session that is given is used and left running; with a service key the job signs what it says itself.
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
        self.outside: Outside | None = None

    def run(self) -> None:
        """Check, start, watch, stop."""
        settings = self.settings
        with ExitStack() as stack:
            stack.enter_context(self._signals())
            self._take_folders(stack)
            self._listen(stack)
            topics = self._topics()
            if self.stopping.is_set():
                return
            kept = self._check(topics)
            if self.stopping.is_set():
                return
            if self.orders:
                raw, progress = topics[settings.raw_topic], topics[settings.progress_topic]
                self.partitions = raw.partitions
                self.sink = Sink(settings, raw, progress, self.key)
                stack.callback(self.sink.close)
                if settings.tick_s and not settings.once:  # what is there is handled as it is
                    self.ticker = Ticker(settings, topics[settings.raw_topic].partitions)
                    stack.callback(self.ticker.close)
            spark = self.spark or self._start_spark(stack)
            self._check_group_places(spark, kept, topics)
            self._keep(spark, kept, topics)
            self._work(spark)
            done = settings.once and not self.stopping.is_set()
            self.say(self.status.line("Done" if done else "Stopped"), **self.status.facts())

    def _start_spark(self, stack: ExitStack) -> "SparkSession":
        from precede.streaming.job import jars, session

        home = Path(self.settings.jars).expanduser() if self.settings.jars else None
        needed = jars.ensure("spark", home=home, say=self.say)
        self.say("Starting Spark.")
        spark = session.start(self.settings, needed, self.settings.logs)
        stack.callback(_stop, spark)
        return spark

    # ── before the start ──────────────────────────────────────────────────────────────────────────────────────────

    def _take_folders(self, stack: ExitStack) -> None:
        folder = Path(self.settings.checkpoint)
        checkpoint.make_writable("checkpoint", folder)
        if self.orders:
            stack.enter_context(checkpoint.alone(folder, "order"))
        if self.writes_history:
            stack.enter_context(checkpoint.alone(folder, "history"))
            checkpoint.make_writable("delta", Path(self.settings.delta))

    def _listen(self, stack: ExitStack) -> None:
        if self.settings.metrics is not None:
            self.outside = Outside(self.settings)
            self.outside.open()
            stack.callback(self.outside.close)
            self.say(f"Metrics and health are at port {self.outside.port}.")

    def _topics(self) -> dict[str, Topic]:
        """The topics this job needs; a broker that is away is waited for, but not for ever."""
        settings = self.settings
        names = [settings.ordered_topic, settings.dead_letter_topic, settings.control_topic]
        if self.orders:
            names += [settings.raw_topic, settings.progress_topic]
        topics = self._patiently(lambda: describe(settings.bootstrap, names)) or {}
        for name in names:
            if topics and name not in topics:
                raise Refused(f"The topic {name} does not exist; `precede run` makes it, with the settings it needs.")
        return topics

    def _patiently(self, ask: Callable[[], Answer]) -> Answer | None:
        """The broker's answer, once it gives one; none where somebody stopped the job meanwhile."""
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
        """The checkpoint's file as it will be; nothing is written yet, but for tables that are to be made anew."""
        settings = self.settings
        kept = checkpoint.read(Path(settings.checkpoint))
        if self.orders:
            kept.order = start_checks.check_order(settings, kept.order, topics, self._patiently)
        if self.writes_history and settings.rebuild_delta:
            kept.history = start_checks.rebuild_history(settings, kept.history, topics, self._patiently, self.say)
        elif self.writes_history:
            kept.history = start_checks.check_history(settings, kept.history, topics)
        return kept

    def _check_group_places(self, spark: "SparkSession", kept: Checkpoint, topics: dict[str, Topic]) -> None:
        """A checkpoint of an older release is continued only if its groups live where their keys say."""
        if self.orders and kept.order is not None and kept.order.partitioner is None:
            group_places.check_checkpoint(self.settings, topics[self.settings.raw_topic], spark)
            kept.order.partitioner = self.settings.partitioner

    def _keep(self, spark: "SparkSession", kept: Checkpoint, topics: dict[str, Topic]) -> None:
        """Make the tables, and write the checkpoint's file before anything that it speaks of."""
        if kept.history is not None and self.writes_history:
            for table in TABLES:
                topic = topics[tables.topic(self.settings, table)]
                kept.history.tables[table] = tables.create(spark, self.settings, table, topic)
        checkpoint.update(
            Path(self.settings.checkpoint),
            order=kept.order if self.orders else None,
            history=kept.history if self.writes_history else None,
        )

    # ── at work ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _work(self, spark: "SparkSession") -> None:
        from precede.streaming.history import query as history_query

        settings = self.settings
        observe = self.outside.metrics.observe if self.outside else unobserved
        begin = partial(self._start_order, spark)
        order = [QueryWatch("order", begin, self.say, settings.patience_s, observe, settings.trigger_ms / 1000)]
        # Beside a query that orders, history is never given up: ordering goes on, however long Delta is away.
        patience_s = math.inf if self.orders and not settings.once else settings.patience_s
        history = [
            QueryWatch(
                f"history of {table}",
                partial(history_query.start, spark, settings, table, drain=settings.once),
                self.say,
                patience_s,
                observe,
                settings.history_every_s,
            )
            for table in TABLES
        ]
        order, history = order if self.orders else [], history if self.writes_history else []
        if self.outside:
            self.outside.watch(order + history, self.sink)
        if settings.once:  # history last, so that it finds all that was ordered
            self._watch(order)
            idle = self._patiently(self._nothing_was_asked)
            if idle:
                history = [watch for watch in history if watch.name != f"history of {GAPS}"]
            self._watch(history)
        else:
            self._watch(order + history)

    def _nothing_was_asked(self) -> bool:
        """Whether the control topic is empty, as it mostly is: a query over nothing takes a second, too."""
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
        """Spark calls this once a micro-batch; a job that is stopping begins no new one."""
        assert self.sink is not None
        with self.publishing:
            if self.stopping.is_set():
                raise InterruptedError("The job is stopping.")
            self.sink.publish(batch)
            if self.outside:
                for phase, seconds in self.sink.counts.seconds.items():
                    self.outside.metrics.observe("order", phase, seconds)

    def _watch(self, watches: list[QueryWatch]) -> None:
        try:
            while not self.stopping.is_set() and not all(watch.done for watch in watches):
                for watch in watches:
                    if self.sink is not None and self.sink.refused is not None:
                        raise self.sink.refused
                    watch.look()
                self._report(watches)
                self.stopping.wait(LOOK_S)
        except (Py4JNetworkError, ConnectionError) as error:
            raise Refused(f"Spark ended by itself; what it said last is in {self.settings.logs}.") from error
        finally:
            self._stop(watches)

    def _report(self, watches: list[QueryWatch]) -> None:
        if self.sink is not None:
            self.sink.listen(self.say)
            self.status.counts, self.status.is_away = self.sink.counts, self.sink.is_away
        if self.sink is not None and self.ticker is not None:
            self.ticker.look(self.sink.counts.held_now if self.sink.counts.held else None)
        self.status.written = sum(watch.rows for watch in watches if watch.name not in ("order", f"history of {GAPS}"))
        self.status.batches |= {watch.name: watch.batch for watch in watches if watch.batch >= 0}
        line = self.status.due()
        if line:
            self.say(line, **self.status.facts())

    def _stop(self, watches: list[QueryWatch]) -> None:
        """Between batches: what is being published is finished, what comes after it is left for the next start."""
        if self.sink is not None:
            self.sink.stopping = self.stopping.is_set()
        if self.publishing.acquire(timeout=STOP_S_MAX):
            self.publishing.release()
        for watch in watches:
            watch.stop()

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Ctrl-C and SIGTERM ask for a stop; a second one does not wait."""

        def ask(_number: int, _frame: FrameType | None) -> None:
            if self.stopping.is_set():
                raise KeyboardInterrupt
            self.stopping.set()

        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _stop(spark: "SparkSession") -> None:
    with suppress(*GONE):
        spark.stop()
