"""`precede.follow` and `precede tail` on a real topic, through both clients, among open and aborted transactions."""

import json
import os
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Literal

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

import precede as door
from precede.ingest.kafka import topics
from precede.local.embedded_broker import Broker
from precede.udfs.partitioner import partition_of
from tests.door.command import ROOT, precede
from tests.door.test_delta_history import write
from tests.door.test_following import ordered

Client = Literal["confluent", "kafka-python"]
both_clients = pytest.mark.parametrize("client", ["confluent", "kafka-python"])


class Output:
    """An ordered topic and a transactional producer, like the stream's."""

    def __init__(self, broker: Broker, topic: str | None = None) -> None:
        self.bootstrap = broker.bootstrap
        self.topic = topic or f"ordered{uuid.uuid4().hex[:8]}"
        topics.ensure(broker.bootstrap, [topics.output(self.topic)])
        self.producer = Producer(
            {
                "bootstrap.servers": broker.bootstrap,
                "transactional.id": uuid.uuid4().hex,
                "partitioner": "murmur2_random",
                "log_level": 0,
            }
        )
        self.producer.init_transactions()

    def write(self, *positions: int, group: str = "g", end: str = "commit") -> None:
        self.producer.begin_transaction()
        for position in positions:
            self.producer.produce(self.topic, key=group.encode(), value=ordered(position, group=group))
        self.producer.flush()
        if end == "commit":
            self.producer.commit_transaction()
        elif end == "abort":
            self.producer.abort_transaction()


@pytest.fixture
def output(broker: Broker) -> Output:
    return Output(broker)


def followed(output: Output, client: Client, *, token: str | None = None) -> tuple[list[int], str]:
    """The positions seen of group g, and the token afterwards."""
    with door.follow(
        "g", bootstrap=output.bootstrap, topic=output.topic, token=token, patience_s=2, client=client
    ) as follower:
        return [delivery.position for delivery in follower], follower.token


@both_clients
def test_only_committed_positions_are_seen_and_each_once(output: Output, client: Client) -> None:
    output.write(1, 2)
    output.write(3, 4, 5, end="abort")
    output.write(3, group="h", end="abort")
    output.write(3, 4)
    output.write(5, end="leave open")
    assert followed(output, client)[0] == [1, 2, 3, 4]
    output.producer.commit_transaction()
    assert followed(output, client)[0] == [1, 2, 3, 4, 5]


@both_clients
def test_a_follower_goes_on_from_its_token_with_either_client(output: Output, client: Client) -> None:
    output.write(1, 2)
    seen, token = followed(output, client)
    output.write(3, 4)
    other: Client = "confluent" if client == "kafka-python" else "kafka-python"
    assert (seen, followed(output, other, token=token)[0]) == ([1, 2], [3, 4])


def test_tail_writes_each_record_as_it_stands_in_the_topic(output: Output) -> None:
    output.write(1, 2)
    output.write(1, group="h")
    done = precede(
        "tail", "g", "--from-beginning", "--json", "--count", "2", "--bootstrap", output.bootstrap,
        variables={"PRECEDE_ORDERED_TOPIC": output.topic},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.splitlines() == [ordered(1), ordered(2)]


def test_tail_for_a_person_says_who_answers_whom_and_how_long_it_waited(output: Output) -> None:
    output.write(1)
    done = precede(
        "tail", "--from-beginning", "--seconds", "4", "--bootstrap", output.bootstrap,
        variables={"PRECEDE_ORDERED_TOPIC": output.topic},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.decode() == 'g 1  ann:1 after bob:1  {"n": 1}  (held 0.2 s)\n'


def test_tail_raises_the_alarm_at_a_hole_and_goes_on(output: Output) -> None:
    output.write(1, 4)
    done = precede(
        "tail", "--from-beginning", "--json", "--count", "2", "--bootstrap", output.bootstrap,
        variables={"PRECEDE_ORDERED_TOPIC": output.topic},
    )  # fmt: skip
    assert done.returncode == 0
    assert done.stderr == b"Hole: In group g positions 2 to 3 are missing: after 1 came 4.\n"
    assert [json.loads(line)["position"] for line in done.stdout.splitlines()] == [1, 4]


def test_tail_says_what_it_waits_for_where_there_are_no_topics_yet(broker: Broker) -> None:
    for flags, topic in (([], "not.there"), (["--live"], "not.there"), (["--dead-letters"], "not.there.dead")):
        done = precede(
            "tail", *flags, "--seconds", "2", "--bootstrap", broker.bootstrap,
            variables={"PRECEDE_ORDERED_TOPIC": "not.there", "PRECEDE_DEAD_LETTER_TOPIC": "not.there.dead"},
        )  # fmt: skip
        waits = f"Waiting for the topic {topic} on Kafka at {broker.bootstrap}: `precede run` creates it.\n"
        assert (done.returncode, done.stdout, done.stderr.decode()) == (0, b"", waits)


def test_tail_shows_dead_letters_too(output: Output) -> None:
    letter = {
        "code": "malformed",
        "reason": "It is no JSON.",
        "group": None,
        "sender": None,
        "partition": 0,
        "offset": 7,
    }
    output.producer.begin_transaction()
    output.producer.produce(output.topic, value=json.dumps(letter).encode())
    output.producer.produce(output.topic, value=json.dumps(letter | {"group": "g", "sender": "ann"}).encode())
    output.producer.produce(
        output.topic, value=json.dumps(letter | {"group": "g", "sender": "ann", "epoch": 2, "seq": 1}).encode()
    )
    output.producer.commit_transaction()
    done = precede(
        "tail", "--dead-letters", "--from-beginning", "--count", "3", "--bootstrap", output.bootstrap,
        variables={"PRECEDE_DEAD_LETTER_TOPIC": output.topic},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, b"")
    assert sorted(done.stdout.decode().splitlines()) == [
        "malformed  -  partition 0 offset 7  It is no JSON.",
        "malformed  g ann  partition 0 offset 7  It is no JSON.",
        "malformed  g ann@2:1  partition 0 offset 7  It is no JSON.",
    ]


@both_clients
def test_the_id_of_a_topic_is_in_the_token_and_a_topic_that_was_deleted_and_created_again_refuses_it(
    broker: Broker, output: Output, client: Client
) -> None:
    output.write(1, 2)
    _, token = followed(output, client)
    known = topics.describe(output.bootstrap, [output.topic])[output.topic]
    offsets = {str(partition_of(b"g", known.partitions)): 2}
    found = json.loads(token)
    assert (found["topic_id"], found["offsets"]) == (known.id, offsets), "only the partition of g"
    admin = AdminClient({"bootstrap.servers": output.bootstrap})
    for future in admin.delete_topics([output.topic]).values():
        future.result()
    again = Output(broker, output.topic)
    again.write(1, 2, 3)
    with pytest.raises(door.Refused, match=f"an earlier topic {output.topic}"):
        followed(again, client, token=token)


@both_clients
def test_what_retention_deleted_comes_from_delta(output: Output, client: Client, tmp_path: Path) -> None:
    output.write(1, 2, 3)
    output.write(1, 2, group="k")
    write(tmp_path, *(ordered(position) for position in (1, 2, 3)), *(ordered(n, group="k") for n in (1, 2)))
    output.write(4)
    partitions = topics.describe(output.bootstrap, [output.topic])[output.topic].partitions
    gone = {partition_of(b"g", partitions): 3, partition_of(b"k", partitions): 2}
    admin = AdminClient({"bootstrap.servers": output.bootstrap})
    places = [TopicPartition(output.topic, partition, offset) for partition, offset in gone.items()]
    for future in admin.delete_records(places).values():
        future.result()

    def seen(group: str | None) -> list[tuple[str, int]]:
        with door.follow(
            group, bootstrap=output.bootstrap, topic=output.topic, delta=tmp_path, patience_s=2, client=client
        ) as follower:
            return sorted((delivery.group, delivery.position) for delivery in follower)

    assert seen("g") == [("g", 1), ("g", 2), ("g", 3), ("g", 4)]
    assert seen("k") == [("k", 1), ("k", 2)]
    assert seen(None) == [("g", 1), ("g", 2), ("g", 3), ("g", 4), ("k", 1), ("k", 2)]


def run_example(output: Output, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", EXAMPLE, "g", output.bootstrap, "3"],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT), "PRECEDE_ORDERED_TOPIC": output.topic} | variables,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_the_example_of_an_application_goes_on_where_it_stopped(output: Output, tmp_path: Path) -> None:
    def run() -> list[str]:
        done = run_example(output, tmp_path)
        assert done.returncode == 0, done.stderr
        return [line.split()[0] for line in done.stdout.splitlines()]

    output.write(1, 2)
    assert run() == ["1", "2"]
    output.write(3, 4)
    assert run() == ["3", "4"]
    output.write(6)
    with pytest.raises(AssertionError, match="position 5 is missing"):
        run()


def test_the_example_counts_each_message_once_though_it_is_killed_between_result_and_token(
    output: Output, tmp_path: Path
) -> None:
    output.write(1, 2, 3)
    assert run_example(output, tmp_path, DIE_AT="2").returncode == 9
    done = run_example(output, tmp_path)
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["2", "3"]
    assert done.stderr == "ann has said 3\n"


# With DIE_AT, the program ends where it takes the token of that position: the result is written, but not committed.
EXAMPLE = """
import os, pathlib, runpy
from precede.reading.following import Follower
taken = Follower.token.fget
def token(self):
    text = taken(self)
    if "DIE_AT" in os.environ and f',{os.environ["DIE_AT"]}]]' in text:
        os._exit(9)
    return text
Follower.token = property(token)
runpy.run_path(str(pathlib.Path(os.environ["PYTHONPATH"]) / "examples" / "follow_group.py"), run_name="__main__")
"""
