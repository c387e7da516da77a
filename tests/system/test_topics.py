"""The topics precede makes, and the settings it refuses."""

import uuid

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its types forget to export them
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from ingest.kafka import topics
from ingest.kafka.topics import Wanted
from precede.embedded_broker import Broker
from tests.door.command import precede
from udfs.errors import Refused, Unreachable


@pytest.fixture
def admin(broker: Broker) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.bootstrap})


def five() -> list[Wanted]:
    """The five topics under names of their own."""
    name = f"t{uuid.uuid4().hex[:8]}"
    return topics.wanted(
        raw_topic=f"{name}.raw",
        ordered_topic=f"{name}.ordered",
        dead_letter_topic=f"{name}.dead-letters",
        progress_topic=f"{name}.progress",
        control_topic=f"{name}.control",
    )


def settings_of(admin: AdminClient, name: str) -> dict[str, str]:
    resource = ConfigResource(ResourceType.TOPIC, name)
    return {entry.name: entry.value for entry in admin.describe_configs([resource])[resource].result().values()}


def make(admin: AdminClient, name: str, config: dict[str, str]) -> None:
    admin.create_topics([NewTopic(name, 1, 1, config=config)], operation_timeout=10)[name].result()


def test_absent_topics_are_made_with_the_settings_the_promises_rest_on(broker: Broker, admin: AdminClient) -> None:
    wanted = five()
    topics.ensure(broker.bootstrap, wanted)
    raw, ordered, dead_letters, progress, control = (settings_of(admin, topic.name) for topic in wanted)
    assert raw["message.timestamp.type"] == "LogAppendTime"
    assert (raw["retention.ms"], raw["retention.bytes"]) == ("-1", "-1")
    assert int(raw["max.message.bytes"]) > 512 * 1024
    assert int(ordered["max.message.bytes"]) >= 2 * 1024 * 1024
    assert int(dead_letters["max.message.bytes"]) >= 2 * 1024 * 1024
    assert progress["cleanup.policy"] == "compact"
    assert int(progress["segment.bytes"]) <= 4 * 1024 * 1024, "what is not compacted is read at each start"
    assert control["cleanup.policy"] == "delete"
    assert len(admin.list_topics(timeout=10).topics[wanted[0].name].partitions) == topics.PARTITIONS


def test_topics_that_are_right_are_left_as_they_are(broker: Broker, admin: AdminClient) -> None:
    wanted = five()
    topics.ensure(broker.bootstrap, wanted)
    before = [settings_of(admin, topic.name) for topic in wanted]
    topics.ensure(broker.bootstrap, wanted)
    assert [settings_of(admin, topic.name) for topic in wanted] == before


@pytest.mark.parametrize(
    ("which", "wrong", "mend"),
    [
        (0, {"message.timestamp.type": "CreateTime"}, "message.timestamp.type=LogAppendTime"),
        (0, {"retention.ms": "1000"}, "retention.ms=-1"),
        (0, {"cleanup.policy": "compact"}, "cleanup.policy=delete"),
        (1, {"max.message.bytes": "1000000"}, "max.message.bytes=2097152"),
        (2, {"cleanup.policy": "compact"}, "cleanup.policy=delete"),
        (3, {"cleanup.policy": "delete"}, "cleanup.policy=compact"),
    ],
)
def test_a_wrong_setting_is_refused_with_the_command_that_mends_it(
    broker: Broker, admin: AdminClient, which: int, wrong: dict[str, str], mend: str
) -> None:
    topic = five()[which]
    make(admin, topic.name, topic.settings | wrong)
    with pytest.raises(Refused) as refusal:
        topics.ensure(broker.bootstrap, [topic])
    command = f"kafka-configs.sh --bootstrap-server {broker.bootstrap} --alter --entity-type topics --entity-name "
    assert str(refusal.value).endswith(f"{command}{topic.name} --add-config {mend}")


def test_the_command_that_mends_a_topic_does_so(broker: Broker, admin: AdminClient) -> None:
    topic = five()[0]
    make(admin, topic.name, {"retention.ms": "1000"})
    with pytest.raises(Refused) as refusal:
        topics.ensure(broker.bootstrap, [topic])
    config = str(refusal.value).split("--add-config ")[1]
    changes = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        for name, value in (pair.split("=") for pair in config.split(","))
    ]
    resource = ConfigResource(ResourceType.TOPIC, topic.name, incremental_configs=changes)
    admin.incremental_alter_configs([resource])[resource].result()
    topics.ensure(broker.bootstrap, [topic])


def test_a_topic_that_is_refused_stops_the_job_with_that_sentence(broker: Broker, admin: AdminClient) -> None:
    names = {f"PRECEDE_{name.upper()}_TOPIC": f"x{uuid.uuid4().hex[:8]}" for name in ("raw", "ordered")}
    make(admin, names["PRECEDE_RAW_TOPIC"], {})
    done = precede("run", "--bootstrap", broker.bootstrap, variables=names)
    assert done.returncode == 1
    assert f"--entity-name {names['PRECEDE_RAW_TOPIC']} --add-config " in done.stderr.decode()
    assert done.stderr.count(b"\n") == 1


def test_a_broker_that_is_away_is_waited_for_and_said_so_once() -> None:
    said: list[str] = []
    with pytest.raises(Unreachable, match=r"Cannot reach Kafka at 127\.0\.0\.1:1\."):
        topics.ensure_patiently("127.0.0.1:1", five(), patience_s=1, say=said.append)
    assert len(said) == 1
    assert "Trying again" in said[0]
