"""Ticks: what makes the log's clock advance where nobody talks.

A tick is a record without a key, one in each partition of the raw topic. The kernel lets messages go, asks for gaps and
misses members only when it reads one, so a replay of the log does the same at the same places. While something is held
there is one each `tick_s`; while nothing is, nobody waits for time, and a tenth of them is enough to notice what a job
that stopped has left behind.
"""

import time
from contextlib import suppress

from confluent_kafka import KafkaException, Producer

from precede.ingest.kafka import clients
from precede.streaming.job.settings import Settings

TICK = b'{"kind":"tick"}'
IDLE_PAUSES = 10
DELIVER_MS_MAX = 5_000
"""A tick that is older is worth nothing: when a broker comes back there is a new one at once."""


class Ticker:
    """Publishes a tick into each partition when one is due; asked every now and then."""

    def __init__(self, settings: Settings, partitions: int) -> None:
        self.settings = settings
        self.partitions = partitions
        self._last = float("-inf")
        self._producer = Producer(
            clients.settings(settings.bootstrap)
            | {"linger.ms": 0, "message.timeout.ms": DELIVER_MS_MAX, "client.id": "precede-ticks"}
        )

    def look(self, held: int | None) -> None:
        """Publish if it is time; `held` is how many messages are held now, None where nobody knows yet."""
        self._producer.poll(0)
        now = time.monotonic()
        pause = self.settings.tick_s * (IDLE_PAUSES if held == 0 else 1)
        if now < self._last + pause:
            return
        self._last = now
        for partition in range(self.partitions):
            with suppress(BufferError, KafkaException):  # no broker for a while: that is said elsewhere
                self._producer.produce(self.settings.raw_topic, TICK, partition=partition)

    def close(self) -> None:
        """Forget what is not out."""
        self._producer.purge()
