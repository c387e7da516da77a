"""Ticks advance the log's clock while no member sends.

A tick is a record without a key; each partition of the raw topic gets one. The kernel releases messages by time, asks
for gaps and notices silent members only when it reads a tick, so a replay of the log does the same at the same places.
While messages are held there is a tick every `tick_s`. While none is held nothing waits for time, and a tenth as many
ticks are enough to notice what a stopped job has left behind. Where the checkpoint is in a store each batch costs
requests there: while ticks change nothing, each pause is twice as long as the one before, up to a minute.
"""

import time
from collections.abc import Iterable
from contextlib import suppress

from confluent_kafka import KafkaException, Producer

from precede.ingest.kafka import clients
from precede.streaming.places.place import is_local
from precede.streaming.settings import Settings

TICK = b'{"kind":"tick"}'
IDLE_PAUSES = 10
STORE_PAUSE_S_MAX = 60.0
GROWTH_MAX = 1 << 20
DELIVER_MS_MAX = 5_000
"""An older tick is of no use: when a broker comes back there is a new one at once."""


class Ticker:
    """Publishes a tick into each partition of this job when one is due."""

    def __init__(self, settings: Settings, partitions: Iterable[int]) -> None:
        self.settings = settings
        self.partitions = list(partitions)
        self._last = float("-inf")
        self._grows = not (settings.runs_without_spark or is_local(settings.checkpoint))
        self._growth = 1
        self._seen: tuple[int, ...] = ()
        self._producer = Producer(
            clients.settings(settings.bootstrap)
            | {"linger.ms": 0, "message.timeout.ms": DELIVER_MS_MAX, "client.id": "precede-ticks"}
        )

    def tick_if_due(self, held: int | None, seen: tuple[int, ...] = ()) -> None:
        """Publish ticks if it is time; `held` is how many messages are held now, None where that is not yet known.

        `seen` are numbers that change whenever the log has more than ticks.
        """
        self._producer.poll(0)
        now = time.monotonic()
        if seen != self._seen:
            self._seen, self._growth = seen, 1
        if now < self._last + self.pause_s(held):
            return
        self._last = now
        self._growth = min(2 * self._growth, GROWTH_MAX)
        for partition in self.partitions:
            with suppress(BufferError, KafkaException):  # the sink's notices report a broker that is away
                self._producer.produce(self.settings.raw_topic, TICK, partition=partition)

    def pause_s(self, held: int | None) -> float:
        """How long after the last tick the next one is due."""
        pause = self.settings.tick_s * (IDLE_PAUSES if held == 0 else 1)
        return max(pause, min(pause * self._growth / 2, STORE_PAUSE_S_MAX)) if self._grows else pause

    def close(self) -> None:
        """Discard what is not sent yet."""
        self._producer.purge()
