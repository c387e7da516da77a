"""`precede send` and the producer behind it, against a real broker."""

import json
import uuid
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import msgspec
import pytest
from confluent_kafka import Producer
from kafka.partitioner.default import murmur2

from precede import Groups, Member
from precede.ingest.epochs import free_epoch
from precede.ingest.kafka import topics
from precede.ingest.kafka.log_readers import open_reader
from precede.ingest.kafka.topics import Wanted
from precede.ingest.producer import Publisher
from precede.ingest.sender_state import opened
from precede.ingest.sending import StreamTopicNames, send_one
from precede.local.embedded_broker import Broker
from precede.streaming.job import job
from precede.udfs.errors import Refused
from precede.udfs.holdback import Holdback
from precede.udfs.partitioner import PARTITIONERS, partition_of
from precede.udfs.records.messages import LogRecord
from precede.udfs.records.wire import encode_message
from tests.door.command import precede
from tests.signing import private
from tests.system.stream import Stream


class Sender:
    """`precede send` to its own raw topic and with its own state file."""

    def __init__(self, broker: Broker, state: Path) -> None:
        self.bootstrap = broker.bootstrap
        self.topic = f"raw{uuid.uuid4().hex[:8]}"
        self.state = state

    def send(self, *arguments: str) -> str:
        topics.ensure(self.bootstrap, [topics.raw(self.topic)])
        done = self.run(*arguments)
        assert (done.returncode, done.stderr) == (0, b"")
        return done.stdout.decode().removesuffix("\n")

    def run(self, *arguments: str) -> CompletedProcess[bytes]:
        return precede(
            "send",
            *arguments,
            "--bootstrap",
            self.bootstrap,
            "--state",
            self.state,
            variables={"PRECEDE_RAW_TOPIC": self.topic},
        )

    def log(self) -> list[Any]:
        return [json.loads(record.value or b"") for record in read(self.bootstrap, self.topic)]


def read(bootstrap: str, topic: str) -> list[LogRecord]:
    """All records of a topic."""
    reader = open_reader("confluent", bootstrap)
    reader.assign(topic, reader.starts(topic, at_end=False, timeout_s=1))
    ends = sum(reader.starts(topic, at_end=True, timeout_s=1).values())
    found: list[LogRecord] = []
    while len(found) < ends:
        found += reader.read(1)
    reader.close()
    return found


@pytest.fixture
def sender(broker: Broker, tmp_path: Path) -> Sender:
    return Sender(broker, tmp_path / "senders.json")


def test_a_message_is_sent_with_its_stamp_and_its_id_is_printed(sender: Sender) -> None:
    assert sender.send("travel", "ann", "Who comes?") == "ann:1"
    assert sender.send("travel", "bob", "--after", "ann:1", "Me!") == "bob:1"
    assert sender.send("travel", "ann", "--after", '["bob",0,1]', "--json", '{"n": 1.50}') == "ann:2"
    assert [(record["sender"], record["seq"], record["after"], record["data"]) for record in sender.log()] == [
        ("ann", 1, [], "Who comes?"),
        ("bob", 1, [["ann", 0, 1]], "Me!"),
        ("ann", 2, [["bob", 0, 1]], {"n": 1.5}),
    ]


def test_the_topic_send_makes_is_one_the_job_accepts_and_its_partitions_are_said_to_be_final(sender: Sender) -> None:
    first, second = sender.run("travel", "ann", "Hello"), sender.run("travel", "ann", "Again")
    assert first.stderr.decode() == (
        f"The topic {sender.topic} has been created with {topics.PARTITIONS} partitions. This number is final, and it "
        "is the most jobs that can share the work.\n"
    )
    assert (first.stdout, second.stdout, second.stderr) == (b"ann:1\n", b"ann:2\n", b"")
    topics.ensure(sender.bootstrap, [topics.raw(sender.topic)])


def test_whatever_makes_the_raw_topic_says_that_its_partitions_are_final(sender: Sender) -> None:
    where: dict[str, Any] = {"bootstrap": sender.bootstrap, "state": sender.state}
    first, second = f"{sender.topic}.member", f"{sender.topic}.groups"
    with pytest.warns(UserWarning, match=rf"{first} has been created with .* This number is final") as said:
        Member("g", "ann", raw_topic=first, **where).close()
    with pytest.warns(UserWarning, match=rf"{second} has been created with .* This number is final") as also:
        Groups("ann", raw_topic=second, **where).close()
    assert {one.filename for one in [*said, *also]} == {__file__}, "the warning names the caller's line"


@pytest.mark.parametrize("arguments", [("send", "g", "ann", "Hello"), ("groups", "create", "g", "ann", "--wait", "0")])
def test_a_command_creates_the_raw_topic_as_the_settings_say_and_tells_so_in_a_plain_sentence(
    sender: Sender, arguments: tuple[str, ...]
) -> None:
    variables = {"PRECEDE_RAW_TOPIC": sender.topic, "PRECEDE_STATE": str(sender.state), "PRECEDE_PARTITIONS": "3"}
    done = precede(*arguments, "--bootstrap", sender.bootstrap, variables=variables)
    assert done.returncode == 0
    assert done.stderr.decode().splitlines()[0] == (
        f"The topic {sender.topic} has been created with 3 partitions. This number is final, and it is the most jobs "
        "that can share the work."
    )


def test_a_lost_state_file_means_a_new_epoch_and_not_a_seq_used_twice(sender: Sender) -> None:
    sender.send("travel", "ann", "one")
    sender.state.unlink()
    assert sender.send("travel", "ann", "two") == "ann@1:1"
    sender.state.unlink()
    assert sender.send("travel", "ann", "three") == "ann@2:1"
    assert sender.send("travel", "bob", "never heard of before") == "bob:1"
    assert sender.send("trip", "ann", "another group") == "ann:1"


def test_who_is_new_begins_with_epoch_0_however_many_partitions_there_are(sender: Sender) -> None:
    topics.ensure(sender.bootstrap, [topics.raw(sender.topic, 16)])
    with Publisher(sender.bootstrap, topic=sender.topic) as publisher:
        for number in range(100):
            publisher.publish(f"group {number}", b'{"kind":"tick"}')
    assert sender.send("travel", "ann", "Who comes?") == "ann:1"


@pytest.mark.parametrize("partitioner", PARTITIONERS)
def test_a_record_outside_the_group_s_partition_takes_no_epoch(sender: Sender, partitioner: str) -> None:
    topics.ensure(sender.bootstrap, [topics.raw(sender.topic, 5)])
    its = partition_of(b"g", 5, partitioner)
    producer = Producer({"bootstrap.servers": sender.bootstrap})
    for partition in range(5):
        epoch = 3 if partition == its else 7
        producer.produce(sender.topic, encode_message("g", "ann", epoch, 1, after=[]), b"g", partition)
    assert producer.flush(30) == 0
    assert free_epoch(sender.bootstrap, sender.topic, "g", "ann", None, partitioner=partitioner) == 4


def test_one_planted_record_takes_the_epochs_of_nobody_who_signs(sender: Sender) -> None:
    sender.send("travel", "bob", "the topic is there")
    with Publisher(sender.bootstrap, topic=sender.topic) as publisher:
        publisher.publish("k", b'{"group":"k","sender":"zed","epoch":2147483647,"seq":1}')
    words: dict[str, Any] = {"group": "k", "sender": "zed", "after": [], "data": "hi"}
    with pytest.raises(Refused, match="under another name"):
        send_one(sender.bootstrap, sender.topic, sender.state, **words)
    assert len(sender.log()) == 2
    assert send_one(sender.bootstrap, sender.topic, sender.state, key=private("zed"), **words) == ("zed", 0, 1)


def test_an_epoch_that_can_never_count_is_not_gone_on_with(sender: Sender) -> None:
    sender.send("travel", "ann", "one")
    with opened(sender.state) as state:
        state.memory.senders[0].epoch = 2**31
        state.save()
    assert sender.send("travel", "ann", "two") == "ann@1:1"


def test_an_unconfirmed_message_goes_out_again_as_the_same_bytes_before_the_next(sender: Sender) -> None:
    sender.send("travel", "ann", "one")
    pending = json.dumps({"group": "travel", "sender": "ann", "epoch": 0, "seq": 2, "after": [], "data": "two"})
    forget_confirmation(sender.state, pending.replace(" ", ""))
    assert sender.send("travel", "ann", "three") == "ann:3"
    assert [(record["seq"], record["data"]) for record in sender.log()] == [(1, "one"), (2, "two"), (3, "three")]


def test_the_same_command_after_a_failure_is_a_retry_and_not_a_second_message(sender: Sender) -> None:
    sender.send("travel", "ann", "one")
    pending = json.dumps({"group": "travel", "sender": "ann", "epoch": 0, "seq": 2, "after": [], "data": "two"})
    forget_confirmation(sender.state, pending.replace(" ", ""))
    assert sender.send("travel", "ann", "two") == "ann:2"
    assert sender.send("travel", "ann", "two") == "ann:3", "sent again after a confirmation, it is a new message"
    assert [record["seq"] for record in sender.log()] == [1, 2, 3]


def forget_confirmation(state_file: Path, record: str) -> None:
    """As if the command had died after saving the record and before Kafka confirmed it."""
    with opened(state_file) as state:
        state.memory.senders[0].seq += 1
        state.memory.senders[0].pending = record
        state.save()


def test_what_kafka_refuses_takes_no_seq(sender: Sender) -> None:
    where = (sender.bootstrap, sender.topic, sender.state)
    with pytest.raises(Refused, match="was not sent"):
        send_one(*where, group="travel", sender="ann", after=[], data="x" * 3_000_000)
    assert send_one(*where, group="travel", sender="ann", after=[], data="short") == ("ann", 0, 1)
    assert [record["data"] for record in sender.log()] == ["short"]


def test_a_group_goes_to_the_partition_that_kafka_s_java_client_would_choose(broker: Broker) -> None:
    topic = f"raw{uuid.uuid4().hex[:8]}"
    topics.ensure(broker.bootstrap, [topics.raw(topic, partitions=5)])
    groups = [f"group-{number}" for number in range(200)] + ["é", "群", "x" * 255]
    with Publisher(broker.bootstrap, topic=topic) as publisher:
        for group in groups:
            publisher.publish(group, b"{}")
    found = {record.key: record.partition for record in read(broker.bootstrap, topic)}
    assert found == {group.encode(): (murmur2(group.encode()) & 0x7FFFFFFF) % 5 for group in groups}
    assert len(set(found.values())) == 5


def test_a_record_kafka_does_not_take_is_raised_and_not_forgotten(broker: Broker) -> None:
    topic = f"small{uuid.uuid4().hex[:8]}"
    small = Wanted(topic, 1, {"max.message.bytes": "1000"}, {})
    topics.ensure(broker.bootstrap, [small])
    publisher = Publisher(broker.bootstrap, topic=topic)
    publisher.publish("g", b"x" * 10_000)
    with pytest.raises(Refused, match="refused a record"):
        publisher.flush()
    publisher.publish("g", b"x")
    publisher.flush()


def test_what_is_sent_with_a_key_is_taken_by_a_group_with_keys(sender: Sender, tmp_path: Path) -> None:
    key, other = tmp_path / "ann.key", tmp_path / "other.key"
    public = precede("key", key).stdout.decode().strip()
    precede("key", other)
    create = {"group": "g", "kind": "create", "options": {"keys": {"ann": public}}, "members": ["ann"]}
    assert sender.send("g", "ann", "one", "--key", str(key)) == "ann:1"
    assert sender.send("g", "ann", "two", "--key", str(other)) == "ann:2"
    assert sender.send("g", "ann", "three") == "ann:3"
    holdback = Holdback()
    holdback.receive(json.dumps(create).encode())
    for record in read(sender.bootstrap, sender.topic):
        holdback.receive(record.value, record.key)
    assert [json.loads(record).get("data") for record in holdback.ordered] == [None, "one"]
    assert [json.loads(letter)["code"] for letter in holdback.dead] == ["forged", "forged"]


def test_what_a_group_would_refuse_for_its_stamp_or_its_partition_is_refused_before_it_is_sent(
    broker: Broker, tmp_path: Path
) -> None:
    more: dict[str, Any] = {"engine": "process", "only": "order", "cache": str(tmp_path / "cache")}
    made = Stream(broker.bootstrap, tmp_path, order="fifo", **more)
    settings = made.settings
    for order in ("causal", "lamport", "causal_p2p", "two_clock", "total", "s_b"):
        create = json.dumps({"group": order, "kind": "create", "options": {"order": order}, "members": ["ann"]})
        made.send([(order.encode(), create.encode())])
    job.run(msgspec.structs.replace(settings, once=True), say=lambda *_, **__: None)
    where: dict[str, Any] = {
        "sender": "ann",
        "data": "hello",
        "stream": StreamTopicNames(settings.ordered_topic, settings.progress_topic),
    }

    def send(group: str, **extra: Any) -> object:
        return send_one(
            settings.bootstrap,
            settings.raw_topic,
            tmp_path / "senders.json",
            group=group,
            **{"after": []} | where | extra,
        )

    for order in ("causal", "lamport", "causal_p2p", "two_clock"):
        with pytest.raises(Refused, match=f"{order} has the order {order}.*missing_stamp.*precede.Member"):
            send(order)
    with pytest.raises(Refused, match='by murmur2, and this would send by crc32.*set `partitioner = "murmur2"`'):
        send("s_b", partitioner="crc32")
    assert [send(group) for group in ("total", "s_b", "of the default order")] == [("ann", 0, 1)] * 3
    assert send("s_b", after=[("ann", 0, 1)]) == ("ann", 0, 2)
    job.run(msgspec.structs.replace(settings, once=True), say=lambda *_, **__: None)
    assert made.dead() == []
