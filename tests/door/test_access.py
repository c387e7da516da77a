"""How settings describe access to Kafka, and where a password may be."""

import pickle
import socket
import ssl
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from precede.ingest.kafka import clients
from precede.ingest.kafka.access import Access, Address, access_to
from precede.ingest.kafka.clients import spark_options
from precede.ingest.kafka.log_readers import access_of_kafka_python
from precede.streaming import settings
from precede.udfs.errors import Refused, Unreachable
from tests.door.command import precede

SECRET = {"PRECEDE_SASL_PASSWORD": "s3cret"}
CERTIFICATE = __file__
"""A file in which a certificate begins: -----BEGIN CERTIFICATE-----"""
OIDC = {"sasl.oauthbearer.token.endpoint.url": "http://localhost:1/token"}
SASL = {"security_protocol": "SASL_SSL", "sasl_username": "ann"}


def access(flags: dict[str, Any], environ: dict[str, str]) -> Access:
    return access_to(settings.load(flags, environ).bootstrap)


def test_nothing_given_is_a_broker_that_lets_everybody_in() -> None:
    assert access({}, {}) == Access()
    assert access_to("localhost:9092") == Access()


def test_a_password_comes_from_the_variable_or_from_a_file_and_the_variable_stands_over_it(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text(" from a file \n")
    assert access(SASL, SECRET).password == "s3cret"
    assert access(SASL | {"sasl_password_file": file}, {}).password == " from a file "
    assert access(SASL | {"sasl_password_file": file}, SECRET).password == "s3cret"
    assert access(SASL, SECRET).mechanism == "SCRAM-SHA-512"


def test_the_address_shows_no_password_and_lets_nothing_of_it_be_lost() -> None:
    found = settings.load(SASL | {"bootstrap": "kafka:9093"}, SECRET)
    assert isinstance(found.bootstrap, Address)
    assert (found.bootstrap.bootstrap, str(found.bootstrap), f"{found.bootstrap}") == ("kafka:9093",) * 3
    assert not isinstance(found.bootstrap, str)  # a string operation would answer an address without credentials
    with pytest.raises(AttributeError):
        found.bootstrap.bootstrap = "elsewhere:9093"  # type: ignore[misc]
    assert pickle.loads(pickle.dumps(found.bootstrap)) == found.bootstrap
    assert "s3cret" not in repr(found.bootstrap)
    assert "s3cret" not in repr(found) + repr(access_to(found.bootstrap)) + str(access_to(found.bootstrap))
    again = msgspec.structs.replace(found, shards=8)
    assert access_to(again.bootstrap).password == "s3cret"


def test_each_client_is_told_in_its_own_words() -> None:
    address = Address(
        "kafka:9093",
        Access(
            protocol="SASL_SSL", mechanism="PLAIN", username='a"n', password="p\\w", ca="-----BEGIN CERTIFICATE-----"
        ),
    )
    confluent = clients.settings(address)
    assert confluent["bootstrap.servers"] == "kafka:9093"
    assert type(confluent["bootstrap.servers"]) is str
    assert (confluent["security.protocol"], confluent["sasl.password"]) == ("SASL_SSL", "p\\w")
    spark = spark_options(address)
    assert spark["kafka.bootstrap.servers"] == "kafka:9093"
    assert spark["kafka.ssl.truststore.type"] == "PEM"
    assert spark["kafka.sasl.jaas.config"] == (
        'org.apache.kafka.common.security.plain.PlainLoginModule required username="a\\"n" password="p\\\\w";'
    )
    assert set(spark_options("kafka:9092")) == {"kafka.bootstrap.servers", "kafka.security.protocol"}


def test_the_table_kafka_goes_to_every_client_and_what_java_has_too_to_spark() -> None:
    table = {"client.rack": "a", "socket": {"keepalive": {"enable": True}}, "ssl.key.password": "s3cret"}
    found = settings.load({"kafka": table | {"socket.receive.buffer.bytes": 65536}}, {})
    confluent = clients.settings(found.bootstrap)
    assert (confluent["client.rack"], confluent["socket.keepalive.enable"]) == ("a", "true")
    assert confluent["socket.receive.buffer.bytes"] == "65536"
    spark = spark_options(found.bootstrap)
    assert (spark["kafka.client.rack"], spark["kafka.receive.buffer.bytes"]) == ("a", "65536")
    assert not any("keepalive" in name for name in spark)
    assert "s3cret" not in repr(found) + repr(found.bootstrap) + str(found.kafka)


def test_the_table_has_priority_over_our_own_settings_of_clients() -> None:
    found = settings.load({"kafka": {"reconnect.backoff.max.ms": 9_000, "client.id": "orders"}}, {})
    confluent = clients.settings(found.bootstrap)
    assert (confluent["reconnect.backoff.max.ms"], confluent["client.id"]) == ("9000", "orders")


def test_tokens_by_oidc_are_told_to_each_client_in_its_own_words() -> None:
    more = {"sasl_mechanism": "OAUTHBEARER", "kafka": OIDC | {"sasl.oauthbearer.scope": "orders"}}
    found = settings.load(SASL | more, SECRET)
    confluent = clients.settings(found.bootstrap)
    named = {name: confluent[f"sasl.oauthbearer.{name}"] for name in ("method", "client.id", "client.secret", "scope")}
    assert named == {"method": "oidc", "client.id": "ann", "client.secret": "s3cret", "scope": "orders"}
    assert "sasl.password" not in confluent
    spark = spark_options(found.bootstrap)
    assert spark["kafka.sasl.jaas.config"].endswith('required clientId="ann" clientSecret="s3cret" scope="orders";')
    assert spark["kafka.sasl.oauthbearer.token.endpoint.url"] == OIDC["sasl.oauthbearer.token.endpoint.url"]


def test_a_ticket_of_kerberos_is_told_to_java_in_its_own_words() -> None:
    table = (
        ("sasl.kerberos.keytab", "/a.keytab"),
        ("sasl.kerberos.principal", "job@X"),
        ("sasl.kerberos.service.name", "k"),
    )
    spark = spark_options(Address("kafka:9093", Access(protocol="SASL_PLAINTEXT", mechanism="GSSAPI", more=table)))
    assert spark["kafka.sasl.kerberos.service.name"] == "k"
    assert spark["kafka.sasl.jaas.config"] == (
        'com.sun.security.auth.module.Krb5LoginModule required useKeyTab="true" storeKey="true" keyTab="/a.keytab" '
        'principal="job@X";'
    )


@pytest.mark.parametrize(
    ("flags", "environ", "sentence"),
    [
        ({"security_protocol": "TLS"}, {}, "security_protocol is 'TLS', but must be one of PLAINTEXT, SASL_PLAINTEXT"),
        ({"sasl_username": "ann"}, SECRET, "sasl_username has no effect while security_protocol is PLAINTEXT"),
        ({"security_protocol": "SASL_PLAINTEXT", "ssl_ca_file": "x"}, SECRET, "ssl_ca_file has no effect while"),
        ({"security_protocol": "SASL_SSL"}, SECRET, "sasl_username is missing"),
        (SASL, {}, "ann has no password: a password comes from the variable PRECEDE_SASL_PASSWORD, or from a file"),
        (
            SASL | {"sasl_mechanism": "NTLM"},
            SECRET,
            "sasl_mechanism is 'NTLM', but must be one of SCRAM-SHA-512, .*GSSAPI",
        ),
        ({"security_protocol": "SASL_SSL", "sasl_mechanism": "OAUTHBEARER"}, {}, "nothing says where tokens come from"),
        (SASL | {"sasl_mechanism": "OAUTHBEARER", "kafka": OIDC}, {}, "ann has no password"),
        (
            {"security_protocol": "SASL_SSL", "sasl_mechanism": "OAUTHBEARER", "kafka": OIDC},
            SECRET,
            "sasl_username is ",
        ),
        (
            SASL | {"sasl_mechanism": "PLAIN", "sasl_token_provider": "time:time"},
            SECRET,
            "has no effect while sasl_mech",
        ),
        (
            {"sasl_token_provider": "time:time"},
            {},
            "sasl_token_provider has no effect while security_protocol is PLAIN",
        ),
        ({"security_protocol": "SASL_SSL", "sasl_token_provider": "time:no"}, {}, "must be module:function, and that"),
        ({"security_protocol": "SASL_SSL", "sasl_token_provider": "nowhere"}, {}, "must be module:function, and that"),
        ({"security_protocol": "SASL_SSL", "sasl_token_provider": "time:timezone"}, {}, "which is not a function"),
        (
            {"kafka": {"sasl.password": "s3cret"}},
            {},
            r"\[kafka\] sets sasl.password: leave it out, set sasl_password_file",
        ),
        ({"kafka": {"isolation.level": "read_uncommitted"}}, {}, "leave it out, precede's guarantees rest on it"),
        ({"kafka": {"socket.keepalive": True}}, {}, "cannot be used: No such configuration property"),
        ({"kafka": {"ssl.key.password": "x", "socket.timeout.ms": "s3cret"}}, {}, "cannot be used: Invalid value"),
        (SASL | {"sasl_password_file": "/nowhere"}, {}, "/nowhere, which sasl_password_file names, cannot be read"),
        (SASL | {"ssl_ca_file": "/nowhere"}, SECRET, "/nowhere, which ssl_ca_file names, cannot be read"),
        (SASL | {"ssl_ca_file": settings.__file__}, SECRET, "contains no certificate in PEM form"),
        ({"security_protocol": "SSL", "ssl_key_file": "x"}, {}, "ssl_key_file belong together"),
        (
            {"security_protocol": "SSL", "ssl_certificate_file": CERTIFICATE, "ssl_key_file": CERTIFICATE},
            {},
            r"no unencrypted private key of the form PKCS #8 \(openssl pkcs8 -topk8 -nocrypt makes one\) in PEM form",
        ),
        (SASL | {"sasl_password_file": "/dev/null"}, {}, "is empty"),
        (SASL | {"sasl_password_file": __file__}, {}, "more than one line"),
    ],
)
def test_what_lets_nobody_in_is_refused_in_a_sentence(
    flags: dict[str, Any], environ: dict[str, str], sentence: str
) -> None:
    with pytest.raises(Refused, match=sentence) as refused:
        settings.load(flags, environ)
    assert "s3cret" not in str(refused.value)


def test_a_password_in_the_config_file_is_refused_and_not_shown(tmp_path: Path) -> None:
    path = tmp_path / "precede.toml"
    path.write_text('sasl_password = "s3cret"\n')
    with pytest.raises(Refused, match="holds sasl_password, where others may read it") as refused:
        settings.load({}, {}, path)
    assert "s3cret" not in str(refused.value)


def test_both_clients_trust_no_certificate_unseen() -> None:
    context = access_of_kafka_python(Address("kafka:9093", Access(protocol="SSL")))["ssl_context"]
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)
    assert not any("verif" in name or "identification" in name for name in clients.settings("kafka:9093"))


def test_who_hangs_up_at_a_tls_hello_perhaps_speaks_none() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def hang_up() -> None:
            with suppress(OSError):
                while True:
                    server.accept()[0].close()

        threading.Thread(target=hang_up, daemon=True).start()
        refused = clients.unreachable(Address(f"127.0.0.1:{server.getsockname()[1]}", Access(protocol="SSL")))
        server.shutdown(socket.SHUT_RDWR)
    assert isinstance(refused, Unreachable)
    assert "perhaps it has no TLS there; see security_protocol" in str(refused)


def test_who_does_not_reach_kafka_needs_no_password(tmp_path: Path) -> None:
    variables = {"PRECEDE_SECURITY_PROTOCOL": "SASL_SSL", "PRECEDE_SASL_USERNAME": "ann"}
    assert precede("replay", "-", variables=variables).returncode == 0
    done = precede("tail", variables=variables)
    assert done.returncode == 2
    assert done.stderr.startswith(b"ann has no password: a password comes from the variable PRECEDE_SASL_PASSWORD")


def test_no_command_takes_a_password_as_a_flag() -> None:
    done = precede("tail", "--sasl-password", "s3cret")
    assert done.returncode == 2
    assert b"s3cret" not in done.stdout + done.stderr
