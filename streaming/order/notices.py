"""What is told beside the stream: sentences for the operator, each once, and offsets for tools that show lag.

The offsets are the token, committed for a consumer group. They are not part of the transaction: they decide nothing,
and `send_offsets_to_transaction` costs two round trips and, if the broker goes away meanwhile, waits without end,
whatever its timeout.
"""

import threading
import time
from collections.abc import Callable
from contextlib import suppress

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from precede.ingest.kafka import clients
from precede.ingest.kafka.access import Address

SENTENCES_MAX = 100
"""How many of the kernel's sentences the job says: one is about one group, and there may be many groups."""
NO_MORE_SENTENCES = (
    "More groups lack the same; `precede held --gaps` shows their gaps, and the job does not report them one by one."
)


class Notices:
    """Collects notices in any thread; `announce` says those that are new."""

    def __init__(self, bootstrap: Address | str) -> None:
        self.is_kafka_away = False
        self._bootstrap = bootstrap
        self._said_away = False
        self._sentences: dict[str, bool] = {}
        """Each sentence, and whether it was said."""

    def add(self, sentence: str) -> None:
        """Have a sentence said, unless it is known already or there were too many."""
        if sentence not in self._sentences:
            self._sentences.setdefault(sentence if len(self._sentences) < SENTENCES_MAX else NO_MORE_SENTENCES, False)

    def client_error(self, error: KafkaError) -> None:
        """Take an error of a Kafka client."""
        if error.code() == KafkaError._ALL_BROKERS_DOWN:
            self.is_kafka_away = True
        why = clients.why_no_login(self._bootstrap, error)
        if why is not None:
            self.add(f"{str(why).rstrip('.')}; nothing is lost, and the job continues when the login works again.")

    def kafka_answered(self) -> None:
        self.is_kafka_away = False

    def announce(self, say: Callable[..., object]) -> None:
        """Say what is new; that Kafka is away is said once each time."""
        if self.is_kafka_away and not self._said_away:
            sentence = (
                f"Kafka at {self._bootstrap} does not answer; nothing is lost, and the job continues when it does."
            )
            say(sentence, level="warning", query="order")
        self._said_away = self.is_kafka_away
        for sentence in [sentence for sentence, said in list(self._sentences.items()) if not said]:
            self._sentences[sentence] = True
            say(sentence, level="warning", query="order")


# ── the lag ───────────────────────────────────────────────────────────────────────────────────────────────────────────

SESSION_MS = 1000
COMMIT_EVERY_S = 1.0


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
            self._due = now + COMMIT_EVERY_S
            places = [TopicPartition(self._topic, partition, offset) for partition, offset in self._pending.items()]
            self._pending = {}
        with suppress(KafkaException):
            self._consumer.commit(offsets=places, asynchronous=True)
            self._consumer.poll(0)  # takes the answers to earlier commits, which would pile up
