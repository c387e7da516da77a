"""Gateways as processes: real segments on loopback, a real broker, and the real job in one process."""

from __future__ import annotations

import json
import os
import signal
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from precede.gateway.files import HistoryFile
from precede.gateway.start import read_history
from precede.ingest.kafka import reading
from precede.ingest.kafka.topics import describe, id_of
from precede.ingest.producer import Publisher
from precede.local.embedded_broker import Broker
from precede.udfs.errors import Refused
from precede.udfs.records.messages import Id
from tests.door.segment_links import GROUP, Linked, linked, loopback_url
from tests.faults.running import Running
from tests.signing import Signs, publics
from tests.system.stream import Stream

KEY = GROUP.encode()


class Place:
    """A stream with its job, one segment, and gateways on it."""

    def __init__(self, bootstrap: str, folder: Path) -> None:
        more: dict[str, Any] = {"engine": "process", "only": "order", "cache": str(folder / "cache"), "tick_s": 0.2}
        self.stream = Stream(bootstrap, folder, ask_after_ms=500, **more)
        self.folder = folder
        self.url = loopback_url()
        self.running: list[Running] = []

    def job(self) -> Running:
        one = Running(self.stream, folder=self.folder)
        self.running.append(one)
        return one

    def gateway(self, name: str = "gate", *urls: str, variables: dict[str, str] | None = None) -> Running:
        one = self.start_gateway(name, *urls, variables=variables)
        one.wait_for_output("Carrying between", 60)
        return one

    def start_gateway(self, name: str = "gate", *urls: str, variables: dict[str, str] | None = None) -> Running:
        flags = [flag for url in urls or (self.url,) for flag in ("--segment", url)]
        program = ("-m", "precede", "gateway", *flags, "--state", str(self.folder / name))
        one = Running(self.stream, variables=variables, program=program)
        self.running.append(one)
        return one

    def write(self, **fields: Any) -> None:
        """A client of the log writes a record."""
        with Publisher(self.stream.settings.bootstrap, topic=self.stream.settings.raw_topic) as publisher:
            publisher.publish(fields["group"], json.dumps(fields).encode())

    def ordered(self, group: str = GROUP) -> list[dict[str, Any]]:
        found = [json.loads(value) for value in self.stream.ordered().get(group.encode(), [])]
        for place in {one.get("destination") for one in found}:
            positions = [one["position"] for one in found if one.get("destination") == place]
            assert positions == list(range(1, len(positions) + 1))
        return found

    def delivered(self) -> list[Id]:
        """The messages that the job has delivered, in order."""
        messages = [one for one in self.ordered() if one.get("kind", "message") == "message"]
        return [(one["sender"], one.get("epoch", 0), one["seq"]) for one in messages]

    def kinds(self) -> list[str]:
        return [one["kind"] for one in self.ordered() if "kind" in one]


def until(met: Callable[[], bool], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not met():
        assert time.monotonic() < deadline, "not met in time"
        time.sleep(0.05)


@pytest.fixture
def place(broker: Broker, tmp_path: Path) -> Iterator[Place]:
    made = Place(broker.bootstrap, tmp_path)
    yield made
    for one in made.running:
        one.kill()


def together(segment: Linked, *names: str, **options: Any) -> None:
    for name in names:
        segment.open(name)
    segment.create(names[0], **options)
    for name in names[1:]:
        segment.join(name)
    assert segment.runner.wait_until(lambda _now_ms: all(segment.told[name].joined for name in names), 10)


def test_a_group_of_a_segment_is_in_the_log_and_messages_of_the_log_come_down(place: Place) -> None:
    place.job()
    gateway = place.gateway()
    with linked(place.url) as segment:
        together(segment, "ann", "bob", order="causal")
        said = [segment.say(name) for name in ("ann", "bob") for _ in range(5)]
        until(lambda: sorted(place.delivered()) == sorted(said))
        assert place.kinds().count("create") == 1
        assert place.kinds().count("join") == 2
        place.write(group=GROUP, sender="zoe", seq=1, seen=[["zoe", 0, 1]], data="from the log")
        for name in ("ann", "bob"):
            assert segment.until_delivered(name, ("zoe", 0, 1))
        with segment.runner.use(segment.links["bob"]) as now_ms:
            segment.links["bob"].segment.leave(GROUP, now_ms)
        until(lambda: "leave" in place.kinds())
    gateway.process.send_signal(signal.SIGTERM)
    assert gateway.ends(20) == 0
    assert gateway.said[-1].startswith("Stopped")
    assert place.stream.dead() == []


FOUR = ("ann", "bob", "cem", "dan")


@contextmanager
def two_segments(place: Place, *, signs: bool = False, **options: Any) -> Iterator[tuple[Linked, Linked]]:
    """Two segments with two peers each, a gateway for each, and one group."""
    place.job()
    with linked(place.url) as here, linked() as there:
        place.gateway("here", place.url)
        place.gateway("there", str(there.address))
        for segment, names in ((here, FOUR[:2]), (there, FOUR[2:])):
            for name in names:
                segment.open(name, signer=Signs(name) if signs else None)
        here.create("ann", **options)
        here.join("bob")
        for name in FOUR[2:]:
            there.join(name)
        yield here, there


def delivered(segments: tuple[Linked, Linked], name: str) -> list[Id]:
    return next(one for one in segments if name in one.told).told[name].delivered


def say(segments: tuple[Linked, Linked], name: str, **more: Any) -> Id:
    return next(one for one in segments if name in one.told).say(name, **more)


@pytest.mark.parametrize("order", ["s_b", "lamport"])
def test_a_group_with_keys_is_the_same_on_two_segments_and_in_the_log(place: Place, order: str) -> None:
    with two_segments(place, signs=True, order=order, keys=publics(*FOUR)) as segments:
        said = [say(segments, name) for _ in range(5) for name in FOUR]
        until(lambda: all(sorted(delivered(segments, name)) == sorted(said) for name in FOUR))
        until(lambda: sorted(place.delivered()) == sorted(said))
        place.write(group=GROUP, sender="ann", epoch=said[0][1], seq=6, after=[], time=100, data="forged")
        until(lambda: len(place.stream.dead()) == 1)
        assert [json.loads(letter)["code"] for letter in place.stream.dead()] == ["forged"]
        if order == "lamport":
            assert all(delivered(segments, name) == place.delivered() for name in FOUR)


def test_causal_p2p_brings_each_member_what_is_for_it_across_segments_and_the_log(place: Place) -> None:
    with two_segments(place, order="causal_p2p") as segments:
        said: dict[Id, list[str]] = {}
        for turn in range(8):
            for at, name in enumerate(FOUR):
                to = sorted({FOUR[(at + 1 + turn % 3) % 4], FOUR[(at + 1 + turn % 2) % 4]})
                said[say(segments, name, to=to)] = to
            time.sleep(0.02)
        for name in FOUR:
            mine = sorted(id_ for id_, to in said.items() if name in to)
            until(lambda name=name, mine=mine: sorted(delivered(segments, name)) == mine)  # type: ignore[misc]
        until(lambda: sorted(place.delivered()) == sorted(id_ for id_, to in said.items() for _ in to))
        assert place.stream.dead() == []


def test_an_object_group_keeps_what_depends_on_what_across_segments_and_the_log(place: Place) -> None:
    with two_segments(place, order="object") as segments:
        follows: dict[Id, list[Id]] = {}
        for _ in range(8):
            for name in FOUR:
                before = delivered(segments, name)[-2:]
                follows[say(segments, name, after=before)] = before
            time.sleep(0.02)
        until(lambda: all(len(delivered(segments, name)) == len(follows) for name in FOUR))
        until(lambda: len(place.delivered()) == len(follows))
        for sequence in (place.delivered(), *(delivered(segments, name) for name in FOUR)):
            assert all(set(before) <= set(sequence[: sequence.index(id_)]) for id_, before in follows.items())
        assert place.stream.dead() == []


def test_a_group_of_the_log_is_offered_on_the_segment(place: Place) -> None:
    place.job()
    place.write(group=GROUP, kind="create", options={"order": "fifo"}, members=["zoe"])
    place.write(group=GROUP, sender="zoe", seq=1, data="early")
    until(lambda: len(place.delivered()) == 1)
    place.gateway()
    with linked(place.url) as segment:
        segment.open("ann")
        segment.join("ann")
        assert segment.until_delivered("ann", ("zoe", 0, 1))
        said = segment.say("ann")
        until(lambda: said in place.delivered())
        assert place.stream.dead() == []


def test_a_start_reads_of_the_ordered_topic_only_the_last_messages_and_what_came_since(place: Place) -> None:
    settings = place.stream.settings
    tail = b',"position":%d,"order":"fifo","status":"delivered"}'
    create = b'{"group":"G","kind":"create","options":{"order":"fifo"}'
    said = [b'{"group":"G","sender":"ann","seq":%d,"data":1' % seq for seq in (1, 2)]
    producer = Producer({"bootstrap.servers": str(settings.bootstrap)})

    def write(value: bytes, time_ms: int) -> None:
        producer.produce(settings.ordered_topic, value, KEY, timestamp=time_ms)
        producer.flush(10)

    write(create + tail % 1, 10**12)
    write(b"not of precede, and never read again", 10**12)
    write(said[0] + tail % 2, 10**12 + 10**9)
    ordered = describe(settings.bootstrap, [settings.ordered_topic])[settings.ordered_topic]
    ends = dict(enumerate(end for _, end in reading.ends(settings.bootstrap, ordered.name, ordered.partitions)))
    with pytest.raises(Refused, match="did not write"):
        read_history(settings.bootstrap, ordered, HistoryFile(place.folder))
    HistoryFile(place.folder).write(ordered.id, {GROUP: [create + b"}"]}, ends, 10**12 + 10**9)
    write(said[1] + tail % 3, 10**12)  # a clock may go wrong: the offsets are what counts
    for _ in range(2):
        past = read_history(settings.bootstrap, ordered, HistoryFile(place.folder))
        assert past.create_of(GROUP) == create + b"}"
        assert list(past.messages(GROUP))[-1] == said[1] + b"}"
    assert list(past.messages(GROUP)) == [one + b"}" for one in said]


def test_a_gateway_that_is_stopped_and_started_goes_on_with_what_it_knew(place: Place) -> None:
    place.job()
    gateway = place.gateway()
    place.write(group=GROUP, kind="create", options={"order": "fifo"}, members=["zoe"])
    place.write(group=GROUP, sender="zoe", seq=1, data="early")
    until(lambda: len(place.delivered()) == 1)
    gateway.process.send_signal(signal.SIGTERM)
    assert gateway.ends(20) == 0
    kept = HistoryFile(place.folder / "gate").read(
        id_of(place.stream.settings.bootstrap, place.stream.settings.ordered_topic) or ""
    )
    assert kept is not None
    assert list(kept.records) == [GROUP]
    assert sum(kept.offsets.values()) >= 2
    place.write(group=GROUP, sender="zoe", seq=2, data="meanwhile")
    until(lambda: len(place.delivered()) == 2)
    place.gateway()
    with linked(place.url) as segment:
        segment.open("ann")
        segment.join("ann")
        assert segment.until_delivered("ann", ("zoe", 0, 2))
        assert segment.told["ann"].delivered == [("zoe", 0, 1), ("zoe", 0, 2)]


def test_two_gateways_publish_hardly_anything_twice_and_one_goes_on_when_the_other_is_killed(place: Place) -> None:
    place.job()
    first = place.gateway("first")
    place.gateway("second")
    with linked(place.url) as segment:
        together(segment, "ann", "bob", order="fifo")
        time.sleep(2.5)  # until each knows of the other
        before = len(place.stream.raw())
        said = []
        for _ in range(100):
            said += [segment.say("ann"), segment.say("bob")]
            time.sleep(0.01)
        until(lambda: len(place.delivered()) == len(said))
        published = [row for row in place.stream.raw()[before:] if row[0] == KEY]
        assert len(published) <= 1.2 * len(said)
        os.kill(first.process.pid, signal.SIGKILL)
        said += [segment.say(name) for name in ("ann", "bob") for _ in range(50)]
        until(lambda: sorted(place.delivered()) == sorted(said))
        assert place.stream.dead() == []


def test_what_is_heard_while_kafka_is_away_survives_kill_9_and_goes_up_later(tmp_path: Path) -> None:
    with Broker(data=tmp_path / "broker") as broker:
        place = Place(broker.bootstrap, tmp_path)
        try:
            job = place.job()
            gateway = place.gateway()
            with linked(place.url) as segment:
                together(segment, "ann", order="fifo")
                said = [segment.say("ann")]
                until(lambda: place.delivered() == said)
                job.kill()
                broker.stop()
                said += [segment.say("ann") for _ in range(300)]
                gateway.wait_for_output("does not answer", 40)
                assert all(segment.until_delivered("ann", id_) for id_ in said)
            os.kill(gateway.process.pid, signal.SIGKILL)  # and its only peer is gone, too
            broker.start()
            place.job()
            again = place.gateway()
            assert any("300 records that an earlier run heard" in line for line in again.said)
            until(lambda: place.delivered() == said, 60)
        finally:
            for one in place.running:
                one.kill()


def test_what_the_job_asks_for_is_answered_although_its_sender_is_gone(place: Place) -> None:
    place.job()
    place.gateway()
    with linked(place.url) as segment:
        together(segment, "ann", "bob", order="fifo")
        until(lambda: "join" in place.kinds())
        # The log gets the third message of somebody; a peer has all three, from a time before there was a gateway.
        values = [b'{"group":"G","sender":"cem","seq":%d,"data":%d}' % (seq, seq) for seq in (1, 2, 3)]
        with segment.runner.use(segment.links["bob"]) as now_ms:
            peer = segment.links["bob"].segment.groups[GROUP]
            for value in values:
                peer.take(value, now_ms)
        place.write(**json.loads(values[2]))
        cem = [("cem", 0, seq) for seq in (1, 2, 3)]
        until(lambda: [id_ for id_ in place.delivered() if id_[0] == "cem"] == cem)


def test_metrics_and_health_are_served(place: Place) -> None:
    place.job()
    gateway = place.gateway(variables={"PRECEDE_METRICS": "127.0.0.1:0"})
    (line,) = [line for line in gateway.said if "Metrics and health" in line]
    base = f"http://127.0.0.1:{line.split()[-1].rstrip('.')}"
    until(lambda: json.loads(urllib.request.urlopen(f"{base}/health").read())["healthy"])
    with linked(place.url) as segment:
        together(segment, "ann", order="fifo")
        said = segment.say("ann")
        until(lambda: said in place.delivered())
        wanted = "precede_gateway_published_records_total 3.0"
        until(lambda: wanted in urllib.request.urlopen(f"{base}/metrics").read().decode())
    assert "precede_healthy 1.0" in urllib.request.urlopen(f"{base}/metrics").read().decode()


def test_a_second_gateway_with_the_same_folder_is_refused(place: Place) -> None:
    place.job()
    place.gateway()
    program = ("-m", "precede", "gateway", "--segment", place.url, "--state", str(place.folder / "gate"))
    second = Running(place.stream, program=program)
    assert second.ends(30) == 1
    assert "give each its own (--state)" in second.said[-1]
