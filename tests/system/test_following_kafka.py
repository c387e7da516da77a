"""`precede.follow` and `precede tail` on a real topic, through both clients, among open and aborted transactions."""

import json
import os
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Literal

import pytest
from confluent_kafka import Producer

import precede as door
from precede.ingest.kafka import topics
from precede.local.embedded_broker import Broker
from tests.door.command import ROOT, precede
from tests.door.test_following import ordered

Client = Literal["confluent", "kafka-python"]
both_clients = pytest.mark.parametrize("client", ["confluent", "kafka-python"])


class Output:
    """An ordered topic and a transactional producer, like the stream's."""

    def __init__(self, broker: Broker) -> None:
        self.bootstrap = broker.bootstrap
        self.topic = f"ordered{uuid.uuid4().hex[:8]}"
        topics.ensure(broker.bootstrap, [topics.output(self.topic)])
        self.producer = Producer(
            {
                "bootstrap.servers": broker.bootstrap,
                "transactional.id": self.topic,
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
    output.producer.commit_transaction()
    done = precede(
        "tail", "--dead-letters", "--from-beginning", "--count", "1", "--bootstrap", output.bootstrap,
        variables={"PRECEDE_DEAD_LETTER_TOPIC": output.topic},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.decode() == "malformed  -  partition 0 offset 7  It is no JSON.\n"


def test_the_example_of_an_application_goes_on_where_it_stopped(output: Output, tmp_path: Path) -> None:
    def run() -> list[str]:
        done = subprocess.run(
            [sys.executable, "-c", EXAMPLE, "g", output.bootstrap, "3"],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(ROOT), "TOPIC": output.topic},
            capture_output=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr.decode()
        return [line.split()[0] for line in done.stdout.decode().splitlines()]

    output.write(1, 2)
    assert run() == ["1", "2"]
    output.write(3, 4)
    assert run() == ["3", "4"]
    output.write(6)
    with pytest.raises(AssertionError, match="position 5 is missing"):
        run()


# The example follows the default topic; here it gets one of this test.
EXAMPLE = """
import functools, os, pathlib, runpy, sys, precede
precede.follow = functools.partial(precede.follow, topic=os.environ["TOPIC"])
runpy.run_path(str(pathlib.Path(os.environ["PYTHONPATH"]) / "examples" / "follow_group.py"), run_name="__main__")
"""
