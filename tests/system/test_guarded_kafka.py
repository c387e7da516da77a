"""TLS, passwords and access rules: every client and the job, against a broker that requires all three."""

import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
from pyspark.sql import SparkSession

from bench.small_job import SmallJob
from precede.ingest.epochs import free_epoch
from precede.ingest.kafka import clients, topics
from precede.ingest.kafka.access import Access, Address, access_to
from precede.ingest.kafka.log_readers import KafkaPythonReader, open_reader
from precede.ingest.producer import Publisher
from precede.member import background
from precede.member.member import Member
from precede.reading.following import follow
from precede.streaming import settings
from precede.streaming.settings import Settings
from precede.udfs.errors import AccessDenied
from precede.udfs.records.wire import encode_message
from tests.door.command import precede
from tests.system.guarded import (
    CONSUMER_GROUPS,
    DESCRIBE,
    JOB,
    MEMBER,
    PASSWORD,
    READ,
    SENDER,
    SENDER_AND_READER,
    SPEAKER,
    STRANGER,
    WRITE,
    Guarded,
    on_topic,
)
from tests.system.stream import Stream


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    stage = Guarded(tmp_path_factory.mktemp("guarded"))
    with stage.broker:
        stage.set_the_stage()
        yield stage


@pytest.fixture
def config(guarded: Guarded, tmp_path: Path) -> Path:
    """The access settings as a user writes them."""
    path = tmp_path / "precede.toml"
    path.write_text(
        f'bootstrap = "{guarded.bootstrap}"\n'
        'security_protocol = "SASL_SSL"\n'
        f'sasl_username = "{JOB}"\n'
        f'sasl_password_file = "{guarded.password_file}"\n'
        f'ssl_ca_file = "{guarded.ca_file}"\n'
    )
    return path


def address(guarded: Guarded, **more: str) -> Address:
    fields: dict[str, Any] = {
        "username": JOB,
        "password": PASSWORD,
        "mechanism": "SCRAM-SHA-512",
        "ca": guarded.ca_file.read_text(),
    }
    return Address(guarded.bootstrap, Access(protocol="SASL_SSL", **(fields | more)))


def wait_until(true: Callable[[], object], seconds: float = 15) -> None:
    """Wait until the condition holds, or the time is over."""
    deadline = time.monotonic() + seconds
    while not true() and time.monotonic() < deadline:
        time.sleep(0.1)


def test_what_is_sent_is_ordered_kept_and_read_and_the_password_shows_nowhere(
    guarded: Guarded, config: Path, spark: SparkSession, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    found = settings.load({}, {}, config)
    stream = Stream(found.bootstrap, tmp_path)
    names = {"PRECEDE_RAW_TOPIC": stream.settings.raw_topic, "PRECEDE_ORDERED_TOPIC": stream.settings.ordered_topic}
    told = [precede("send", "g", "ann", "one", "--config", config, "--state", tmp_path / "s", variables=names)]
    with Publisher(found.bootstrap, topic=stream.settings.raw_topic) as publisher:
        publisher.publish("g", b'{"group":"g","sender":"bob","seq":1,"after":[["ann",0,2]],"data":"three"}')
        publisher.publish("g", b'{"group":"g","sender":"ann","seq":2,"after":[["ann",0,1]],"data":"two"}')
    said = stream.once(spark)
    told.append(precede("tail", "g", "--from-beginning", "--json", "--count", "3", "--config", config, variables=names))
    assert [done.returncode for done in told] == [0, 0], told
    assert [json.loads(line)["data"] for line in told[1].stdout.splitlines()] == ["one", "two", "three"]
    for client in ("confluent", "kafka-python"):
        with follow(
            "g", bootstrap=found.bootstrap, topic=stream.settings.ordered_topic, patience_s=5, client=client
        ) as reader:
            assert [next(reader).data for _ in range(3)] == ["one", "two", "three"]
    assert [row["data"] for row in stream.table("deliveries")] == ['"one"', '"two"', '"three"']

    secrets = [PASSWORD, PASSWORD.replace("\\", "\\\\").replace('"', '\\"')]
    shown = "\n".join([*said, repr(found), repr(found.bootstrap), *(str(done) for done in told)])
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # a process that ends meanwhile
            shown += "\n" + " ".join(process.cmdline())
    logs = [path for path in tmp_path_factory.getbasetemp().glob("spark*/*") if path.is_file()]
    assert "spark.log" in [path.name for path in logs]
    written = [path.read_bytes() for path in (*tmp_path.rglob("*"), *logs) if path.is_file() and path != config]
    for secret in secrets:
        assert secret not in shown
        assert not any(secret.encode() in text for text in written)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (
            {"password": "a-guess"},
            f"rejected the credentials of '{JOB}': the name, the password or the sasl_mechanism is wrong",
        ),
        ({"username": "nobody"}, "rejected the credentials of 'nobody'"),
        ({"mechanism": "SCRAM-SHA-256"}, "does not accept the sasl_mechanism SCRAM-SHA-256"),
    ],
)
def test_who_is_kept_out_is_told_why(guarded: Guarded, wrong: dict[str, str], sentence: str) -> None:
    refused = clients.unreachable(address(guarded, **wrong))
    assert isinstance(refused, AccessDenied)
    assert sentence in str(refused)
    assert wrong.get("password", PASSWORD) not in str(refused)


def test_a_certificate_of_an_unknown_authority_is_not_trusted(guarded: Guarded) -> None:
    refused = clients.unreachable(address(guarded, ca=guarded.other_ca_file.read_text()))
    assert isinstance(refused, AccessDenied)
    assert "cannot be trusted, or none: ssl_ca_file must name" in str(refused)
    assert str(refused).endswith("(certificate verify failed).")


def test_a_wrong_password_ends_a_command_at_once_with_one_sentence(guarded: Guarded, config: Path) -> None:
    done = precede("run", "--once", "--config", config, variables={"PRECEDE_SASL_PASSWORD": "not-it"})
    assert done.returncode == 1
    assert b"rejected the credentials of 'the-job'" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert b"not-it" not in done.stdout + done.stderr


def test_who_lacks_an_access_rule_is_told_which_name_lacks_it(guarded: Guarded) -> None:
    stranger = address(guarded, username=STRANGER)
    with pytest.raises(AccessDenied, match="refused to create the topic .* rules do not allow this to 'stranger'"):
        topics.ensure(stranger, [topics.raw("secret.raw")])
    topics.ensure(guarded.broker.bootstrap, [topics.raw("secret.raw")])
    publisher = Publisher(stranger, topic="secret.raw")
    publisher.publish("g", b"{}")
    with pytest.raises(AccessDenied, match="do not allow this to 'stranger'"):
        publisher.flush()


def test_a_sender_with_the_rules_that_are_written_down_finds_every_epoch_it_has_used(guarded: Guarded) -> None:
    topics.ensure(guarded.broker.bootstrap, [topics.raw("spoken.raw")])
    with Publisher(guarded.broker.bootstrap, topic="spoken.raw") as publisher:
        for epoch in range(3):
            publisher.publish("g", encode_message("g", "ann", epoch, 1, after=[]))
    speaker = address(guarded, username=SPEAKER)
    guarded.allow(SPEAKER, on_topic("spoken.raw", WRITE, DESCRIBE))
    with pytest.raises(
        AccessDenied, match=r"did not allow reading spoken\.raw: .* to 'speaker', who needs Read and Describe"
    ):
        free_epoch(speaker, "spoken.raw", "g", "ann", None)
    guarded.allow(SPEAKER, on_topic("spoken.raw", *SENDER))
    assert [free_epoch(speaker, "spoken.raw", "g", "ann", None) for _ in range(10)] == [3] * 10


def test_a_member_needs_the_rules_that_are_written_down_and_is_told_which_one_lacks(
    guarded: Guarded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def said() -> list[str]:
        return [one.message for one in caplog.records if one.name == "precede"]

    monkeypatch.setattr(background, "RETRY_S", 0.5)
    topics.ensure(guarded.broker.bootstrap, topics.wanted())
    guarded.allow(MEMBER, *SENDER_AND_READER)
    where: dict[str, Any] = {"bootstrap": address(guarded, username=MEMBER), "state": tmp_path / "ann.json"}
    lacking = r"did not allow reading precede\.{}: .* to 'ann', who needs Read and Describe on that topic\."
    with pytest.raises(AccessDenied, match=lacking.format("progress")):
        Member("g", "ann", **where)
    guarded.allow(MEMBER, on_topic("precede.progress", *READ))
    for client in ("confluent", "kafka-python"):
        caplog.clear()
        with Member("g", "ann", **where, client=client) as ann:
            assert ann.send("hello")[0] == "ann"
            wait_until(said)
            time.sleep(3 * background.RETRY_S)  # in which it would repeat the sentence
        assert [re.search(lacking.format("control"), one) is not None for one in said()] == [True]
        assert "lost messages of ann to g are not sent again" in said()[0]
    guarded.allow(MEMBER, on_topic("precede.control", *READ))
    caplog.clear()
    with Member("g", "ann", **where):
        time.sleep(2)
    assert said() == []


def test_a_live_reader_needs_the_rules_that_are_written_down_and_is_told_which_one_lacks(guarded: Guarded) -> None:
    name = {kind: f"alive.{kind}" for kind in ("raw", "ordered", "dead-letters", "progress", "control", "state")}
    settings = Settings(
        bootstrap=address(guarded),
        raw_topic=name["raw"],
        ordered_topic=name["ordered"],
        dead_letter_topic=name["dead-letters"],
        progress_topic=name["progress"],
        control_topic=name["control"],
        partitions=1,
    )
    topics.ensure(settings.bootstrap, settings.topics())
    SmallJob(settings).close()
    with Publisher(settings.bootstrap, topic=name["raw"]) as publisher:
        publisher.publish("g", b'{"group":"g","sender":"ann","seq":1,"after":[]}')
    guarded.allow(STRANGER, on_topic(name["ordered"], *READ), CONSUMER_GROUPS)
    reader: dict[str, Any] = {"bootstrap": address(guarded, username=STRANGER), "config": settings, "live": True}
    for kind in ("progress", "raw", "state"):
        with (
            follow(**reader) as follower,
            pytest.raises(AccessDenied, match=rf"alive\.{kind}: .* to 'stranger', who needs Read and Describe"),
        ):
            wait_until(partial(follower.poll, 0.2))
        guarded.allow(STRANGER, on_topic(name[kind], *READ))
    with follow(**reader) as follower:
        found = list(iter(partial(follower.poll, 3.0), None))
    assert [one.position for one in found] == [1]


def test_who_may_see_a_topic_but_not_read_it_is_told_so_by_either_client(guarded: Guarded) -> None:
    topics.ensure(guarded.broker.bootstrap, [topics.raw("seen.raw")])
    with Publisher(guarded.broker.bootstrap, topic="seen.raw") as publisher:
        publisher.publish("g", b"{}")
    guarded.allow(STRANGER, on_topic("seen.raw", DESCRIBE))
    for client in ("confluent", "kafka-python"):
        reader = open_reader(client, address(guarded, username=STRANGER))
        reader.assign("seen.raw", reader.starts("seen.raw", at_end=False, timeout_s=1))
        with pytest.raises(AccessDenied, match=r"did not allow reading seen\.raw: .* needs Read and Describe"):
            wait_until(partial(reader.read, 0.2))
        reader.close()


def test_who_may_read_the_topic_but_not_join_the_consumer_group_is_told_so(guarded: Guarded) -> None:
    topics.ensure(guarded.broker.bootstrap, [topics.output("shared.ordered")])
    guarded.allow(STRANGER, on_topic("shared.ordered", *READ))
    where = address(guarded, username=STRANGER)
    with (
        follow(bootstrap=where, topic="shared.ordered", consumer_group="theirs") as follower,
        pytest.raises(AccessDenied, match="to 'stranger', who needs Read on the consumer group"),
    ):
        wait_until(partial(follower.poll, 0.2))


def test_a_plain_password_over_tls_is_enough_where_the_broker_takes_it(guarded: Guarded) -> None:
    plain = address(guarded, mechanism="PLAIN", username="plain", password="plain-password")
    assert isinstance(topics.names(clients.admin(plain), plain), dict)


def test_a_certificate_of_one_s_own_opens_the_door_to_every_client_and_its_key_shows_nowhere(
    guarded: Guarded, spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "precede.toml"
    config.write_text(
        f'bootstrap = "{guarded.certified}"\nsecurity_protocol = "SSL"\nssl_ca_file = "{guarded.ca_file}"\n'
        f'ssl_certificate_file = "{guarded.certificate_file}"\nssl_key_file = "{guarded.key_file}"\n'
    )
    found = settings.load({}, {}, config)
    topics.ensure(found.bootstrap, [topics.raw("certified.raw")])
    with Publisher(found.bootstrap, topic="certified.raw") as publisher:
        publisher.publish("g", b'{"group":"g","sender":"ann","seq":1,"after":[]}')
    options = clients.spark_options(found.bootstrap)
    frame = spark.read.format("kafka").options(**options, subscribe="certified.raw").load()
    assert [row.key for row in frame.select("key").collect()] == [b"g"]
    python = KafkaPythonReader(found.bootstrap)
    assert sum(python.starts("certified.raw", at_end=True, timeout_s=5).values()) == 1
    python.close()

    frame.explain(extended=True)
    shown = capsys.readouterr().out + repr(found) + repr(access_to(found.bootstrap))
    assert "certified.raw" in shown
    for line in guarded.key_file.read_text().splitlines()[1:-1]:
        assert line not in shown


def test_who_brings_no_certificate_where_one_is_asked_for_is_told_so(guarded: Guarded) -> None:
    refused = clients.unreachable(Address(guarded.certified, Access(protocol="SSL", ca=guarded.ca_file.read_text())))
    assert isinstance(refused, AccessDenied)
    assert "asks for a client certificate: set ssl_certificate_file and ssl_key_file" in str(refused)
