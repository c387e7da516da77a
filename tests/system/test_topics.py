"""The topics that precede creates, and the settings it refuses."""

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

from precede.ingest.kafka import clients, topics
from precede.ingest.kafka.topics import Retention, Wanted, retention_of
from precede.ingest.producer import Publisher
from precede.local.embedded_broker import Broker
from precede.udfs.errors import Refused, Unreachable
from precede.udfs.limits import Limits
from tests.door.command import precede


@pytest.fixture
def admin(broker: Broker) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.bootstrap})


def six(limits: Limits = topics.DEFAULTS) -> list[Wanted]:
    """The six topics of a stream under unique names."""
    name = f"t{uuid.uuid4().hex[:8]}"
    return topics.wanted(
        raw_topic=f"{name}.raw",
        ordered_topic=f"{name}.ordered",
        dead_letter_topic=f"{name}.dead-letters",
        progress_topic=f"{name}.progress",
        control_topic=f"{name}.control",
        state_topic=f"{name}.state",
        limits=limits,
    )


def settings_of(admin: AdminClient, name: str) -> dict[str, str]:
    resource = ConfigResource(ResourceType.TOPIC, name)
    return {entry.name: entry.value for entry in admin.describe_configs([resource])[resource].result().values()}


def make(admin: AdminClient, name: str, config: dict[str, str]) -> None:
    admin.create_topics([NewTopic(name, 1, 1, config=config)], operation_timeout=10)[name].result()


def test_absent_topics_are_made_with_the_settings_the_promises_rest_on(broker: Broker, admin: AdminClient) -> None:
    wanted = six()
    topics.ensure(broker.bootstrap, wanted)
    raw, ordered, dead_letters, progress, control, state = (settings_of(admin, topic.name) for topic in wanted)
    assert raw["message.timestamp.type"] == "LogAppendTime"
    assert (raw["retention.ms"], raw["retention.bytes"]) == ("-1", "-1")
    assert int(raw["max.message.bytes"]) > 512 * 1024
    assert int(ordered["max.message.bytes"]) >= 2 * 1024 * 1024
    assert int(dead_letters["max.message.bytes"]) >= 2 * 1024 * 1024
    assert progress["cleanup.policy"] == "compact"
    assert int(progress["segment.bytes"]) <= 4 * 1024 * 1024, "a topic without compaction is read whole at each start"
    assert control["cleanup.policy"] == "delete"
    assert state["cleanup.policy"] == "compact"
    assert len(admin.list_topics(timeout=10).topics[wanted[0].name].partitions) == topics.PARTITIONS


@pytest.mark.parametrize(("partitions", "count"), [(1, "1 partition"), (3, "3 partitions")])
def test_who_makes_the_raw_topic_is_told_once_that_its_partitions_are_final(
    broker: Broker, partitions: int, count: str
) -> None:
    name = f"t{uuid.uuid4().hex[:8]}"
    wanted = [topics.raw(f"{name}.raw", partitions), topics.ordered(f"{name}.ordered", partitions)]
    said: list[str] = []
    for _ in range(2):
        topics.ensure(broker.bootstrap, wanted, say=said.append)
    (sentence,) = said
    assert sentence == (
        f"The topic {name}.raw has been created with {count}. This number is final, and it is the most jobs that can "
        "share the work."
    )


def test_topics_that_are_right_are_left_as_they_are(broker: Broker, admin: AdminClient) -> None:
    wanted = six()
    topics.ensure(broker.bootstrap, wanted)
    before = [settings_of(admin, topic.name) for topic in wanted]
    topics.ensure(broker.bootstrap, wanted)
    assert [settings_of(admin, topic.name) for topic in wanted] == before


@pytest.mark.parametrize(
    ("which", "wrong", "mend"),
    [
        (0, {"message.timestamp.type": "CreateTime"}, "message.timestamp.type=LogAppendTime"),
        (0, {"cleanup.policy": "compact"}, "cleanup.policy=delete"),
        (0, {"max.message.bytes": "524288"}, "max.message.bytes=2162688"),
        (1, {"max.message.bytes": "524800"}, "max.message.bytes=2162688"),
        (2, {"max.message.bytes": "400000"}, "max.message.bytes=2162688"),
        (2, {"cleanup.policy": "compact"}, "cleanup.policy=delete"),
        (3, {"cleanup.policy": "delete"}, "cleanup.policy=compact"),
        (5, {"cleanup.policy": "delete"}, "cleanup.policy=compact"),
        (5, {"max.message.bytes": "1000"}, "max.message.bytes=2162688"),
    ],
)
def test_a_wrong_setting_is_refused_with_the_command_that_mends_it(
    broker: Broker, admin: AdminClient, which: int, wrong: dict[str, str], mend: str
) -> None:
    topic = six()[which]
    make(admin, topic.name, topic.settings | wrong)
    with pytest.raises(Refused) as refusal:
        topics.ensure(broker.bootstrap, [topic])
    command = f"kafka-configs.sh --bootstrap-server {broker.bootstrap} --alter --entity-type topics --entity-name "
    assert str(refusal.value).endswith(f"{command}{topic.name} --add-config {mend}")


def test_a_state_topic_with_other_partitions_than_the_raw_topic_is_refused(broker: Broker, admin: AdminClient) -> None:
    raw, *_, state = six()
    topics.ensure(broker.bootstrap, [raw])
    make(admin, state.name, state.settings)
    with pytest.raises(Refused, match=rf"{state.name} has 1 partition, but {raw.name} has 4, .* another state_topic"):
        topics.ensure(broker.bootstrap, [raw, state])


def test_the_command_that_mends_a_topic_does_so(broker: Broker, admin: AdminClient) -> None:
    topic = six()[0]
    make(admin, topic.name, {"retention.ms": "1000", "message.timestamp.type": "CreateTime"})
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


LOG = {"message.timestamp.type": "LogAppendTime"}
"""What a raw topic must have, and no broker gives it by itself."""


@pytest.mark.parametrize(
    ("config", "retention", "told"),
    [
        ({"retention.ms": "-1"}, Retention(None, None), "for ever"),
        ({}, Retention(604_800_000, None), "7 days"),
        ({"retention.ms": "90000", "retention.bytes": "1048576"}, Retention(90_000, 1_048_576),
         "90 seconds or 1,048,576 bytes of a partition"),
        ({"retention.ms": "1500"}, Retention(1_500, None), "1,500 ms"),
    ],
)  # fmt: skip
def test_a_raw_topic_may_have_a_retention(
    broker: Broker, admin: AdminClient, config: dict[str, str], retention: Retention, told: str
) -> None:
    topic = six()[0]
    make(admin, topic.name, LOG | config)
    topics.ensure(broker.bootstrap, [topic])
    found = retention_of(broker.bootstrap, topic.name)
    assert (found, str(found)) == (retention, told)


def test_topics_made_with_a_broker_s_defaults_are_not_refused_for_their_size(
    broker: Broker, admin: AdminClient
) -> None:
    wanted = six()
    raw, ordered, dead_letters, progress, control, state = (topic.name for topic in wanted)
    make(admin, raw, LOG)
    for name in (ordered, dead_letters, control):
        make(admin, name, {})
    for name in (progress, state):
        make(admin, name, {"cleanup.policy": "compact"})
    assert {settings_of(admin, name)["max.message.bytes"] for name in (raw, ordered, dead_letters)} == {"1048588"}
    topics.ensure(broker.bootstrap, wanted)


def test_a_raw_topic_made_with_a_broker_s_defaults_is_told_what_it_needs(broker: Broker, admin: AdminClient) -> None:
    topic = six()[0]
    make(admin, topic.name, {})
    with pytest.raises(Refused) as refusal:
        topics.ensure(broker.bootstrap, [topic])
    mend = str(refusal.value).split("--add-config ")[1]
    assert mend == "message.timestamp.type=LogAppendTime"


def test_limits_that_allow_more_than_a_topic_takes_have_it_refused(broker: Broker, admin: AdminClient) -> None:
    larger = {topic.name: topic for topic in six(Limits(record_bytes_max=1_100_000))}
    raw, ordered = list(larger)[:2]
    make(admin, raw, LOG)
    make(admin, ordered, {})
    for name in (raw, ordered):
        with pytest.raises(Refused, match=rf"{name} has max\.message\.bytes=1048588.* max\.message\.bytes=2162688$"):
            topics.ensure(broker.bootstrap, [larger[name]])


def test_smaller_limits_allow_smaller_topics(broker: Broker, admin: AdminClient) -> None:
    raw, ordered, *_ = six(Limits(record_bytes_max=100_000))
    make(admin, raw.name, {**LOG, "max.message.bytes": "110000"})
    make(admin, ordered.name, {"max.message.bytes": "110000"})
    topics.ensure(broker.bootstrap, [raw, ordered])


@pytest.mark.parametrize("size", [524_288, 1_000])
def test_what_is_sent_fits_the_smallest_raw_topic_that_is_not_refused(
    broker: Broker, admin: AdminClient, size: int
) -> None:
    topic = six()[0]
    make(admin, topic.name, topic.settings | {"max.message.bytes": str(topic.at_least["max.message.bytes"])})
    topics.ensure(broker.bootstrap, [topic])
    with Publisher(broker.bootstrap, topic=topic.name) as publisher:
        for _ in range(2_000_000 // size):  # more than a batch has
            publisher.publish("g" * 255, b"x" * size)
        publisher.flush()


def test_a_topic_that_is_refused_stops_the_job_with_that_sentence(broker: Broker, admin: AdminClient) -> None:
    names = {f"PRECEDE_{name.upper()}_TOPIC": f"x{uuid.uuid4().hex[:8]}" for name in ("raw", "ordered")}
    make(admin, names["PRECEDE_RAW_TOPIC"], {})
    done = precede("run", "--bootstrap", broker.bootstrap, variables=names)
    assert done.returncode == 1
    assert f"--entity-name {names['PRECEDE_RAW_TOPIC']} --add-config " in done.stderr.decode()
    assert done.stderr.count(b"\n") == 1


def test_a_broker_that_is_away_is_waited_for_and_said_so_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics, "REACH_S_MAX", 0.5)
    monkeypatch.setattr(clients, "LISTEN_S", 0.5)
    said: list[str] = []
    with pytest.raises(Unreachable, match=r"Cannot reach Kafka at 127\.0\.0\.1:1\."):
        topics.ensure_patiently("127.0.0.1:1", six(), patience_s=1, say=said.append)
    assert len(said) == 1
    assert "Trying again" in said[0]
