"""The engine of one process against a real broker: the same bytes as the kernel alone, whatever happens to it."""

from __future__ import annotations

import os
import re
import resource
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from precede.check.sources import TopicsCheck
from precede.ingest.kafka import topics
from precede.ingest.kafka.topics import describe
from precede.ingest.progress import read_progress
from precede.ingest.state_topic import read_state
from precede.local.embedded_broker import HOST, Broker
from precede.streaming.job import job
from precede.streaming.job import job as base
from precede.streaming.order import transaction
from precede.streaming.process import cache as caches
from precede.streaming.process.loop import OrderLoop
from precede.udfs.errors import Refused
from precede.udfs.holdback import Holdback
from precede.udfs.limits import Limits
from precede.udfs.records import state_pieces
from tests.faults.power import cut_power
from tests.faults.running import Running
from tests.records import by_kernel, conversation
from tests.system.door import END_TXN, Door
from tests.system.stream import HOME, Stream

POINTS = ("order.begin", "order.ordered", "order.open", "order.out")
PARTITIONS = 2
GROUPS = 20


def new_stream(bootstrap: str, folder: Path) -> Stream:
    # Small transactions: the passes of a point are many, and states are written between them.
    more = {"engine": "process", "only": "order", "cache": str(folder / "cache"), "state_every_s": 0.05, "tick_s": 0}
    return Stream(bootstrap, folder, partitions=PARTITIONS, **more)


@pytest.fixture
def stream(broker: Broker, tmp_path: Path) -> Stream:
    return new_stream(broker.bootstrap, tmp_path)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Running]]:
    """Starts a job as a process; it ends with the test."""
    running: list[Running] = []

    def start(stream: Stream, fault: str | None = None) -> Running:
        running.append(Running(stream, fault=fault, folder=tmp_path))
        return running[-1]

    yield start
    for one in running:
        one.kill()


def once(stream: Stream, **more: object) -> list[str]:
    """Let the engine handle what is there; what it said."""
    said: list[str] = []
    job.run(msgspec.structs.replace(stream.settings, once=True, **more), say=said.append)
    assert said[-1].startswith("Done"), said
    return said


def check(stream: Stream) -> None:
    """Everything was delivered once, as the kernel alone delivers it, and the state topic has the states behind it."""
    rows = stream.raw()
    ordered, dead = by_kernel(rows, partitions=PARTITIONS)
    assert stream.ordered() == ordered
    assert stream.dead() == dead
    holdback = Holdback(limits=Limits(), partitions=PARTITIONS)
    for key, value, partition, offset, timestamp_ms in sorted(rows, key=lambda row: row[2:4]):
        holdback.receive(value, key, partition, offset, timestamp_ms)
    settings = stream.settings
    found_topics = describe(str(settings.bootstrap), [settings.progress_topic, settings.ordered_topic])
    stream_id = found_topics[settings.ordered_topic].id
    found = read_state(settings.bootstrap, settings.state_topic_name, range(PARTITIONS), stream=stream_id)
    assert {key: state.blob for groups in found.values() for key, state in groups.items()} == holdback.dump()
    progress = read_progress(settings.bootstrap, found_topics[settings.progress_topic], settings.ordered_topic)
    assert progress.horizon == progress.token
    checker = TopicsCheck(settings, (), None)
    checker.run()
    assert checker.check.report().status == 0, checker.check.findings.violations


def test_what_is_there_is_delivered_as_the_kernel_alone_delivers_it(stream: Stream) -> None:
    stream.send(conversation(2_000, groups=GROUPS))
    said = once(stream)
    check(stream)
    assert said[-1].startswith("Done: ")
    assert "2,000 delivered" in said[-1]
    assert once(stream)[-1] == "Done: 0 batches, 0 read, 0 delivered, 0 held, 0 dead letters, 0 duplicates, 0 behind."
    check(stream)


@pytest.mark.parametrize("keeps_cache", [True, False])
@pytest.mark.parametrize("point", POINTS)
def test_a_job_killed_at_any_point_goes_on_where_it_was(
    stream: Stream, start: Callable[..., Running], point: str, keeps_cache: bool, tmp_path: Path
) -> None:
    stream.send(conversation(600, groups=GROUPS))
    running = start(stream, f"{point}:3")
    for part in range(2, 300):  # a little at a time, so that there are several transactions
        if (tmp_path / "reached").exists():
            break
        stream.send(conversation(20, groups=GROUPS, seed=part))
        time.sleep(0.1)
    running.reaches()
    running.kill_driver()
    if not keeps_cache:
        shutil.rmtree(stream.settings.cache)
    once(stream)
    check(stream)


def test_a_job_that_is_stopped_ends_between_two_transactions_and_the_next_one_needs_only_the_cache(
    stream: Stream, start: Callable[..., Running]
) -> None:
    stream.send(conversation(1_000, groups=GROUPS))
    running = start(stream)
    running.wait_for_output("delivered", 30)
    running.stop()
    assert running.process.returncode == 0
    assert running.said[-1].startswith("Stopped: ")
    stream.send(conversation(1_000, groups=GROUPS, seed=2))
    once(stream)
    check(stream)


def test_of_two_jobs_the_later_one_goes_on_and_the_earlier_one_says_so_even_if_it_is_idle(
    stream: Stream, start: Callable[..., Running], tmp_path: Path
) -> None:
    stream.send(conversation(500, groups=GROUPS))
    first = start(stream)
    first.wait_for_output("delivered", 30)
    stream.change(cache=str(tmp_path / "other cache"))
    second = start(stream)
    assert first.ends(15) == 1
    assert any("Another job took over" in line and "engine process" in line for line in first.said), first.said
    stream.send(conversation(500, groups=GROUPS, seed=2))
    second.wait_for_output("delivered", 30)
    second.stop()
    once(stream)
    check(stream)


def test_a_job_that_slept_while_another_one_worked_does_not_take_the_states_of_that_one_for_its_own(
    stream: Stream, start: Callable[..., Running], tmp_path: Path
) -> None:
    stream.send(conversation(500, groups=GROUPS))
    asleep = start(stream, "cache.mark:1")
    asleep.reaches()
    its_cache = stream.settings.cache
    stream.send(conversation(500, groups=GROUPS, seed=2))
    stream.change(cache=str(tmp_path / "other cache"))
    once(stream)
    asleep.goes_on()
    assert asleep.ends(15) == 1
    stream.send(conversation(500, groups=GROUPS, seed=3))
    stream.change(cache=its_cache)
    once(stream)
    check(stream)


def test_the_demo_shows_this_engine_too(tmp_path: Path) -> None:
    arguments = [sys.executable, "-m", "precede", "demo", "--engine", "process", "--seconds", "4"]
    variables = os.environ | {"PYTHONPATH": str(HOME)}
    done = subprocess.run(arguments, cwd=tmp_path, env=variables, capture_output=True, timeout=120, check=False)
    told = done.stdout.decode()
    assert (done.returncode, done.stderr) == (0, b""), told
    for line in ("Positions contiguous +yes", "Replay gives the same bytes +yes", "Still held +0", "Dead letters +0"):
        assert re.search(line, told), told
    assert "Delta" not in told


def test_a_job_says_when_it_is_ready(stream: Stream, start: Callable[..., Running]) -> None:
    running = start(stream)
    settings = stream.settings
    running.wait_for_output(f"Ready: the job orders {settings.raw_topic} by s_b into {settings.ordered_topic}.", 30)


def test_a_job_that_waits_says_for_what(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "SLOW_START_S", 0.0)
    monkeypatch.setattr(base, "STILL_STARTS_S", 0.001)
    said = once(stream)
    ordered = stream.settings.ordered_topic
    steps = [f"it takes {ordered} over, and waits for what another job has left open there", "it waits for its topics"]
    for step in steps:
        assert any(line.startswith(f"Not ready yet: {step}") for line in said), said


def test_two_jobs_cannot_use_one_cache(stream: Stream, start: Callable[..., Running]) -> None:
    first = start(stream)
    first.until((Path(stream.settings.cache) / caches.FILE).exists, "the cache", 30)
    with pytest.raises(Refused, match=r"Another job of the engine process runs .* cache /.*cache\. Stop"):
        once(stream)


def test_a_broker_that_is_away_for_some_seconds_costs_nothing(tmp_path: Path, start: Callable[..., Running]) -> None:
    with Broker(data=tmp_path / "broker") as broker:
        stream = new_stream(broker.bootstrap, tmp_path)
        stream.send(conversation(500, groups=GROUPS))
        running = start(stream, "order.open:1")
        running.reaches()
        cut_power(broker)
        running.goes_on()
        time.sleep(3)
        broker.start()
        stream.send(conversation(500, groups=GROUPS, seed=2))
        running.until(lambda: sum(map(len, stream.ordered().values())) >= 500, "the rest", 60)
        running.stop()
        once(stream)
        check(stream)


def test_a_commit_that_is_not_answered_leaves_each_record_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first commit arrives and its answer is lost, the second is lost itself: after each the loop begins again."""
    monkeypatch.setattr(transaction, "COMMIT_S", 4.0)
    monkeypatch.setattr(transaction, "ABORT_S", 0.5)
    arrives = iter((True, False))
    with Door() as door:
        begin = OrderLoop.start

        def start(loop: OrderLoop) -> None:
            forward = next(arrives, None)
            if forward is not None:
                door.keep(END_TXN, forward=forward)
            begin(loop)

        monkeypatch.setattr(OrderLoop, "start", start)
        properties = {"advertised.listeners": f"PLAINTEXT://{HOST}:{door.port}"}
        with Broker(door.behind, data=tmp_path / "broker", properties=properties):
            stream = new_stream(f"{HOST}:{door.port}", tmp_path)
            stream.send(conversation(500, groups=GROUPS))
            once(stream)
            assert door.kept == [True, False], "a commit was answered"
            check(stream)


def test_a_full_disk_under_the_cache_is_said_and_nothing_is_lost(stream: Stream, start: Callable[..., Running]) -> None:
    running = start(stream)
    running.until((Path(stream.settings.cache) / caches.FILE).exists, "the cache", 30)
    resource.prlimit(running.process.pid, resource.RLIMIT_FSIZE, (64 * 1024, resource.RLIM_INFINITY))
    for part in range(4):
        stream.send(conversation(2_000, groups=500, seed=part))
        time.sleep(1)
    running.wait_for_output("cannot be", 30)
    delivered = sum(map(len, by_kernel(stream.raw(), partitions=PARTITIONS)[0].values()))
    running.until(lambda: sum(map(len, stream.ordered().values())) >= delivered, "the rest", 60)
    running.stop()
    once(stream)
    check(stream)


def tear(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2 :] = b"\0" * (len(content) - len(content) // 2)
    file.write_bytes(content)


def damage_states(file: Path) -> None:
    with sqlite3.connect(file) as base:
        base.execute("UPDATE groups SET checksum = checksum + 1")


def lift_states(file: Path) -> None:
    with sqlite3.connect(file) as base:
        base.execute("UPDATE groups SET next = next + 1000")


def forget_mark(file: Path) -> None:
    with sqlite3.connect(file) as base:
        base.execute("DELETE FROM mark")


@pytest.mark.parametrize(
    ("harm", "why"),
    [
        (tear, "malformed|not a database|disk image"),
        (damage_states, "is damaged"),
        (lift_states, "a state above what is published"),
        (forget_mark, "it was not completed"),
    ],
)
def test_a_cache_that_is_of_no_use_is_made_again(stream: Stream, harm: Callable[[Path], None], why: str) -> None:
    stream.send(conversation(500, groups=GROUPS))
    once(stream)
    harm(Path(stream.settings.cache) / caches.FILE)
    stream.send(conversation(1_000, groups=GROUPS)[500:])
    said = " ".join(once(stream))
    assert re.search(f"The cache .* cannot be used.*({why})", said), said
    check(stream)


def test_the_cache_of_another_stream_is_not_used(broker: Broker, stream: Stream, tmp_path: Path) -> None:
    stream.send(conversation(500, groups=GROUPS))
    once(stream)
    other = new_stream(broker.bootstrap, tmp_path)
    other.send(conversation(500, groups=GROUPS, seed=2))
    assert any("it is of another topic" in line for line in once(other))
    check(other)


def test_a_state_topic_that_is_gone_is_made_again_from_the_log(stream: Stream) -> None:
    stream.send(conversation(500, groups=GROUPS))
    once(stream)
    bootstrap = str(stream.settings.bootstrap)
    name = stream.settings.state_topic_name
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.delete_topics([name])[name].result(10)
    while describe(bootstrap, [name]):  # the broker forgets it a moment later
        time.sleep(0.1)
    with pytest.raises(Refused, match=r"The topic .*\.state does not exist"):
        once(stream)
    topics.ensure(bootstrap, stream.settings.topics())
    stream.send(conversation(1_000, groups=GROUPS)[500:])
    sentence = (
        f"The state topic {name} has nothing of this stream: the whole raw log is read again, and nothing is published "
        "twice."
    )
    assert once(stream).count(sentence) == 1
    check(stream)
    assert sentence not in once(stream)


def test_a_log_that_no_longer_reaches_back_to_the_horizon_is_refused(stream: Stream) -> None:
    stream.send(conversation(500, groups=GROUPS))
    once(stream)
    stream.send(conversation(1_000, groups=GROUPS)[500:])
    ends = [1 + max(row[3] for row in stream.raw() if row[2] == partition) for partition in range(PARTITIONS)]
    stream.cut(stream.settings.raw_topic, min(ends))
    with pytest.raises(Refused, match="no longer reaches back to the horizon"):
        once(stream)


def test_a_state_topic_with_a_lost_piece_or_of_a_newer_version_is_refused_and_foreign_records_are_passed_over(
    stream: Stream,
) -> None:
    stream.send(conversation(200, groups=GROUPS))
    once(stream)
    settings = stream.settings
    stream_id = describe(str(settings.bootstrap), [settings.ordered_topic])[settings.ordered_topic].id
    (key, value), _ = state_pieces.pieces(
        b"torn", b"x" * 2_000, stream=stream_id, rules=2, next_offset=1, bytes_max=1_500
    )
    for other, sentence in (
        (b"is this", None),
        (value, "is damaged: Piece 1 of 2 of the state of group 'torn'"),
        (None, None),
        (msgspec.msgpack.encode([state_pieces.VERSION + 1, 1]), "newer precede"),
    ):
        write_state(stream, (b"what", b"is this"), (b"[1]", b"2"), (key, other))
        stream.send(conversation(100, groups=GROUPS, seed=2))
        shutil.rmtree(settings.cache)
        if sentence is None:
            once(stream)
            check(stream)
        else:
            with pytest.raises(Refused, match=sentence):
                once(stream)


def write_state(stream: Stream, *records: tuple[bytes, bytes | None]) -> None:
    """Put records into the state topic, as nobody should."""
    with Producer({"bootstrap.servers": str(stream.settings.bootstrap)}) as producer:
        for key, value in records:
            producer.produce(stream.settings.state_topic_name, value, key, 0)
