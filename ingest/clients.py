"""What every Kafka client here is configured with."""

import logging
from typing import Any

from confluent_kafka.admin import AdminClient

_LOGGER = logging.getLogger("precede.kafka")
_LOGGER.addHandler(logging.NullHandler())
_LOGGER.propagate = (
    False  # a person reads our sentences; librdkafka's own lines are for whoever adds a handler to this logger
)


def settings(bootstrap: str) -> dict[str, Any]:
    """The settings all confluent-kafka clients share."""
    return {
        "bootstrap.servers": bootstrap,
        "client.id": "precede",
        "logger": _LOGGER,
        "socket.connection.setup.timeout.ms": 5000,
        "reconnect.backoff.max.ms": 2000,
    }


def admin(bootstrap: str) -> AdminClient:
    return AdminClient(settings(bootstrap))
