"""Where Kafka is, and how to get access: one value that is passed to everything that opens a client."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec

from precede.ingest.kafka.tokens import Token, token_from
from precede.udfs.errors import Refused

Table = tuple[tuple[str, str], ...]
"""Names and values; unlike a dictionary it never changes."""

NO_TLS, TLS = ("PLAINTEXT", "SASL_PLAINTEXT"), ("SSL", "SASL_SSL")
PROTOCOLS = (*NO_TLS, *TLS)
PASSWORDS = ("SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN")
"""Mechanisms that ask for a name and a password."""
MECHANISMS = (*PASSWORDS, "OAUTHBEARER", "GSSAPI")
_MODULES = "org.apache.kafka.common.security"


class Access(msgspec.Struct, frozen=True, kw_only=True):
    """How to get access to Kafka. Keys and certificates are PEM text, so that no machine needs files."""

    protocol: str = "PLAINTEXT"
    mechanism: str | None = None
    username: str | None = None
    password: str | None = None
    ca: str | None = None
    certificate: str | None = None
    private_key: str | None = None
    token_provider: str | None = None
    """`module:function`, for OAUTHBEARER; without it tokens come by OIDC, for the client `username`."""
    more: Table = ()
    """The table `[kafka]`."""

    def __repr__(self) -> str:
        return f"Access(protocol={self.protocol!r}, mechanism={self.mechanism!r}, username={self.username!r})"

    def librdkafka(self) -> dict[str, Any]:
        """The settings for confluent-kafka."""
        asks = self.mechanism in PASSWORDS
        return dict(self.more) | _given(
            {
                "security.protocol": self.protocol,
                "sasl.mechanism": self.mechanism,
                "sasl.username": self.username if asks else None,
                "sasl.password": self.password if asks else None,
                **(self._token_settings() if self.mechanism == "OAUTHBEARER" else {}),
                "ssl.ca.pem": self.ca,
                "ssl.certificate.pem": self.certificate,
                "ssl.key.pem": self.private_key,
            }
        )

    def _token_settings(self) -> dict[str, Any]:
        if self.token_provider is not None:
            return {"oauth_cb": partial(_token, self.token_provider)}
        known = {"client.id": self.username, "client.secret": self.password}
        return {"sasl.oauthbearer.method": "oidc"} | {f"sasl.oauthbearer.{name}": one for name, one in known.items()}

    def java(self) -> dict[str, str]:
        """The settings for Kafka's own Java client, which Spark uses."""
        return in_java(self.more) | _given(
            {
                "security.protocol": self.protocol,
                "sasl.mechanism": self.mechanism,
                **self._java_login(),
                "ssl.truststore.type": None if self.ca is None else "PEM",
                "ssl.truststore.certificates": self.ca,
                "ssl.keystore.type": None if self.certificate is None else "PEM",
                "ssl.keystore.certificate.chain": self.certificate,
                "ssl.keystore.key": self.private_key,
            }
        )

    def _java_login(self) -> dict[str, str]:
        if self.mechanism is None:
            return {}
        if self.mechanism == "OAUTHBEARER":
            return self._java_tokens()
        if self.mechanism == "GSSAPI":
            login = _jaas("com.sun.security.auth.module.Krb5LoginModule", **self._java_ticket())
        else:
            kind = "plain.Plain" if self.mechanism == "PLAIN" else "scram.Scram"
            login = _jaas(f"{_MODULES}.{kind}LoginModule", username=self.username, password=self.password)
        return {"sasl.jaas.config": login}

    def _java_ticket(self) -> dict[str, str | None]:
        table = dict(self.more)
        keytab = table.get("sasl.kerberos.keytab")
        if keytab is None:
            return {"useTicketCache": "true"}
        known = {"keyTab": keytab, "principal": table.get("sasl.kerberos.principal")}
        return {"useKeyTab": "true", "storeKey": "true", **known}

    def _java_tokens(self) -> dict[str, str]:
        table = dict(self.more)
        known = table.get("sasl.oauthbearer.client.id"), table.get("sasl.oauthbearer.client.secret")
        id_, secret = self.username or known[0], self.password or known[1]
        url = table.get("sasl.oauthbearer.token.endpoint.url")
        if self.token_provider is not None:
            from precede.ingest.kafka.token_endpoint import CLIENT_ID, endpoint  # an HTTP server, which few need

            url, secret = endpoint(self.token_provider)
            id_ = CLIENT_ID
        scope = table.get("sasl.oauthbearer.scope")
        names = {"clientId": id_, "clientSecret": secret} | ({} if scope is None else {"scope": scope})
        return {
            "sasl.jaas.config": _jaas(f"{_MODULES}.oauthbearer.OAuthBearerLoginModule", **names),
            "sasl.login.callback.handler.class": f"{_MODULES}.oauthbearer.OAuthBearerLoginCallbackHandler",
            "sasl.oauthbearer.token.endpoint.url": url or "",
        }


OPEN = Access()


@dataclass(frozen=True, slots=True)
class Address:
    """Where Kafka is, and how to get access. As text it is only `host:port`, so no password is shown."""

    bootstrap: str
    """`host:port`, or several of them separated by commas."""
    access: Access = OPEN

    def __str__(self) -> str:
        return self.bootstrap


def access_to(bootstrap: Address | str) -> Access:
    """How to get access there; plain text is the address of a broker without access control."""
    return bootstrap.access if isinstance(bootstrap, Address) else OPEN


def _given(settings: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if value is not None}


def _token(provider: str, _config: str) -> Token:
    """What librdkafka calls when it needs a token."""
    return token_from(provider)


def _jaas(module: str, **options: str | None) -> str:
    """The line that configures a login of the Java client."""
    given = "".join(f" {name}={_quoted(value)}" for name, value in options.items() if value is not None)
    return f"{module} required{given};"


def _quoted(text: str | None) -> str:
    """A string in the line that configures a login of the Java client."""
    escaped = (text or "").replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


# ── the table `[kafka]` of the config file: names and values for librdkafka as they are, and their twins in Java ──────

# Every client of the project gets the table. Spark's reader is Kafka's own Java client, which has other names for some
# of it; what has no twin there concerns librdkafka alone.

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


def check_table(table: Mapping[str, str]) -> None:
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
