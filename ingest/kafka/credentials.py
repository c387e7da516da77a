"""How the job and the commands get into Kafka: from what a person sets, and the two places where a password may stand.

A password is never a flag, for flags show in the list of processes, nor a line of the config file, which is shown
around; it comes from the variable PRECEDE_SASL_PASSWORD or from a file of its own.
"""

from collections.abc import Mapping
from pathlib import Path

import msgspec

from precede.ingest.kafka.access import MECHANISMS, PROTOCOLS, TLS, Access, Address
from precede.udfs.errors import Refused

PASSWORD = "PRECEDE_SASL_PASSWORD"  # noqa: S105 (the name of the variable that holds it)
SECRET_SETTING = "sasl_password"  # noqa: S105 (what a config file may not hold)
LOGIN = ("sasl_username", "sasl_mechanism")
FILES = ("ssl_ca_file", "ssl_certificate_file", "ssl_key_file")
UNENCRYPTED = "unencrypted private key of the form PKCS #8 (openssl pkcs8 -topk8 -nocrypt makes one)"
"""The one form of a key that Kafka's own client reads from PEM."""
PASSWORD_WANTED = f"a password comes from the variable {PASSWORD}, or from a file that sasl_password_file names"


class Credentials(msgspec.Struct, frozen=True, kw_only=True):
    """What a person says of how to get in; each field is the setting of that name."""

    security_protocol: str | None = None
    sasl_mechanism: str | None = None
    sasl_username: str | None = None
    sasl_password_file: str | None = None
    ssl_ca_file: str | None = None
    ssl_certificate_file: str | None = None
    ssl_key_file: str | None = None


def address(bootstrap: str, settings: Credentials, environ: Mapping[str, str]) -> Address:
    """The bootstrap servers, and what it takes to get in there."""
    protocol = _protocol(settings)
    logs_in = protocol.startswith("SASL")
    for names, wanted, kind in ((LOGIN, logs_in, "SASL_SSL"), (FILES, protocol in TLS, "SSL or SASL_SSL")):
        for name in names:
            if getattr(settings, name) is not None and not wanted:
                raise Refused(
                    f"The setting {name} is of no use while security_protocol is {protocol}: set it to {kind}."
                )
    files = _files(settings)
    if not logs_in:
        return Address(bootstrap, Access(protocol=protocol, **files))
    mechanism = settings.sasl_mechanism or MECHANISMS[0]
    if mechanism not in MECHANISMS:
        raise Refused(f"The setting sasl_mechanism is {mechanism!r}, but must be one of {', '.join(MECHANISMS)}.")
    if settings.sasl_username is None:
        raise Refused(f"The setting sasl_username is missing: with {protocol} Kafka asks who it is.")
    password = _password(settings, environ)
    access = Access(protocol=protocol, mechanism=mechanism, username=settings.sasl_username, password=password, **files)
    return Address(bootstrap, access)


def _files(settings: Credentials) -> dict[str, str | None]:
    """What stands in the files: whom we trust, and who we are."""
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
        raise Refused(f"The file {file}, which {name} names, holds no {what} in PEM form.")
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
        raise Refused("The password for Kafka has more than one line; a file of it holds nothing else.")
    return password


def _text(name: str, file: str) -> str:
    try:
        return Path(file).expanduser().read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise Refused(f"The file {file}, which {name} names, is not text.") from None
    except OSError as error:
        raise Refused(f"The file {file}, which {name} names, cannot be read: {error.strerror}.") from error
