"""The engine of one process: the order query without Spark and without a JVM, for one machine."""

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from precede.ingest.files import locked
from precede.ingest.kafka.topics import Topic
from precede.ingest.service.running import Announcer
from precede.streaming.job import starting_point
from precede.streaming.job.job import Job
from precede.streaming.monitoring.query_keeper import QueryKeeper
from precede.streaming.order.sink import Sink
from precede.streaming.places.place import LocalPlace, make_writable
from precede.streaming.process.loop import OrderLoop
from precede.streaming.settings import Settings

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
        starting_point.check(self.settings, self.topics, self.patiently)

    def new_sink(self, raw: Topic, progress: Topic) -> Sink:
        return Sink(self.settings, raw, progress, self.key, engine="process")

    def run_queries(self, _stack: ExitStack, /) -> None:
        order = [QueryKeeper("order", self._start, self.say, self.settings.patience_s, self.observe)]
        if self.monitoring:
            self.monitoring.show(order, self.sink)
        self.keep_running(order)

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
