"""One run of a job, whatever engine runs the kernel: checks, the queries, what is said meanwhile, and the end.

Problems that a person must fix are refused before an engine starts. A query that fails is started again, with a growing
pause, and the job says why. Nothing is lost by that: what the query starts from and the token are still as the last
whole transaction left them.
"""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, TypeVar

from precede.ingest.kafka.topics import Topic, describe, ensure_patiently, retention_of
from precede.ingest.service.monitor import Monitor
from precede.ingest.service.running import Announcer, Say, broker_retry, set_on_signals
from precede.streaming.job.ticker import Ticker
from precede.streaming.monitoring.query_keeper import QueryKeeper
from precede.streaming.monitoring.retention_monitor import RetentionMonitor
from precede.streaming.monitoring.server import MonitoringServer
from precede.streaming.monitoring.status import StatusLine
from precede.streaming.order.ownership import OwnerMonitor
from precede.streaming.order.sink import Sink
from precede.streaming.raw_partitions import as_text
from precede.streaming.settings import Settings
from precede.udfs.errors import PrecedeError, Refused, TakenOver

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from pyspark.sql import SparkSession

Answer = TypeVar("Answer")

WATCH_S = 0.2
SLOW_START_S = 15.0
"""A job that is not ready after this time says what it does or waits for."""
STILL_STARTS_S = 60.0
"""How often it says so again."""
STOP_S_MAX = 45.0  # a little longer than a commit may take
TAKEN_OVER_S_MAX = 2.0  # nothing that this job still publishes counts


def ignore_time(_query: str, _phase: str, _seconds: float) -> None:
    """Used in place of metrics where none are served."""


class Job(ABC):
    """One run of the job; each engine has its own kind."""

    def __init__(self, settings: Settings, say: Announcer, key: "Ed25519PrivateKey | None" = None) -> None:
        self.settings = settings
        self.key = key
        self.say = say
        self.orders = settings.only != "history"
        self.stopping = threading.Event()
        self.topics: dict[str, Topic] = {}
        self.sink: Sink | None = None
        self.retention: RetentionMonitor | None = None
        """Where the raw topic has a retention."""
        self.owner_monitor: OwnerMonitor | None = None
        self.ticker: Ticker | None = None
        self.status = StatusLine(settings)
        self.monitoring: MonitoringServer | None = None
        self.lost: Refused | None = None
        """Why this job may no longer write into its folders."""
        self.step = "it has just begun"
        """What the start does now, or waits for, as a part of a sentence."""
        self._start_monitor: Monitor[None] = Monitor(
            "start-monitor",
            lambda _: self.say(f"Not ready yet: {self.step}.", query=None),
            every_s=STILL_STARTS_S,
            first_s=SLOW_START_S,
            undone="nothing says what the start of the job waits for",
        )

    def run(self, *, makes_topics: bool = False) -> None:
        """Check, start, watch, stop; what may wait for long comes after the pages that say so."""
        settings = self.settings
        with ExitStack() as stack:
            stack.enter_context(set_on_signals(self.stopping))
            stack.callback(self._start_monitor.stop)
            self._start_monitor.start()
            self._serve_monitoring(stack)
            if makes_topics and not self._goes_on("it waits for its topics in Kafka", self._make_topics):
                return
            if self.monitoring:
                self.monitoring.follow_kafka()
            if not self._goes_on("it waits for its folders", lambda: self.lock_folders(stack)):
                return
            if self.monitoring:
                self.monitoring.metrics.read_held()
            if not self._goes_on("it waits for its topics in Kafka", self._find_topics):
                return
            if not self._goes_on("it checks what it goes on from", self.check):
                return
            self.begin("it starts its queries")
            if self.orders:
                self._prepare_order(stack)
            self.run_queries(stack)
            done = settings.once and not self.stopping.is_set()
            self.say(self.status.line("Done" if done else "Stopped"), **self.status.facts())

    # ── what each engine does in its own way ──────────────────────────────────────────────────────────────────────

    @abstractmethod
    def lock_folders(self, stack: ExitStack) -> None:
        """Keep other jobs of this machine from the folders that the engine writes."""

    @abstractmethod
    def check(self) -> None:
        """Refuse what a person must fix; nothing is changed yet."""

    @abstractmethod
    def new_sink(self, raw: Topic, progress: Topic) -> Sink:
        """What publishes; it is not opened yet."""

    @abstractmethod
    def run_queries(self, stack: ExitStack, /) -> None:
        """Start the engine and watch the queries until they are done or the job is stopped."""

    @abstractmethod
    def end_batch(self, seconds: float) -> None:
        """Let a batch that is being published end, waiting at most this time."""

    # ── before the start ──────────────────────────────────────────────────────────────────────────────────────────

    def _serve_monitoring(self, stack: ExitStack) -> None:
        if self.settings.metrics is not None:
            self.monitoring = MonitoringServer(self.settings)
            self.monitoring.open()
            stack.callback(self.monitoring.close)
            self.say(f"Metrics and health are at port {self.monitoring.port}.")

    def begin(self, step: str) -> None:
        """The start does this now: the pages say so, and where it takes long the job, too."""
        self.beat()
        self.step = step
        if self.monitoring:
            self.monitoring.step = step

    def _goes_on(self, step: str, take: Callable[[], None]) -> bool:
        """Take this step of the start; False where the job was stopped meanwhile."""
        self.begin(step)
        take()
        return not self.stopping.is_set()

    def _make_topics(self) -> None:
        """Create the topics that are absent; wait for a broker that does not answer."""
        settings = self.settings
        ensure_patiently(
            settings.bootstrap,
            settings.topics(),
            replicas=settings.replicas,
            patience_s=settings.patience_s,
            pause=self._pause,
            say=self.say,
        )

    def _find_topics(self) -> None:
        """Find the topics this job needs; none where the job was stopped while it waited for the broker."""
        settings = self.settings
        names = [settings.ordered_topic, settings.dead_letter_topic, settings.control_topic]
        if self.orders:
            names += [settings.raw_topic, settings.progress_topic, settings.state_topic_name]
        topics = self.patiently(lambda: describe(settings.bootstrap, names)) or {}
        for name in names:
            if topics and name not in topics:
                raise Refused(f"The topic {name} does not exist; `precede run` creates it with the settings it needs.")
        self.topics = topics

    def patiently(self, ask: Callable[[], Answer]) -> Answer | None:
        """The broker's answer, waited for at most `patience_s`; None where the job was stopped meanwhile."""
        if self.stopping.is_set():
            return None
        return broker_retry(ask, patience_s=self.settings.patience_s, pause=self._pause, say=self.say)

    def _pause(self, seconds: float) -> bool:
        """Wait this time, or until the job is stopped; whether it is."""
        self.beat()
        return self.stopping.wait(seconds)

    def beat(self) -> None:
        """Show that the job goes on, whatever it waits for."""
        if self.monitoring:
            self.monitoring.beat()

    def _prepare_order(self, stack: ExitStack) -> None:
        settings = self.settings
        self.sink = self.new_sink(self.topics[settings.raw_topic], self.topics[settings.progress_topic])
        stack.callback(self.sink.end)
        self._say_partitions(self.sink.ownership.partitions)
        self.owner_monitor = OwnerMonitor(self.sink.ownership, self.sink.taken_over)
        stack.callback(self.owner_monitor.stop)
        self._watch_retention(stack)
        if settings.tick_s and not settings.once:  # with `once` the log is processed as it is
            self.ticker = Ticker(settings, self.sink.ownership.partitions)
            stack.callback(self.ticker.close)

    def _say_partitions(self, owned: Sequence[int]) -> None:
        """Name the partitions, where other jobs order the rest."""
        self.status.partitions = owned
        raw = self.topics[self.settings.raw_topic]
        if len(owned) < raw.partitions:
            self.say(
                f"This job orders the raw partitions {as_text(owned)}, of the {raw.partitions} of {raw.name}; the "
                "others need jobs of their own."
            )

    def _watch_retention(self, stack: ExitStack) -> None:
        """Say what a retention of the raw topic means, and watch that the job does not lag behind it."""
        settings, sink = self.settings, self.sink
        assert sink is not None
        retention = self.patiently(lambda: retention_of(settings.bootstrap, settings.raw_topic))
        if retention is None or not retention.is_limited:
            return
        self.say(
            f"The raw topic {settings.raw_topic} keeps records for {retention}: what Kafka deletes before it is "
            f"ordered is lost, a new checkpoint begins at the state topic {settings.state_topic_name}, and what is "
            "deleted cannot be ordered again, under another order or into new topics."
        )
        self.retention = RetentionMonitor(settings, retention, lambda: dict(sink.counts.next))
        self.status.retention = self.retention
        if self.monitoring:
            self.monitoring.metrics.retention = self.retention
        self.retention.start()
        stack.callback(self.retention.stop)

    # ── while queries run ─────────────────────────────────────────────────────────────────────────────────────────

    @property
    def observe(self) -> Callable[[str, str, float], object]:
        """Takes the time of each phase of a batch."""
        return self.monitoring.metrics.observe if self.monitoring else ignore_time

    def keep_running(self, keepers: list[QueryKeeper]) -> None:
        """Keep these queries going until all are done or the job is stopped."""
        try:
            while not self.stopping.is_set() and not all(keeper.done for keeper in keepers):
                self.beat()
                if self.lost is not None:
                    raise self.lost
                for keeper in keepers:
                    if self.sink is not None and self.sink.refused is not None:
                        raise self.sink.refused
                    keeper.check()
                self._say_if_ready(keepers)
                self.report(keepers)
                self.stopping.wait(WATCH_S)
        finally:
            self._stop(keepers)

    def _say_if_ready(self, keepers: list[QueryKeeper]) -> None:
        """Say once that all queries work; a job that only handles what is there ends instead."""
        if self._start_monitor.has_ended or not all(keeper.progress_at or keeper.done for keeper in keepers):
            return
        self._start_monitor.finish()
        if not self.settings.once:
            self.say(f"Ready: {self.does}.")

    @property
    def does(self) -> str:
        """What the job does, as a sentence without its end."""
        settings = self.settings
        orders = f"orders {settings.raw_topic} by {settings.order} into {settings.ordered_topic}"
        writes = f"writes the tables in {settings.delta}"
        parts = [orders] * (settings.only != "history") + [writes] * (settings.only != "order")
        return f"the job {' and '.join(parts)}"

    def report(self, keepers: list[QueryKeeper]) -> None:
        """Say what is new, and let time pass in the log."""
        if self.sink is not None:
            self.sink.announce(self.say)
            warning = self.retention.warning_if_due() if self.retention is not None else None
            if warning is not None:
                self.say(warning, level="warning")
            self.status.counts, self.status.is_kafka_away = self.sink.counts, self.sink.notices.is_kafka_away
            self.status.lacks_states = self.sink.coverage.lacks_states
        if self.sink is not None and self.sink.is_token_known and self.ticker is not None:
            counts = self.sink.counts
            seen = counts.delivered, counts.dead, counts.duplicates, counts.held_now, counts.gaps_now
            self.ticker.tick_if_due(counts.held_now if counts.held else None, seen)
        self.status.batches |= {keeper.name: keeper.batch for keeper in keepers if keeper.batch >= 0}
        line = self.status.line_if_due()
        if line:
            self.say(line, **self.status.facts())

    def _stop(self, keepers: list[QueryKeeper]) -> None:
        """Stop between batches: a batch that is being published is finished; the next start does the rest."""
        is_taken_over = self.lost is not None or (self.sink is not None and isinstance(self.sink.refused, TakenOver))
        if self.sink is not None:
            self.sink.is_stopping = self.stopping.is_set() or is_taken_over
        self.end_batch(TAKEN_OVER_S_MAX if is_taken_over else STOP_S_MAX)
        for keeper in keepers:
            keeper.stop()


def print_at_once(sentence: str) -> None:
    """Print a line without buffering."""
    print(sentence, flush=True)  # noqa: T201 (this is what the job is asked to do)


def run(
    settings: Settings,
    *,
    say: Say = print_at_once,
    spark: "SparkSession | None" = None,
    key: "Ed25519PrivateKey | None" = None,
    makes_topics: bool = False,
) -> None:
    """Run until everything is done or the job is stopped; raises Refused for problems that a person must fix.

    A session that is given is used and left running. With a service key the job signs the records it writes itself.
    With `makes_topics` it creates the topics that are absent; without, they are refused.
    """
    announcer = Announcer(say, settings.log_format)
    try:
        with _failing_places_refused():
            _new_job(settings, announcer, spark, key).run(makes_topics=makes_topics)
    except PrecedeError as refusal:
        announcer.refused(refusal)
        raise


@contextmanager
def _failing_places_refused() -> Iterator[None]:
    """A disk or a store that fails while the job starts ends it with a sentence that names the place."""
    try:
        yield
    except OSError as error:
        if error.filename is None or error.strerror is None:
            raise
        raise Refused(
            f"{error.filename} cannot be used: {error.strerror}. Nothing is lost; start the job again when it works."
        ) from error


def _new_job(settings: Settings, say: Announcer, spark: "SparkSession | None", key: "Ed25519PrivateKey | None") -> Job:
    """The job of the engine; only Spark writes history, whatever the setting says."""
    if settings.runs_without_spark:
        from precede.streaming.process.engine import ProcessJob

        return ProcessJob(settings, say, key)
    from precede.streaming.spark.engine import SparkJob

    return SparkJob(settings, say, key, spark)
