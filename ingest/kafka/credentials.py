"""How the job and the commands get access to Kafka, from the settings and the two places for a password.

A password is never a flag, because flags are visible in the list of processes, and never a line of the config file,
which people share. It comes from the variable PRECEDE_SASL_PASSWORD, or from a file of its own.
"""

from collections.abc import Mapping
from pathlib import Path

import msgspec

from precede.ingest.client_tables import ClientTable
from precede.ingest.kafka import tokens
from precede.ingest.kafka.access import MECHANISMS, PROTOCOLS, TLS, Access, Address, Table, check_table
from precede.udfs.errors import Refused

PASSWORD = "PRECEDE_SASL_PASSWORD"  # noqa: S105 (the name of the variable that contains it)
SECRET_SETTING = "sasl_password"  # noqa: S105 (what a config file may not contain)
LOGIN = ("sasl_username", "sasl_mechanism", "sasl_token_provider")
FILES = ("ssl_ca_file", "ssl_certificate_file", "ssl_key_file")
UNENCRYPTED = "unencrypted private key of the form PKCS #8 (openssl pkcs8 -topk8 -nocrypt makes one)"
"""The only form of a key that Kafka's own client reads from PEM."""
PASSWORD_WANTED = f"a password comes from the variable {PASSWORD}, or from a file that sasl_password_file names"


OAUTH_WANTED = (
    "with OAUTHBEARER set sasl_token_provider, or sasl.oauthbearer.token.endpoint.url in the table [kafka] together "
    "with sasl_username, which is the client's id"
)


class Credentials(msgspec.Struct, frozen=True, kw_only=True):
    """The settings for access to Kafka; each field is the setting of that name."""

    security_protocol: str | None = None
    sasl_mechanism: str | None = None
    sasl_username: str | None = None
    sasl_password_file: str | None = None
    sasl_token_provider: str | None = None
    ssl_ca_file: str | None = None
    ssl_certificate_file: str | None = None
    ssl_key_file: str | None = None
    kafka: ClientTable = ClientTable()


def address(bootstrap: str, settings: Credentials, environ: Mapping[str, str]) -> Address:
    """The bootstrap servers, and how to get access there. Raises Refused if the settings contradict each other."""
    protocol = _protocol(settings)
    logs_in = protocol.startswith("SASL")
    for names, wanted, kind in ((LOGIN, logs_in, "SASL_SSL"), (FILES, protocol in TLS, "SSL or SASL_SSL")):
        for name in names:
            if getattr(settings, name) is not None and not wanted:
                raise Refused(
                    f"The setting {name} has no effect while security_protocol is {protocol}: set that to {kind}."
                )
    check_table(settings.kafka)
    more = tuple(settings.kafka.items())
    files = _files(settings)
    if not logs_in:
        return Address(bootstrap, Access(protocol=protocol, more=more, **files))
    mechanism = settings.sasl_mechanism or ("OAUTHBEARER" if settings.sasl_token_provider else MECHANISMS[0])
    if mechanism not in MECHANISMS:
        raise Refused(f"The setting sasl_mechanism is {mechanism!r}, but must be one of {', '.join(MECHANISMS)}.")
    if settings.sasl_token_provider is not None and mechanism != "OAUTHBEARER":
        raise Refused(f"The setting sasl_token_provider has no effect while sasl_mechanism is {mechanism}.")
    if mechanism == "OAUTHBEARER":
        return Address(bootstrap, _with_tokens(protocol, settings, environ, files, more))
    if mechanism == "GSSAPI":
        _check_kerberos()
        return Address(bootstrap, Access(protocol=protocol, mechanism=mechanism, more=more, **files))
    if settings.sasl_username is None:
        raise Refused(f"The setting sasl_username is missing: with {protocol} Kafka asks for a name.")
    password = _password(settings, environ)
    known = {"username": settings.sasl_username, "password": password, **files}
    return Address(bootstrap, Access(protocol=protocol, mechanism=mechanism, more=more, **known))


def _with_tokens(
    protocol: str, settings: Credentials, environ: Mapping[str, str], files: dict[str, str | None], more: Table
) -> Access:
    """Access by OAUTHBEARER: tokens of the user's function, or by OIDC, where the password is the client's secret."""
    known = {"protocol": protocol, "mechanism": "OAUTHBEARER", "more": more, **files}
    if settings.sasl_token_provider is not None:
        tokens.provider(settings.sasl_token_provider)
        return Access(token_provider=settings.sasl_token_provider, **known)  # type: ignore[arg-type]
    if "sasl.oauthbearer.token.endpoint.url" not in settings.kafka:
        raise Refused(
            f"The setting sasl_mechanism is OAUTHBEARER, but nothing says where tokens come from: {OAUTH_WANTED}."
        )
    if settings.sasl_username is None:
        if "sasl.oauthbearer.client.id" in settings.kafka:
            return Access(**known)  # type: ignore[arg-type]
        raise Refused(f"The setting sasl_username is missing: {OAUTH_WANTED}.")
    return Access(username=settings.sasl_username, password=_password(settings, environ), **known)  # type: ignore[arg-type]


def _check_kerberos() -> None:
    """The packages of confluent-kafka on PyPI are built without Kerberos."""
    from confluent_kafka import KafkaException, Producer

    try:
        Producer({"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "GSSAPI", "log_level": 0})
    except KafkaException as error:
        if "No provider for SASL mechanism GSSAPI" in error.args[0].str():
            raise Refused(
                "The setting sasl_mechanism is GSSAPI, but this confluent-kafka was built without Kerberos: install "
                "librdkafka with libsasl2, then pip install --no-binary confluent-kafka confluent-kafka."
            ) from None


def _files(settings: Credentials) -> dict[str, str | None]:
    """The contents of the files: the authority to trust, and the own certificate and key."""
    if (settings.ssl_certificate_file is None) != (settings.ssl_key_file is None):
        raise Refused("The settings ssl_certificate_file and ssl_key_file belong together: set both or neither.")
    return {
        "ca": _pem("ssl_ca_file", settings.ssl_ca_file, "CERTIFICATE", "certificate"),
        "certificate": _pem("ssl_certificate_file", settings.ssl_certificate_file, "CERTIFICATE", "certificate"),
        "private_key": _pem("ssl_key_file", settings.ssl_key_file, "PRIVATE KEY", UNENCRYPTED),
    }


def _pem(name: str, file: str | None, heading: str, what: str) -> str | None:
    text = None if file is None else _text(name, file)
    if text is not None and f"-----BEGIN {heading}-----" not in text:
        raise Refused(f"The file {file}, which {name} names, contains no {what} in PEM form.")
    return text


def _protocol(settings: Credentials) -> str:
    protocol = settings.security_protocol or PROTOCOLS[0]
    if protocol not in PROTOCOLS:
        raise Refused(f"The setting security_protocol is {protocol!r}, but must be one of {', '.join(PROTOCOLS)}.")
    return protocol


def _password(settings: Credentials, environ: Mapping[str, str]) -> str:
    password = environ.get(PASSWORD)
    if not password and settings.sasl_password_file is not None:
        password = _text("sasl_password_file", settings.sasl_password_file).rstrip("\r\n")
        if not password:
            raise Refused(f"The file {settings.sasl_password_file}, which sasl_password_file names, is empty.")
    if not password:
        raise Refused(f"{settings.sasl_username} has no password: {PASSWORD_WANTED}.")
    if "\n" in password or "\0" in password:
        raise Refused("The password for Kafka has more than one line; its file must contain nothing else.")
    return password


def _text(name: str, file: str) -> str:
    try:
        return Path(file).expanduser().read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise Refused(f"The file {file}, which {name} names, is not text.") from None
    except OSError as error:
        raise Refused(f"The file {file}, which {name} names, cannot be read: {error.strerror}.") from error
