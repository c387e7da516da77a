"""Asks Kafka every few seconds how far the raw topic reaches, in a thread of its own: a stuck job shall not hide it."""

import threading
import time
from contextlib import suppress

from confluent_kafka import Consumer, KafkaException, TopicPartition

from ingest.kafka import reading as kafka
from streaming.settings import Settings

EVERY_S = 5.0
ANSWER_S = 2.0


class BrokerWatch:
    """The ends of the raw partitions, and when Kafka last answered."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.ends: dict[int, tuple[int, int]] = {}
        """First and next offset, by partition."""
        self.heard_at: float | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="broker-watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._thread.join(ANSWER_S)

    def _run(self) -> None:
        consumer = Consumer(kafka.client_settings(self.settings.bootstrap) | {"group.id": "precede-looks"})
        try:
            while not self._ended.is_set():
                with suppress(KafkaException, KeyError):  # or the topic is not there just now
                    self._ask(consumer)
                self._ended.wait(EVERY_S)
        finally:
            consumer.close()

    def _ask(self, consumer: Consumer) -> None:
        topic = self.settings.raw_topic
        for partition in consumer.list_topics(topic, timeout=ANSWER_S).topics[topic].partitions:
            self.ends[partition] = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=ANSWER_S)
        self.heard_at = time.monotonic()
