"""The engine of one process: the order query without Spark and without a JVM, for one machine."""

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from precede.ingest.files import locked
from precede.ingest.kafka import reading
from precede.ingest.kafka.topics import Topic
from precede.ingest.progress import read_progress
from precede.ingest.service.running import Announcer
from precede.streaming.job.job import Job
from precede.streaming.job.starting_point import Ask, check_log_read_again
from precede.streaming.monitoring.query_keeper import QueryKeeper
from precede.streaming.order.sink import Sink
from precede.streaming.places.place import LocalPlace, make_writable
from precede.streaming.process.loop import OrderLoop, beginning
from precede.streaming.raw_partitions import owned
from precede.streaming.settings import Settings
from precede.udfs.errors import Refused

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

LOCK = ".lock"


def _refusal(cache: Path) -> str:
    return (
        f"Another job of the engine process runs with this folder: it uses the cache {cache.absolute()}. Stop that one "
        "first, or give this one a cache of its own (--cache)."
    )


class ProcessJob(Job):
    """A job whose kernel runs in this process."""

    def __init__(self, settings: Settings, say: Announcer, key: "Ed25519PrivateKey | None" = None) -> None:
        super().__init__(msgspec.structs.replace(settings, only="order"), say, key)
        self.loop: OrderLoop | None = None

    def lock_folders(self, stack: ExitStack) -> None:
        folder = Path(self.settings.cache)
        make_writable("cache", LocalPlace(folder))
        stack.enter_context(locked(folder / LOCK, refusal=_refusal(folder)))

    def check(self) -> None:
        check_log(self.settings, self.topics, self.patiently)

    def new_sink(self, raw: Topic, progress: Topic) -> Sink:
        return Sink(self.settings, raw, progress, self.key, engine="process")

    def run_queries(self, _stack: ExitStack, /) -> None:
        order = [QueryKeeper("order", self._start, self.say, self.settings.patience_s, self.observe)]
        if self.monitoring:
            self.monitoring.watch(order, self.sink)
        self.watch(order)

    def end_batch(self, seconds: float) -> None:
        if self.loop is not None:
            self.loop.end(seconds)

    def _start(self) -> OrderLoop:
        assert self.sink is not None
        assert self.owner_monitor is not None
        settings = self.settings
        self.begin(f"it takes {settings.ordered_topic} over, and waits for what another job has left open there")
        self.sink.open()
        self.sink.follow_horizon(is_fresh=True)
        self.owner_monitor.start()
        self.begin(f"it reads the states of its groups, from {settings.cache} and {settings.state_topic_name}")
        self.loop = OrderLoop(
            settings,
            self.sink,
            self.topics[settings.raw_topic],
            self.topics[settings.state_topic_name],
            settings.patience(self.key),
            say=self.say,
            observe=self.observe,
        )
        self.loop.start()
        return self.loop


def check_log(settings: Settings, topics: dict[str, Topic], ask: Ask) -> None:
    """Refuse a start that would lose messages or number from 1 again."""
    raw = topics[settings.raw_topic]
    partitions = owned(settings.raw_partitions, raw.name, raw.partitions)
    ends = ask(lambda: reading.ends_of(settings.bootstrap, raw.name, partitions))
    if ends is None:
        return
    try:
        _check_start(settings, topics, ends, ask, settled=False)
    except Refused:  # unless an open transaction only hides how far the stream is
        _check_start(settings, topics, ends, ask, settled=True)


def _check_start(
    settings: Settings, topics: dict[str, Topic], ends: dict[int, tuple[int, int]], ask: Ask, *, settled: bool
) -> None:
    progress_topic = topics[settings.progress_topic]
    progress = ask(lambda: read_progress(settings.bootstrap, progress_topic, settings.ordered_topic, settled=settled))
    if progress is None:
        return
    horizon = progress.horizon_in(topics[settings.state_topic_name].id)
    if beginning(settings, progress.token, horizon, ends).offsets is None:
        check_log_read_again(settings, progress, ends)
