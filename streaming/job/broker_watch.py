"""Asks Kafka every few seconds how far topics reach, in its own thread, which a stuck job does not block.

Of a topic that is not read to its end it also looks when the first record that was not read arrived: so old is what
waits there.
"""

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import NamedTuple

from confluent_kafka import KafkaException

from precede.ingest.kafka.reading import FEW, TopicReader
from precede.streaming.job.settings import Settings
from precede.udfs.errors import PrecedeError

EVERY_S = 5.0
ANSWER_S = 2.0


class Waiting(NamedTuple):
    """What waited in a partition at the last look."""

    end: int
    """The offset after its last record."""
    oldest_ms: int
    """When the first record that was not read arrived."""


class BrokerWatch:
    """The ends of the raw partitions, what waits in each topic, and when Kafka last answered."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.ends: dict[int, tuple[int, int]] = {}
        """First and next offset of the raw topic, by partition."""
        self.reached: dict[str, Callable[[], Mapping[int, int]]] = {}
        """By topic, what gives the next offset of each partition that this job reads."""
        self.waiting: dict[str, dict[int, Waiting]] = {}
        """By topic and partition; of the others nothing waits."""
        self.answered_at: float | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="broker-watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        if self._thread.is_alive():  # a job may end before it has asked anything
            self._thread.join(ANSWER_S)

    def waited_s(self, topic: str, partition: int, next_offset: int) -> float:
        """How long the oldest record of a partition has waited that was not read up to this offset."""
        found = self.waiting.get(topic, {}).get(partition)
        if found is None or next_offset >= found.end:
            return 0.0
        return max(0.0, time.time() - found.oldest_ms / 1000)

    def _run(self) -> None:
        reader: TopicReader | None = None
        try:
            while not self._ended.is_set():
                # KeyError: the topic does not exist just now. Unreachable: there is no token for the login just now
                with suppress(KafkaException, KeyError, PrecedeError):
                    reader = reader or TopicReader(self.settings.bootstrap, fetches=FEW)
                    self._ask(reader)
                self._ended.wait(EVERY_S)
        finally:
            if reader is not None:
                reader.close()

    def _ask(self, reader: TopicReader) -> None:
        topic = self.settings.raw_topic
        self.ends |= reader.ends(topic, reader.partitions(topic, ANSWER_S), ANSWER_S)
        self.answered_at = time.monotonic()
        for name, reached in list(self.reached.items()):
            self.waiting[name] = self._look(reader, name, reached)

    def _look(self, reader: TopicReader, topic: str, reached: Callable[[], Mapping[int, int]]) -> dict[int, Waiting]:
        known = self.ends if topic == self.settings.raw_topic else reader.ends(topic, reached(), ANSWER_S)
        ends = {at: end for at, (_, end) in known.items()}
        # Asked only now: what was read meanwhile does not wait any more.
        behind = {at: offset for at, offset in reached().items() if offset < ends.get(at, 0)}
        arrivals = reader.arrivals(topic, behind, ANSWER_S) if behind else {}
        return {at: Waiting(ends[at], oldest_ms) for at, oldest_ms in arrivals.items()}
