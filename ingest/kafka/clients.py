"""What every Kafka client here is configured with."""

import logging
import time
from contextlib import suppress
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from precede.ingest.kafka.access import Address, access_to
from precede.udfs.errors import AccessDenied, PrecedeError, Refused, Unreachable

_LOGGER = logging.getLogger("precede.kafka")
_LOGGER.addHandler(logging.NullHandler())
_LOGGER.propagate = (
    False  # a person reads our sentences; librdkafka's own lines are for whoever adds a handler to this logger
)


def settings(bootstrap: Address | str) -> dict[str, Any]:
    """The settings all confluent-kafka clients share."""
    return {
        "bootstrap.servers": str(bootstrap),
        **access_to(bootstrap).librdkafka(),
        "client.id": "precede",
        "logger": _LOGGER,
        "log_level": 5,
        "socket.connection.setup.timeout.ms": 5000,
        "reconnect.backoff.max.ms": 2000,
    }


def spark_options(bootstrap: Address | str) -> dict[str, str]:
    """The same for Spark, whose client is Kafka's own."""
    java = {"bootstrap.servers": str(bootstrap), **access_to(bootstrap).java()}
    return {f"kafka.{name}": value for name, value in java.items()}


def admin(bootstrap: Address | str) -> AdminClient:
    return AdminClient(settings(bootstrap))


def is_new(error: Exception) -> bool:
    """Whether a partition has no leader yet: one that is new, or moves, has none for a moment."""
    return isinstance(error, KafkaException) and error.args[0].code() in {
        KafkaError._UNKNOWN_PARTITION,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
    }


# ── why not ───────────────────────────────────────────────────────────────────────────────────────────────────────────

LISTEN_S, LISTEN_PAUSE_S = 3.0, 0.3
REQUEST_S_MAX = 10.0


def unreachable(bootstrap: Address | str) -> AccessDenied | Unreachable:
    """Why no broker answered: it is asked once more, and what the client complains of is listened to."""
    noticed: list[KafkaError] = []
    client = AdminClient(settings(bootstrap) | {"error_cb": noticed.append})
    deadline = time.monotonic() + LISTEN_S
    while time.monotonic() < deadline:
        with suppress(KafkaException):
            client.list_topics(timeout=LISTEN_PAUSE_S)
        client.poll(0)
        for error in noticed:
            refused = _kept_out(bootstrap, error)
            if refused is not None:
                return refused
    return Unreachable(f"Cannot reach Kafka at {bootstrap}.")


def _kept_out(bootstrap: Address | str, error: KafkaError) -> AccessDenied | Unreachable | None:
    """What one complaint of a client means for a person; None where it says no more than that nobody answers."""
    access, said = access_to(bootstrap), error.str()
    if error.code() == KafkaError._AUTHENTICATION and "Unsupported SASL mechanism" in said:
        return AccessDenied(f"Kafka at {bootstrap} does not take the sasl_mechanism {access.mechanism}.")
    if error.code() == KafkaError._AUTHENTICATION:
        wrong = "the name, the password or the sasl_mechanism is wrong"
        return AccessDenied(f"Kafka at {bootstrap} does not let {access.username!r} in: {wrong}.")
    if "SSL alert" in said and ("certificate" in said or "unknown ca" in said):
        given = "another ssl_certificate_file" if access.certificate else "ssl_certificate_file and ssl_key_file"
        return AccessDenied(f"Kafka at {bootstrap} asks who it is by a certificate of its own: set {given}.")
    if error.code() == KafkaError._SSL:
        cause = said.partition("SSL routines::")[2].partition(":")[0] or said
        mend = f"ssl_ca_file must name the authority that signed it ({cause[:100]})"
        return AccessDenied(f"Kafka at {bootstrap} shows a certificate that cannot be trusted, or none: {mend}.")
    if "PLAINTEXT broker listener" in said:  # or it hung up by chance, so this may pass
        return Unreachable(f"Kafka at {bootstrap} hangs up: perhaps it speaks no TLS there; see security_protocol.")
    return None


def unreadable(bootstrap: Address | str, topic: str, error: KafkaError) -> PrecedeError:
    """Why a topic could not be read; where an access rule lacks, which."""
    if error.code() in AWAY:
        return unreachable(bootstrap)
    needed = (
        ", who needs Read and Describe on that topic" if error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED else ""
    )
    return refused(bootstrap, error, f"Kafka at {bootstrap} did not let {topic} be read", needed)


def check_may_see(bootstrap: Address | str, topic: str) -> None:
    """Refuse where the topic, which seems not to be there, is only hidden from who comes like this."""
    try:
        error = admin(bootstrap).list_topics(topic, timeout=REQUEST_S_MAX).topics[topic].error
    except KafkaException as away:
        raise unreachable(bootstrap) from away
    if error is not None and error.code() in NOT_ALLOWED:
        raise unreadable(bootstrap, topic, error)


def refused(bootstrap: Address | str, error: KafkaError, what: str, needed: str = "") -> AccessDenied | Refused:
    """What Kafka answered, and where its access rules are meant, for whom they lack."""
    if error.code() not in NOT_ALLOWED:
        return Refused(f"{what}: {error.str()}{needed}.")
    name = access_to(bootstrap).username
    who = "whoever comes without a name" if name is None else repr(name)
    return AccessDenied(f"{what}: its access rules do not allow this to {who}{needed}.")


AWAY = {KafkaError._TRANSPORT, KafkaError._TIMED_OUT, KafkaError._ALL_BROKERS_DOWN, KafkaError._RESOLVE}
NOT_ALLOWED = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}
