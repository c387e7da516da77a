"""The table `[kafka]` of the config file: names and values for librdkafka as they are, and their twins in Java.

Every client of the project gets the table. Spark's reader is Kafka's own Java client, which has other names for some of
it; what has no twin there concerns librdkafka alone.
"""

from collections.abc import Iterable, Mapping

from precede.udfs.errors import Refused

_INSTEAD = {
    "bootstrap.servers": "bootstrap",
    "metadata.broker.list": "bootstrap",
    "security.protocol": "security_protocol",
    "sasl.mechanism": "sasl_mechanism",
    "sasl.mechanisms": "sasl_mechanism",
    "sasl.username": "sasl_username",
    "sasl.password": "sasl_password_file",
    "ssl.ca.location": "ssl_ca_file",
    "ssl.certificate.location": "ssl_certificate_file",
    "ssl.key.location": "ssl_key_file",
}
_FIXED = (
    *("acks", "request.required.acks", "enable.idempotence", "transactional.id", "partitioner", "isolation.level"),
    *("group.id", "enable.auto.commit", "enable.auto.offset.store", "auto.offset.reset", "enable.partition.eof"),
)
"""On these the guarantees rest."""

_SAME = (
    *("client.rack", "client.dns.lookup", "connections.max.idle.ms", "fetch.max.bytes", "fetch.min.bytes"),
    *("metadata.max.age.ms", "reconnect.backoff.ms", "reconnect.backoff.max.ms", "sasl.kerberos.service.name"),
    *("sasl.oauthbearer.token.endpoint.url", "socket.connection.setup.timeout.ms", "ssl.key.password"),
    *("sasl.kerberos.kinit.cmd", "sasl.kerberos.min.time.before.relogin"),
)
_TWINS = {"socket.receive.buffer.bytes": "receive.buffer.bytes", "socket.send.buffer.bytes": "send.buffer.bytes"}

Table = tuple[tuple[str, str], ...]
"""Names and values; unlike a dictionary it never changes."""


def check(table: Mapping[str, str]) -> None:
    """Refuse names with a setting of their own, names on which guarantees rest, and what librdkafka does not know."""
    for name in table:
        if name in _INSTEAD:
            raise Refused(f"The table [kafka] sets {name}: leave it out, set {_INSTEAD[name]} instead.")
        if name in _FIXED:
            raise Refused(f"The table [kafka] sets {name}: leave it out, precede's guarantees rest on it.")
    if table:
        _check_known(table)


def _check_known(table: Mapping[str, str]) -> None:
    """A client that connects to nothing says whether names and values are right."""
    from confluent_kafka import KafkaException, Producer

    try:
        Producer({**table, "log_level": 0})
    except KafkaException as error:
        said = error.args[0].str().rstrip(".")
        for value in table.values():  # it may be a secret
            said = said.replace(f'"{value}"', "it") if len(value) > 1 else said
        raise Refused(f"The table [kafka] cannot be used: {said}.") from None


def in_java(table: Iterable[tuple[str, str]]) -> dict[str, str]:
    """The names and values that Kafka's Java client has too."""
    found: dict[str, str] = {}
    for name, value in table:
        if name in _SAME:
            found[name] = value
        elif name in _TWINS:
            found[_TWINS[name]] = value
        elif name == "ssl.endpoint.identification.algorithm":
            found[name] = "" if value == "none" else value
    return found
