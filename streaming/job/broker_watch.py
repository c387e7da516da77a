"""Asks Kafka every few seconds how far the raw topic reaches, in its own thread, which a stuck job does not block."""

import threading
import time
from contextlib import suppress

from confluent_kafka import KafkaException

from precede.ingest.kafka.reading import TopicReader
from precede.streaming.job.settings import Settings

EVERY_S = 5.0
ANSWER_S = 2.0


class BrokerWatch:
    """The ends of the raw partitions, and when Kafka last answered."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.ends: dict[int, tuple[int, int]] = {}
        """First and next offset, by partition."""
        self.answered_at: float | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="broker-watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._thread.join(ANSWER_S)

    def _run(self) -> None:
        reader = TopicReader(self.settings.bootstrap)
        try:
            while not self._ended.is_set():
                with suppress(KafkaException, KeyError):  # KeyError: the topic does not exist just now
                    self._ask(reader)
                self._ended.wait(EVERY_S)
        finally:
            reader.close()

    def _ask(self, reader: TopicReader) -> None:
        topic = self.settings.raw_topic
        self.ends |= reader.ends(topic, reader.partitions(topic, ANSWER_S), ANSWER_S)
        self.answered_at = time.monotonic()
