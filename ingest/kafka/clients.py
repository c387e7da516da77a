"""The settings that all Kafka clients share, sentences for what a broker refuses, and calls that are tried again."""

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from precede.ingest.kafka import tokens
from precede.ingest.kafka.access import Access, Address, access_to
from precede.udfs.errors import AccessDenied, PrecedeError, Refused, Unreachable

Answer = TypeVar("Answer")


def retry(
    ask: Callable[[], Answer],
    *,
    passes: Callable[[Exception], bool],
    for_s: float,
    pause_s: float,
    pause: Callable[[float], bool | None] = time.sleep,
    tell: Callable[[Exception], object] = lambda _: None,
) -> Answer | None:
    """The answer of the call; raises an error that cannot pass, or that is still there after `for_s` seconds.

    `tell` gets the first error that may pass. If `pause` returns True, the caller no longer waits, and the result is
    None.
    """
    deadline = time.monotonic() + for_s
    has_told = False
    while True:
        try:
            return ask()
        except Exception as error:
            if not passes(error):
                raise
            if not has_told:
                tell(error)
                has_told = True
            if time.monotonic() >= deadline:
                raise
        if pause(pause_s):
            return None


_LOGGER = logging.getLogger("precede.kafka")
_LOGGER.addHandler(logging.NullHandler())
_LOGGER.propagate = False  # people read the sentences of errors; add a handler to read the lines of librdkafka


def settings(bootstrap: Address | str) -> dict[str, Any]:
    """The settings that all confluent-kafka clients share; those of the table `[kafka]` have priority over ours.

    Raises Unreachable where the user's function gives no token: a client would wait for it, and then not say why.
    """
    access = access_to(bootstrap)
    _check_token(bootstrap, access)
    return {
        "bootstrap.servers": str(bootstrap),
        "client.id": "precede",
        "socket.connection.setup.timeout.ms": 5000,
        "reconnect.backoff.max.ms": 2000,
        **access.librdkafka(),
        "logger": _LOGGER,
        "log_level": 5,
    }


def _check_token(bootstrap: Address | str, access: Access) -> None:
    if access.token_provider is None:
        return
    try:
        tokens.token_from(access.token_provider)
    except Exception as error:
        raise Unreachable(_no_token(bootstrap, access)) from error


def _no_token(bootstrap: Address | str, access: Access, said: str = "") -> str:
    """Why there is no token, as a sentence."""
    named = access.token_provider
    why = said if named is None else tokens.why_none(named) or said
    source = "the token endpoint" if named is None else named
    return f"Kafka at {bootstrap} asks for a token, and {source} gives none: {why.rstrip('.')}."


def spark_options(bootstrap: Address | str) -> dict[str, str]:
    """The same for Spark, which uses Kafka's own client."""
    java = {"bootstrap.servers": str(bootstrap), **access_to(bootstrap).java()}
    return {f"kafka.{name}": value for name, value in java.items()}


def admin(bootstrap: Address | str) -> AdminClient:
    """A client that creates and describes topics."""
    return AdminClient(settings(bootstrap))


def lacks_leader(error: Exception) -> bool:
    """Whether a partition has no leader: a new one, or one that moves, has none for a moment."""
    return isinstance(error, KafkaException) and error.args[0].code() in {
        KafkaError._UNKNOWN_PARTITION,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
    }


# ── why not ───────────────────────────────────────────────────────────────────────────────────────────────────────────

LISTEN_S, LISTEN_PAUSE_S = 3.0, 0.3
REQUEST_S_MAX = 10.0


def unreachable(bootstrap: Address | str, noticed: Sequence[KafkaError] = ()) -> AccessDenied | Unreachable:
    """Why no broker answered: from the errors that a client reported, else asks once more and looks at those."""
    if noticed:
        known = [why for error in noticed if (why := why_rejected(bootstrap, error)) is not None]
        return known[0] if known else Unreachable(f"Cannot reach Kafka at {bootstrap}.")
    return _ask_again(bootstrap)


def _ask_again(bootstrap: Address | str) -> AccessDenied | Unreachable:
    noticed: list[KafkaError] = []
    client = AdminClient(settings(bootstrap) | {"error_cb": noticed.append})
    deadline = time.monotonic() + LISTEN_S
    while time.monotonic() < deadline:
        with suppress(KafkaException):
            client.list_topics(timeout=LISTEN_PAUSE_S)
        client.poll(0)
        for error in noticed:
            refused = why_rejected(bootstrap, error)
            if refused is not None:
                return refused
    return Unreachable(f"Cannot reach Kafka at {bootstrap}.")


def why_rejected(bootstrap: Address | str, error: KafkaError) -> AccessDenied | Unreachable | None:
    """What an error of a client means for a person; None if it only says that no broker answered."""
    access, said = access_to(bootstrap), error.str()
    if access.mechanism == "OAUTHBEARER" and error.code() == KafkaError._AUTHENTICATION:
        if "token" in said.partition(":")[0] or "OIDC" in said:
            return Unreachable(_no_token(bootstrap, access, said))
        return AccessDenied(
            f"Kafka at {bootstrap} rejected the token: it has expired, or it names somebody who is not known there."
        )
    if error.code() == KafkaError._AUTHENTICATION and "Unsupported SASL mechanism" in said:
        return AccessDenied(f"Kafka at {bootstrap} does not accept the sasl_mechanism {access.mechanism}.")
    if error.code() == KafkaError._AUTHENTICATION:
        wrong = "the name, the password or the sasl_mechanism is wrong"
        return AccessDenied(f"Kafka at {bootstrap} rejected the credentials of {access.username!r}: {wrong}.")
    if "SSL alert" in said and ("certificate" in said or "unknown ca" in said):
        given = "another ssl_certificate_file" if access.certificate else "ssl_certificate_file and ssl_key_file"
        return AccessDenied(f"Kafka at {bootstrap} asks for a client certificate: set {given}.")
    if error.code() == KafkaError._SSL:
        cause = said.partition("SSL routines::")[2].partition(":")[0] or said
        mend = f"ssl_ca_file must name the authority that signed it ({cause[:100]})"
        return AccessDenied(f"Kafka at {bootstrap} shows a certificate that cannot be trusted, or none: {mend}.")
    if "PLAINTEXT broker listener" in said:  # it may also be a lost connection, which passes
        return Unreachable(
            f"Kafka at {bootstrap} closes the connection: perhaps it has no TLS there; see security_protocol."
        )
    return None


def why_no_login(bootstrap: Address | str, error: KafkaError) -> AccessDenied | Unreachable | None:
    """The same of an error of the login alone, which a client that runs meets when its token or its right ends."""
    return why_rejected(bootstrap, error) if error.code() == KafkaError._AUTHENTICATION else None


def unreadable(
    bootstrap: Address | str, topic: str, error: KafkaError, noticed: Sequence[KafkaError] = ()
) -> PrecedeError:
    """Why a topic could not be read, with the access rule that is missing."""
    if error.code() in AWAY:
        return unreachable(bootstrap, noticed)
    needed = {
        KafkaError.TOPIC_AUTHORIZATION_FAILED: ", who needs Read and Describe on that topic",
        KafkaError.GROUP_AUTHORIZATION_FAILED: ", who needs Read on the consumer group",
    }.get(error.code(), "")
    return refused(bootstrap, error, f"Kafka at {bootstrap} did not allow reading {topic}", needed)


def check_visible(bootstrap: Address | str, topic: str) -> None:
    """Raise AccessDenied if the topic, which seems not to exist, is only hidden from these credentials."""
    try:
        error = admin(bootstrap).list_topics(topic, timeout=REQUEST_S_MAX).topics[topic].error
    except KafkaException as away:
        raise unreachable(bootstrap) from away
    if error is not None and error.code() in NOT_ALLOWED:
        raise unreadable(bootstrap, topic, error)


def refused(bootstrap: Address | str, error: KafkaError, what: str, needed: str = "") -> AccessDenied | Refused:
    """What Kafka answered; if an access rule is missing, for whom."""
    if error.code() not in NOT_ALLOWED:
        return Refused(f"{what}: {error.str()}{needed}.")
    name = access_to(bootstrap).username
    who = "clients without a name" if name is None else repr(name)
    return AccessDenied(f"{what}: its access rules do not allow this to {who}{needed}.")


AWAY = {KafkaError._TRANSPORT, KafkaError._TIMED_OUT, KafkaError._ALL_BROKERS_DOWN, KafkaError._RESOLVE}
NOT_ALLOWED = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}
