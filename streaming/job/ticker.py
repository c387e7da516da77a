"""Ticks advance the log's clock while no member sends.

A tick is a record without a key; each partition of the raw topic gets one. The kernel releases messages by time, asks
for gaps and notices silent members only when it reads a tick, so a replay of the log does the same at the same places.
While messages are held there is a tick every `tick_s`. While none is held nothing waits for time, and a tenth as many
ticks are enough to notice what a stopped job has left behind.
"""

import time
from collections.abc import Iterable
from contextlib import suppress

from confluent_kafka import KafkaException, Producer

from precede.ingest.kafka import clients
from precede.streaming.job.settings import Settings

TICK = b'{"kind":"tick"}'
IDLE_PAUSES = 10
DELIVER_MS_MAX = 5_000
"""An older tick is of no use: when a broker comes back there is a new one at once."""


class Ticker:
    """Publishes a tick into each partition of this job when one is due."""

    def __init__(self, settings: Settings, partitions: Iterable[int]) -> None:
        self.settings = settings
        self.partitions = list(partitions)
        self._last = float("-inf")
        self._producer = Producer(
            clients.settings(settings.bootstrap)
            | {"linger.ms": 0, "message.timeout.ms": DELIVER_MS_MAX, "client.id": "precede-ticks"}
        )

    def tick_if_due(self, held: int | None) -> None:
        """Publish ticks if it is time; `held` is how many messages are held now, None where that is not yet known."""
        self._producer.poll(0)
        now = time.monotonic()
        pause = self.settings.tick_s * (IDLE_PAUSES if held == 0 else 1)
        if now < self._last + pause:
            return
        self._last = now
        for partition in self.partitions:
            with suppress(BufferError, KafkaException):  # the sink's notices report a broker that is away
                self._producer.produce(self.settings.raw_topic, TICK, partition=partition)

    def close(self) -> None:
        """Discard what is not sent yet."""
        self._producer.purge()
