"""A consumer group whose offsets are the token, for tools that show how far behind the job is.

Its offsets are not part of the transaction: they decide nothing, and `send_offsets_to_transaction` costs two round
trips and, if the broker goes away meanwhile, waits without end, whatever its timeout.
"""

import threading
import time
from contextlib import suppress

from confluent_kafka import Consumer, KafkaException, TopicPartition

from precede.ingest.kafka import clients
from precede.ingest.kafka.access import Address

SESSION_MS = 1000
EVERY_S = 1.0


class LagGroup:
    """Commits offsets in the background; it never subscribes to a topic."""

    def __init__(self, bootstrap: Address | str, group_id: str, topic: str) -> None:
        self._topic = topic
        # Dropped before its first commit is answered, the client waits for as long as a session may last, and keeps a
        # core busy meanwhile.
        group = {"group.id": group_id, "session.timeout.ms": SESSION_MS}
        self._consumer = Consumer(clients.settings(bootstrap) | group)
        self._pending: dict[int, int] = {}
        self._due = 0.0
        self._lock = threading.Lock()

    def commit(self, offsets: dict[int, int], *, at_once: bool = False) -> None:
        """Commit the next offset of each of these partitions, once a second at most; a failure is ignored."""
        now = time.monotonic()
        with self._lock:
            self._pending |= offsets
            if not self._pending or (now < self._due and not at_once):
                return
            self._due = now + EVERY_S
            places = [TopicPartition(self._topic, partition, offset) for partition, offset in self._pending.items()]
            self._pending = {}
        with suppress(KafkaException):
            self._consumer.commit(offsets=places, asynchronous=True)
            self._consumer.poll(0)  # takes the answers to earlier commits, which would pile up
