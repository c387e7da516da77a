"""A Kafka producer that writes in transactions: one at a time, and alone under its transactional id.

After any error it is of no more use: the caller drops it, opens a new one, and finds out from what is committed
whether the last commit happened. Only the caller knows whether to try again.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from confluent_kafka import KafkaError, KafkaException, Producer

from precede.ingest.kafka import clients
from precede.ingest.kafka.access import Address
from precede.ingest.kafka.topics import BATCH_BYTES_MAX

TRANSACTION_S = 30
"""The broker aborts a transaction that is open for longer. It looks every 10 s, so readers wait for a dead job's
transaction at most 40 s."""

COMMIT_S = 30.0
ABORT_S = 5.0
QUEUE_WAIT_S = 0.05
QUEUE_KIB_MAX = 256 * 1024
ANY_PARTITION = -1
"""The key decides on the partition."""

FENCED = {
    KafkaError._FENCED,
    KafkaError.PRODUCER_FENCED,
    KafkaError.INVALID_PRODUCER_EPOCH,
}


class TransactionError(KafkaException):
    """The transaction failed, or its outcome is not known; a new producer may try again."""


class FencedError(TransactionError):
    """Another producer opened the same transactional id, or this one left a transaction open for too long."""


class OverdueError(FencedError):
    """The transaction was open for longer than TRANSACTION_S, so the broker may have aborted it."""


class TransactionalProducer:
    """One producer; `begin`, `produce` and `commit` raise FencedError or another TransactionError."""

    def __init__(
        self,
        bootstrap: Address | str,
        transactional_id: str,
        *,
        batch_bytes_max: int,
        on_error: Callable[[KafkaError], object],
    ) -> None:
        """Fence every other producer of this id; `on_error` gets the client's own errors, such as lost brokers."""
        settings = {
            "error_cb": on_error,
            "transactional.id": transactional_id,
            "transaction.timeout.ms": TRANSACTION_S * 1000,
            "partitioner": "murmur2_random",  # whatever the raw topic has: an old ordered topic continues where it is
            "linger.ms": 5,
            "queue.buffering.max.messages": 1_000_000,
            "queue.buffering.max.kbytes": QUEUE_KIB_MAX,
            "message.max.bytes": BATCH_BYTES_MAX,
            "batch.size": batch_bytes_max,  # the default makes batches of small records that the topic may refuse
        }
        self._began_at = math.inf
        with self._as_transaction_error():
            self._producer = Producer(clients.settings(bootstrap) | settings)
            self._producer.init_transactions(COMMIT_S)

    def begin(self) -> None:
        self._began_at = time.monotonic()
        with self._as_transaction_error():
            self._producer.begin_transaction()

    def produce(
        self,
        topic: str,
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None],
        partition: int = ANY_PARTITION,
    ) -> None:
        """Put the records into the open transaction; where the client's queue is full this waits."""
        produce, poll = self._producer.produce, self._producer.poll
        with self._as_transaction_error():
            for value, key in zip(values, keys, strict=True):
                while True:
                    try:
                        produce(topic, value, key, partition)
                        break
                    except BufferError:
                        poll(QUEUE_WAIT_S)

    def commit(self) -> None:
        """Commit the open transaction; an error does not tell whether the commit happened."""
        with self._as_transaction_error():
            self._producer.commit_transaction(COMMIT_S)

    def poll(self) -> None:
        """Call `on_error` for what came up since the last call."""
        self._producer.poll(0)

    def drop(self) -> None:
        """Abort what is open, as far as that is possible now; otherwise the next producer of this id aborts it."""
        with suppress(KafkaException):  # no transaction is open, or another producer has fenced this one
            self._producer.purge()
            self._producer.abort_transaction(ABORT_S)

    @contextmanager
    def _as_transaction_error(self) -> Iterator[None]:
        try:
            yield
        except KafkaException as error:
            kind = TransactionError
            if error.args[0].code() in FENCED:
                kind = FencedError if time.monotonic() - self._began_at <= TRANSACTION_S else OverdueError
            raise kind(*error.args) from error
