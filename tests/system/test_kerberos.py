"""Kafka by GSSAPI: Spark's reader gets in by a keytab, and librdkafka where it is built with Kerberos."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaException, Producer

from precede.ingest.kafka import topics
from precede.streaming import settings
from precede.udfs.errors import Refused
from tests.door.command import ROOT, precede
from tests.system.kerberos import JOB, SERVICE, Realm, missing

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(missing() is not None, reason=f"there can be no realm here, for {missing()}"),
]

READ = """
import sys
from pathlib import Path
from precede.ingest.kafka.access import Access, Address
from precede.ingest.kafka.clients import spark_options
from precede.streaming.spark import jars, session
from precede.streaming.settings import Settings
bootstrap, principal, keytab, service, logs = sys.argv[1:]
known = {"principal": principal, "keytab": keytab, "service.name": service}
table = tuple((f"sasl.kerberos.{name}", value) for name, value in known.items())
address = Address(bootstrap, Access(protocol="SASL_PLAINTEXT", mechanism="GSSAPI", more=table))
spark = session.start(Settings(master="local[1]"), jars.ensure("spark"), Path(logs))
rows = spark.read.format("kafka").options(**spark_options(address)).option("subscribe", "guarded.raw").load().collect()
print([bytes(row.value) for row in rows])
spark.stop()
"""


@pytest.fixture(scope="module")
def realm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Realm]:
    with Realm(tmp_path_factory.mktemp("realm")).running() as running:
        topics.ensure(running.broker.bootstrap, [topics.raw("guarded.raw", 1)])
        producer = Producer({"bootstrap.servers": running.broker.bootstrap})
        producer.produce("guarded.raw", b"hello", b"travel")
        assert producer.flush(30) == 0
        yield running


@pytest.mark.parametrize("principal", [JOB, JOB.replace("the-job", "a-stranger")], ids=["known", "unknown"])
def test_spark_s_reader_gets_in_by_the_keytab_of_the_table(realm: Realm, tmp_path: Path, principal: str) -> None:
    arguments = (realm.bootstrap, principal, str(realm.job_keytab), SERVICE, str(tmp_path / "logs"))
    options = f"{os.environ.get('JAVA_TOOL_OPTIONS', '')} {realm.java_option}"
    done = subprocess.run(
        [sys.executable, "-c", READ, *arguments],
        cwd=ROOT,
        env=os.environ | {"JAVA_TOOL_OPTIONS": options},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    if principal == JOB:
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines()[-1] == "[b'hello']"
    else:
        assert done.returncode != 0
        assert "Unable to obtain password from user" in done.stderr or "LoginException" in done.stderr


def config(realm: Realm, folder: Path) -> Path:
    path = folder / "precede.toml"
    path.write_text(
        f'bootstrap = "{realm.bootstrap}"\nsecurity_protocol = "SASL_PLAINTEXT"\nsasl_mechanism = "GSSAPI"\n'
        f'raw_topic = "guarded.raw"\nstate = "{folder / "state"}"\n'
        f'[kafka]\n"sasl.kerberos.service.name" = "{SERVICE}"\n'
        f'"sasl.kerberos.principal" = "{JOB}"\n"sasl.kerberos.keytab" = "{realm.job_keytab}"\n'
    )
    return path


def test_librdkafka_gets_in_where_it_is_built_with_kerberos_and_else_a_sentence_says_so(
    realm: Realm, tmp_path: Path
) -> None:
    path = config(realm, tmp_path)
    try:
        Producer({"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "GSSAPI", "log_level": 0})
    except KafkaException:
        with pytest.raises(Refused, match="this confluent-kafka was built without Kerberos: install librdkafka with"):
            settings.load({}, {}, path)
        return
    done = precede("send", "travel", "ann", "hello", "--config", path, variables={"KRB5_CONFIG": str(realm.config)})
    assert done.returncode == 0, done.stderr
