"""`precede check` over a real stream: its topics and its tables, one round after the other."""

from __future__ import annotations

import threading
from pathlib import Path

import msgspec
import pytest
from confluent_kafka import Producer

import precede
from precede.check.sources import CannotJudgeError, TopicsCheck
from precede.check.watching import watch
from precede.ingest.follower_token import read_token
from precede.local.embedded_broker import Broker
from precede.streaming.job import job
from tests.records import conversation
from tests.system.stream import Stream

GROUPS = 12


@pytest.fixture
def stream(broker: Broker, tmp_path: Path) -> Stream:
    more = {"engine": "process", "only": "order", "cache": str(tmp_path / "cache"), "tick_s": 0}
    return Stream(broker.bootstrap, tmp_path, partitions=3, **more)


def order_what_is_there(stream: Stream) -> None:
    job.run(msgspec.structs.replace(stream.settings, once=True), say=lambda _: None)


def add_to_the_ordered_topic(stream: Stream, key: bytes, value: bytes) -> None:
    producer = Producer({"bootstrap.servers": str(stream.settings.bootstrap), "partitioner": "murmur2_random"})
    producer.produce(stream.settings.ordered_topic, value, key)
    producer.flush(10)


def test_what_a_job_publishes_holds_and_what_is_written_beside_it_does_not(stream: Stream) -> None:
    unreadable = [(b"group-1", b"{"), (None, b"no object"), (b"other", b'{"group":"group-1","sender":"a","seq":1}')]
    stream.send([*conversation(1_500, groups=GROUPS), *unreadable])
    order_what_is_there(stream)
    topics = TopicsCheck(stream.settings, (), None)
    topics.run()
    report = topics.check.report()
    assert (report.status, report.violations) == (0, [])
    assert (report.ordered, report.groups, report.dead_letters) == (1_500, GROUPS, 3)
    assert report.raw == len(stream.raw())

    stream.send(conversation(300, groups=GROUPS, seed=2))  # the same ids with other content: refused
    order_what_is_there(stream)
    topics.next_round()
    assert topics.check.report().status == 0
    assert topics.check.raw == len(stream.raw())

    key, records = next(iter(stream.ordered().items()))
    add_to_the_ordered_topic(stream, key, records[0])
    topics.next_round()
    report = topics.check.report()
    assert report.status == 1
    assert report.violations[0].group == key.decode()
    assert report.violations[0].guarantee in ("once", "position", "released")


def test_a_named_group_is_judged_alone(stream: Stream) -> None:
    stream.send(conversation(400, groups=GROUPS))
    order_what_is_there(stream)
    topics = TopicsCheck(stream.settings, ("group-3",), None)
    topics.run()
    report = topics.check.report()
    assert (report.status, report.groups) == (0, 1)


def test_a_check_from_a_token_counts_what_lies_before_as_delivered(stream: Stream) -> None:
    stream.send(conversation(400, groups=GROUPS))
    order_what_is_there(stream)
    settings = stream.settings
    with precede.follow(bootstrap=settings.bootstrap, topic=settings.ordered_topic) as follower:
        for _ in range(150):
            assert follower.poll(10) is not None
        token = follower.token
    topics = TopicsCheck(settings, (), read_token(token))
    topics.run()
    report = topics.check.report()
    assert (report.status, report.violations) == (0, [])
    assert report.raw == 0
    assert 0 < sum(group.sequence.count for group in topics.check._groups.values()) <= 250


def test_a_stream_that_nothing_was_published_to_cannot_be_judged(stream: Stream) -> None:
    with pytest.raises(CannotJudgeError, match="No job has published"):
        TopicsCheck(stream.settings, (), None)


def test_a_check_that_watches_names_what_breaks_and_serves_it(stream: Stream) -> None:
    stream.send(conversation(200, groups=3))
    order_what_is_there(stream)
    topics = TopicsCheck(stream.settings, (), None)
    topics.run()
    key, records = next(iter(stream.ordered().items()))
    add_to_the_ordered_topic(stream, key, records[-1])
    said: list[str] = []
    stop = threading.Event()

    def say(sentence: str) -> None:
        said.append(sentence)
        if sentence.startswith("Broken"):
            stop.set()

    watch(stream.settings, topics, say, stop)
    assert said[0].startswith("Watching ")
    assert said[-1].startswith(f"Broken in group {key.decode()}: ")
