"""Publishes raw records so that none is lost, repeated or put in another partition on the way to the log."""

from collections.abc import Callable
from typing import Self

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from precede.ingest.kafka import clients
from precede.ingest.kafka.access import Address
from precede.ingest.kafka.topics import DEFAULTS, RAW_TOPIC, RECORD_BYTES_MAX
from precede.udfs.errors import PrecedeError, Refused, Unconfirmed
from precede.udfs.partitioner import DEFAULT_PARTITIONER, LIBRDKAFKA, check_partitioner
from precede.udfs.sizes import batch_bytes_max

CONFIRM_S = 30.0
"""How long to wait until Kafka confirms a record."""
LOOK_S = 0.05
"""How often somebody who waits looks whether to go on waiting."""


class Publisher:
    """Sends records keyed by their group.

    If Kafka did not take a record, the next `publish` or `flush` raises Refused, AccessDenied or Unconfirmed.
    """

    def __init__(
        self,
        bootstrap: Address | str,
        *,
        topic: str = RAW_TOPIC,
        linger_ms: int = 5,
        partitioner: str = DEFAULT_PARTITIONER,
        confirm_s: float = CONFIRM_S,
        on_error: Callable[[KafkaError], object] | None = None,
    ) -> None:
        """`partitioner` is the job's setting: in another partition than it says, a record is refused.

        A record that Kafka does not confirm within `confirm_s` seconds is Unconfirmed. `on_error` gets the client's own
        errors, such as lost brokers.
        """
        self.bootstrap = bootstrap
        self.topic = topic
        self.partitioner = check_partitioner(partitioner)
        self.placed: tuple[int, int] | None = None
        """Partition and offset of the record that Kafka confirmed last."""
        self._failure: PrecedeError | None = None
        self._settings = {
            "enable.idempotence": True,
            "acks": "all",
            "partitioner": LIBRDKAFKA[self.partitioner],
            "message.max.bytes": RECORD_BYTES_MAX,
            "batch.size": batch_bytes_max(DEFAULTS),  # or a batch of many small records is refused
            "delivery.timeout.ms": max(1, int(confirm_s * 1000)),
            "linger.ms": linger_ms,
            **({} if on_error is None else {"error_cb": on_error}),
        }
        self._producer = self._new_producer()

    def _new_producer(self) -> Producer:
        return Producer(clients.settings(self.bootstrap) | self._settings)

    def publish(self, group: str, value: bytes) -> None:
        """Queue one record; it is on its way when this returns, and in the log when `flush` returns."""
        self.publish_raw(group.encode(), value)

    def publish_raw(self, key: bytes | None, value: bytes | None) -> None:
        """Queue a record with any key, which need not be a valid message."""
        self._raise_failure()
        while True:
            try:
                self._producer.produce(self.topic, value=value, key=key, on_delivery=self._delivered)
            except BufferError:
                self._producer.poll(0.1)  # the queue is full: wait for Kafka rather than drop
            except KafkaException as error:
                if error.args[0].code() == KafkaError._FATAL:
                    self._producer = self._new_producer()  # the old one sends nothing any more
                    continue
                raise Refused(f"The record was not sent: {error.args[0].str()}.") from error
            else:
                break
        self._producer.poll(0)

    def flush(self, check: Callable[[], object] | None = None) -> None:
        """Wait until Kafka has everything published so far.

        `check` is called again and again meanwhile. Where it raises, what is not confirmed yet is forgotten here; Kafka
        may have it.
        """
        if check is None:
            self._producer.flush()
        else:
            try:
                while self._producer.flush(LOOK_S):
                    check()
            except BaseException:
                self.discard()
                raise
        self._raise_failure()

    def check(self) -> None:
        """Take Kafka's answers without waiting; raises if it did not take a record, as `flush` does."""
        self._producer.poll(0)
        self._raise_failure()

    def discard(self) -> None:
        """Forget what is not sent yet."""
        self._producer.purge()
        self._producer.poll(0)
        self._failure = None

    def close(self) -> None:
        """Forget what is not sent yet, and disconnect from Kafka; nothing can be published any more."""
        self.discard()
        del self._producer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.flush()

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self.placed = message.partition() or 0, message.offset() or 0
            return
        if self._failure is not None:
            return
        # Codes below 0 are the client's own, which had no answer; with the two others the broker itself does not know.
        if error.code() < 0 or error.code() in {
            KafkaError.REQUEST_TIMED_OUT,
            KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        }:
            self._failure = Unconfirmed(f"Kafka at {self.bootstrap} did not confirm a record: {error.str()}.")
        else:
            self._failure = clients.refused(self.bootstrap, error, f"Kafka at {self.bootstrap} refused a record")

    def _raise_failure(self) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
