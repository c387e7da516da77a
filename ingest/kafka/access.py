"""Where Kafka is, and how to get access: one value that is passed to everything that opens a client."""

from dataclasses import dataclass
from typing import Any

import msgspec

NO_TLS, TLS = ("PLAINTEXT", "SASL_PLAINTEXT"), ("SSL", "SASL_SSL")
PROTOCOLS = (*NO_TLS, *TLS)
MECHANISMS = ("SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN")


class Access(msgspec.Struct, frozen=True, kw_only=True):
    """How to get access to Kafka. Keys and certificates are PEM text, so that no machine needs files."""

    protocol: str = "PLAINTEXT"
    mechanism: str | None = None
    username: str | None = None
    password: str | None = None
    ca: str | None = None
    certificate: str | None = None
    private_key: str | None = None

    def __repr__(self) -> str:
        return f"Access(protocol={self.protocol!r}, mechanism={self.mechanism!r}, username={self.username!r})"

    def librdkafka(self) -> dict[str, Any]:
        """The settings for confluent-kafka."""
        return _given(
            {
                "security.protocol": self.protocol,
                "sasl.mechanism": self.mechanism,
                "sasl.username": self.username,
                "sasl.password": self.password,
                "ssl.ca.pem": self.ca,
                "ssl.certificate.pem": self.certificate,
                "ssl.key.pem": self.private_key,
            }
        )

    def java(self) -> dict[str, str]:
        """The settings for Kafka's own Java client, which Spark uses."""
        login = None
        if self.mechanism is not None:
            kind = "plain.Plain" if self.mechanism == "PLAIN" else "scram.Scram"
            login = (
                f"org.apache.kafka.common.security.{kind}LoginModule required "
                f"username={_quoted(self.username)} password={_quoted(self.password)};"
            )
        return _given(
            {
                "security.protocol": self.protocol,
                "sasl.mechanism": self.mechanism,
                "sasl.jaas.config": login,
                "ssl.truststore.type": None if self.ca is None else "PEM",
                "ssl.truststore.certificates": self.ca,
                "ssl.keystore.type": None if self.certificate is None else "PEM",
                "ssl.keystore.certificate.chain": self.certificate,
                "ssl.keystore.key": self.private_key,
            }
        )


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


def _quoted(text: str | None) -> str:
    """A string in the line that configures a login of the Java client."""
    escaped = (text or "").replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
