"""What the driver asks Kafka itself: topics and their ends, and the settings all its clients share."""

import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient

from ingest.kafka.access import access_to
from udfs.errors import Unreachable

REQUEST_S = 10.0

_LOGGER = logging.getLogger("precede.kafka")
_LOGGER.addHandler(logging.NullHandler())
_LOGGER.propagate = (
    False  # a person reads our sentences; librdkafka's own lines are for whoever adds a handler to this logger
)


@dataclass(frozen=True)
class Topic:
    """A topic as it is now; `id` tells it from one of the same name that was deleted."""

    name: str
    id: str
    partitions: int


def client_settings(bootstrap: str) -> dict[str, Any]:
    """The settings of every client the driver opens."""
    return {
        "bootstrap.servers": str(bootstrap),
        **access_to(bootstrap).librdkafka(),
        "client.id": "precede",
        "logger": _LOGGER,
        "log_level": 5,
        "socket.connection.setup.timeout.ms": 5000,
        "reconnect.backoff.max.ms": 2000,
    }


def spark_options(bootstrap: str) -> dict[str, str]:
    """The same for Spark, whose client is Kafka's own."""
    settings = {"bootstrap.servers": str(bootstrap), **access_to(bootstrap).java()}
    return {f"kafka.{name}": value for name, value in settings.items()}


def describe(bootstrap: str, names: list[str]) -> dict[str, Topic]:
    """Those of the topics that exist."""
    try:
        admin = AdminClient(client_settings(bootstrap))
        admin.list_topics(timeout=REQUEST_S)
        futures = admin.describe_topics(TopicCollection(names), request_timeout=REQUEST_S)
    except KafkaException as error:
        raise Unreachable(f"Cannot reach Kafka at {bootstrap}.") from error
    topics: dict[str, Topic] = {}
    for name, future in futures.items():
        try:
            found = future.result()
        except KafkaException as error:
            if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                continue
            raise Unreachable(
                f"Kafka at {bootstrap} did not describe the topic {name}: {error.args[0].str()}."
            ) from error
        topics[name] = Topic(name, str(found.topic_id), len(found.partitions))
    return topics


def ends(bootstrap: str, topic: str, partitions: int, *, committed: bool = True) -> list[tuple[int, int]]:
    """First and next offset of every partition; of `committed` records, those before the first open transaction."""
    isolation = "read_committed" if committed else "read_uncommitted"
    consumer = Consumer(client_settings(bootstrap) | {"group.id": "precede-looks", "isolation.level": isolation})
    deadline = time.monotonic() + REQUEST_S
    try:
        while True:
            try:
                return [
                    consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=REQUEST_S)
                    for partition in range(partitions)
                ]
            except KafkaException as error:
                # A topic made a moment ago has no leader yet.
                if time.monotonic() >= deadline:
                    raise Unreachable(f"Cannot read the ends of {topic} from Kafka at {bootstrap}.") from error
                time.sleep(0.1)
    finally:
        consumer.close()


def read_to_end(
    bootstrap: str, topic: str, partitions: int, *, settled: bool = False
) -> Iterator[tuple[bytes | None, bytes | None]]:
    """Every committed (key, value), in log order per partition.

    A reader of committed records is shown nothing behind a transaction that is open, whoever's it is; `settled` waits
    until that has ended, and what is committed behind it is read too.
    """
    upto = ends(bootstrap, topic, partitions, committed=False) if settled else [(0, 0)] * partitions
    consumer = Consumer(
        client_settings(bootstrap)
        | {
            "group.id": "precede-looks",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 10,
        }
    )
    try:
        consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
        reading = set(range(partitions))
        hidden = False
        while reading:
            message = consumer.poll(REQUEST_S)
            if message is None:
                why = " to its end: somebody's transaction is open in it" if hidden else ""
                raise Unreachable(f"Cannot read the topic {topic} from Kafka at {bootstrap}{why}.")
            error = message.error()
            if error is None:
                yield message.key(), message.value()
            elif error.code() == KafkaError._PARTITION_EOF:
                at = message.partition() or 0
                hidden = (message.offset() or 0) < upto[at][1]
                if not hidden:
                    reading.discard(at)
            else:
                failed = KafkaException(error)
                raise Unreachable(
                    f"Cannot read the topic {topic} from Kafka at {bootstrap}: {error.str()}."
                ) from failed
    except KafkaException as error:
        raise Unreachable(f"Cannot read the topic {topic} from Kafka at {bootstrap}.") from error
    finally:
        consumer.close()
