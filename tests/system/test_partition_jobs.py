"""Several jobs share the topics, each with raw partitions of its own: same bytes as one job, whoever owns what when."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql import SparkSession

from precede.ingest.kafka import topics
from precede.ingest.kafka.topics import describe
from precede.ingest.progress import Progress, read_progress
from precede.ingest.state_topic import read_state
from precede.local.embedded_broker import Broker
from precede.reading import following as reading
from precede.streaming.job import job
from precede.streaming.order.ownership import Ownership
from precede.udfs.errors import Refused
from precede.udfs.holdback import Holdback
from precede.udfs.limits import Limits
from precede.udfs.partitioner import partition_of
from tests.faults.running import Running
from tests.records import by_group, by_kernel, conversation
from tests.system.stream import HOME, Stream

PARTITIONS = 4
GROUPS = 24
POINTS = ("order.begin", "order.ordered", "order.open", "order.out")

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def stream(broker: Broker, tmp_path: Path) -> Stream:
    more = {"engine": "process", "only": "order", "state_every_s": 0.05, "tick_s": 0}
    return Stream(broker.bootstrap, tmp_path, partitions=PARTITIONS, **more)


@pytest.fixture
def start(stream: Stream, tmp_path: Path) -> Iterator[Callable[..., Running]]:
    """Starts a job of some partitions as a process; it ends with the test."""
    running: list[Running] = []

    def start(partitions: str | None, fault: str | None = None, **variables: str) -> Running:
        own = {"PRECEDE_CACHE": str(tmp_path / f"cache {partitions}")}
        own |= {"PRECEDE_RAW_PARTITIONS": partitions} if partitions else {}
        program = ("-m", "precede", "run")
        running.append(Running(stream, fault=fault, folder=tmp_path, variables=own | variables, program=program))
        return running[-1]

    yield start
    for one in running:
        one.kill()


def once(stream: Stream, partitions: str | None, **more: Any) -> list[str]:
    """Let a job of these partitions handle what is there; what it said."""
    said: list[str] = []
    cache = f"{stream.settings.checkpoint} {partitions}"
    settings = msgspec.structs.replace(stream.settings, once=True, raw_partitions=partitions, cache=cache, **more)
    job.run(settings, say=said.append)
    assert said[-1].startswith("Done"), said
    return said


def progress_of(stream: Stream) -> Progress:
    settings = stream.settings
    topic = describe(settings.bootstrap, [settings.progress_topic])[settings.progress_topic]
    return read_progress(settings.bootstrap, topic, settings.ordered_topic)


def check(stream: Stream) -> None:
    """What all jobs delivered is what the kernel alone delivers, and the state topic has the states behind it."""
    rows = stream.raw()
    ordered, dead = by_kernel(rows, partitions=PARTITIONS)
    assert stream.ordered() == ordered
    assert stream.dead() == dead
    holdback = Holdback(limits=Limits(), partitions=PARTITIONS)
    for key, value, partition, offset, timestamp_ms in sorted(rows, key=lambda row: row[2:4]):
        holdback.receive(value, key, partition, offset, timestamp_ms)
    settings = stream.settings
    id_ = describe(settings.bootstrap, [settings.ordered_topic])[settings.ordered_topic].id
    found = read_state(settings.bootstrap, settings.state_topic_name, range(PARTITIONS), stream=id_)
    assert {key: state.blob for groups in found.values() for key, state in groups.items()} == holdback.dump()
    progress = progress_of(stream)
    assert progress.horizon == progress.token
    assert progress.token.keys() == set(range(PARTITIONS))


def send_slowly(stream: Stream, until: Callable[[], bool]) -> None:
    """A little at a time, so that there are several transactions."""
    for part in range(2, 300):
        if until():
            return
        stream.send(conversation(40, groups=GROUPS, seed=part))
        time.sleep(0.1)
    pytest.fail("what was waited for did not come")


# ── the same as one job ───────────────────────────────────────────────────────────────────────────────────────────


def test_two_jobs_of_two_partitions_give_the_same_bytes_as_one_job_of_four(stream: Stream) -> None:
    stream.send([*conversation(2_000, groups=GROUPS), (b"group-1", b"{}"), (None, b"no key")])
    said = once(stream, "0-1")
    assert any("orders the raw partitions 0-1, of the 4 of" in line for line in said), said
    half = progress_of(stream)
    assert half.token.keys() == half.horizon.keys() == half.owners.keys() == {0, 1}
    once(stream, "2-3")
    check(stream)
    mine = stream.ordered(), stream.dead()
    name = stream.settings.ordered_topic
    stream.change(
        ordered_topic=f"{name}.one", dead_letter_topic=f"{name}.one.dead", control_topic=f"{name}.one.control"
    )
    topics.ensure(stream.settings.bootstrap, msgspec.structs.replace(stream.settings, partitions=PARTITIONS).topics())
    once(stream, None)
    assert (stream.ordered(), stream.dead()) == mine


def test_a_job_that_looked_before_the_job_of_other_partitions_began_is_not_refused(stream: Stream) -> None:
    settings = msgspec.structs.replace(stream.settings, raw_partitions="0-1")
    topics = describe(settings.bootstrap, [settings.raw_topic, settings.progress_topic])
    ownership = Ownership(settings, topics[settings.raw_topic], topics[settings.progress_topic], engine="process")
    looked = progress_of(stream)
    stream.send(conversation(500, groups=GROUPS))
    once(stream, "2-3")
    assert not looked.owners
    ownership._check(looked)
    producer, progress = ownership.open(lambda _: None)
    producer.drop()
    assert sorted(progress.owners) == [0, 1, 2, 3]


def test_jobs_that_run_together_do_not_fence_each_other(stream: Stream, start: Callable[..., Running]) -> None:
    stream.send(conversation(500, groups=GROUPS))
    jobs = [start(partitions) for partitions in ("0-1", "2", "3")]
    for number in range(2, 8):
        stream.send(conversation(200, groups=GROUPS, seed=number))
        time.sleep(0.3)
    for one in jobs:
        one.wait_for_output("delivered", 60)
    for one in jobs:
        one.stop()
        assert one.process.returncode == 0, one.said
    for partitions in ("0-1", "2", "3"):
        once(stream, partitions)
    check(stream)
    owners = progress_of(stream).owners
    assert [owners[at].transactional_id.partition(":")[2] for at in range(PARTITIONS)] == ["0-1", "0-1", "2", "3"]


def test_a_job_writes_ticks_only_into_its_own_partitions(stream: Stream, start: Callable[..., Running]) -> None:
    stream.send(conversation(100, groups=GROUPS))
    running = start("1,3", PRECEDE_TICK_S="0.1")
    running.until(lambda: sum(b'"tick"' in (value or b"") for _, value, *_ in stream.raw()) >= 6, "ticks", 30)
    running.stop()
    assert {partition for _, value, partition, *_ in stream.raw() if b'"tick"' in (value or b"")} == {1, 3}


# ── moving partitions ─────────────────────────────────────────────────────────────────────────────────────────────


def test_partitions_move_from_job_to_job_by_stopping_changing_and_starting(stream: Stream) -> None:
    """One to four, in several cuts; caches of other partitions are made again."""
    cuts = (("0-1", "2-3"), ("0", "1-3"), ("0-3",), ("3", "0,2", "1"), ("0-1", "2-3"))
    for number, cut in enumerate(cuts):
        stream.send(conversation(400, groups=GROUPS, seed=number))
        for partitions in cut:
            once(stream, partitions)
        check(stream)


@pytest.mark.parametrize("point", POINTS)
def test_partitions_of_a_job_that_was_killed_are_taken_over(
    stream: Stream, start: Callable[..., Running], tmp_path: Path, point: str
) -> None:
    """One of them goes to a job that runs on under other partitions, the other one to a new job."""
    stream.send(conversation(600, groups=GROUPS))
    other = start("2-3")
    killed = start("0-1", f"{point}:3")
    send_slowly(stream, (tmp_path / "reached").exists)
    killed.reaches()
    killed.kill_driver()
    other.stop()
    assert other.process.returncode == 0, other.said
    once(stream, "1-3")
    once(stream, "0")
    check(stream)


def test_a_job_that_claims_one_partition_ends_only_the_job_that_had_it(
    stream: Stream, start: Callable[..., Running]
) -> None:
    stream.send(conversation(500, groups=GROUPS))
    first, second = start("0-1"), start("2-3")
    for one in (first, second):
        one.wait_for_output("delivered", 60)
    third = start("1")
    assert first.ends(15) == 3
    first.listener.join(10)
    assert any("Another job took over" in line and "of raw partition 1" in line for line in first.said), first.said
    stream.send(conversation(500, groups=GROUPS, seed=2))
    time.sleep(2)
    for one in (second, third):
        one.stop()
        assert one.process.returncode == 0, one.said
    for partitions in ("0", "1", "2-3"):
        once(stream, partitions)
    check(stream)


# ── who looks ─────────────────────────────────────────────────────────────────────────────────────────────────────


def precede(stream: Stream, *arguments: str) -> Any:
    """The answer of a command, as JSON lines."""
    settings = stream.settings
    names = ("raw_topic", "ordered_topic", "dead_letter_topic", "progress_topic", "control_topic", "bootstrap")
    variables = {f"PRECEDE_{name.upper()}": str(getattr(settings, name)) for name in names}
    done = subprocess.run(
        [sys.executable, "-m", "precede", *arguments, "--json"],
        cwd=HOME,
        env=variables | {"PYTHONPATH": str(HOME), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_held_groups_and_why_know_the_groups_of_all_jobs(stream: Stream) -> None:
    groups = [f"g-{number}" for number in range(12)]
    assert {partition_of(name.encode(), PARTITIONS) for name in groups} == set(range(PARTITIONS))
    waiting = [
        (name.encode(), msgspec.json.encode({"group": name, "sender": "ann", "seq": 2, "after": [["ann", 0, 1]]}))
        for name in groups
    ]
    stream.send(waiting)
    once(stream, "0-1")
    once(stream, "2-3")
    assert {one["group"] for one in precede(stream, "held")} == set(groups)
    assert {one["group"] for one in precede(stream, "groups")} == set(groups)
    for name in groups:
        (found,) = precede(stream, "why", name, "ann:2")
        assert found["end"] == "held", found


def test_a_live_reader_of_all_groups_reads_beside_all_jobs_whichever_has_what(
    stream: Stream, start: Callable[..., Running]
) -> None:
    """Its token goes on in a committed reader, after a partition has moved."""
    got: list[tuple[bytes, bytes]] = []
    token: str | None = None

    def read(*, live: bool) -> None:
        nonlocal token
        wanted = by_kernel(stream.raw(), partitions=PARTITIONS)[0]
        with reading.follow(config=stream.settings, token=token, live=live) as follower:
            deadline = time.monotonic() + 60
            while len(got) < sum(map(len, wanted.values())) and time.monotonic() < deadline:
                one = follower.poll(0.5)
                if one is not None:
                    got.append((one.group.encode(), one.record))
            token = follower.token
        assert by_group(got) == wanted

    stream.send(conversation(500, groups=GROUPS))
    jobs = [start("0-1"), start("2-3")]
    for one in jobs:
        one.wait_for_output("delivered", 60)
    stream.send(conversation(500, groups=GROUPS, seed=2))
    read(live=True)
    jobs[0].kill_driver()
    stream.send(conversation(500, groups=GROUPS, seed=3))
    read(live=True)  # two of the partitions have no job now
    jobs[1].stop()
    for partitions in ("0-2", "3"):
        once(stream, partitions)
    read(live=False)
    check(stream)


def test_a_log_that_lost_its_beginning_concerns_only_the_job_of_that_partition(stream: Stream) -> None:
    for seed in (1, 2):
        stream.send(conversation(400, groups=GROUPS, seed=seed))
        if seed == 1:
            for partitions in ("0-1", "2-3"):
                once(stream, partitions)
    end = 1 + max(offset for _, _, partition, offset, _ in stream.raw() if partition == 2)
    ordered = by_kernel(stream.raw(), partitions=PARTITIONS)[0]
    stream.cut_partition(stream.settings.raw_topic, 2, end)
    once(stream, "0-1")
    once(stream, "3")
    with pytest.raises(Refused, match="no longer reaches back to the horizon: its partition 2 begins at"):
        once(stream, "2")
    mine = {key: values for key, values in ordered.items() if partition_of(key, PARTITIONS) != 2}
    assert {key: values for key, values in stream.ordered().items() if key in mine} == mine


# ── what is refused ───────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"order": "fifo"}, "was made with the order s_b, not fifo"),
        ({"limits": Limits(window=50)}, "was made with other limits"),
        ({"raw_partitions": "2-4"}, "raw_partitions is 2-4, but the raw topic .* has 4 partitions"),
    ],
)
def test_a_job_of_other_partitions_must_make_the_same_stream(stream: Stream, more: Any, sentence: str) -> None:
    stream.send(conversation(100, groups=GROUPS))
    once(stream, "0-1")
    settings = msgspec.structs.replace(stream.settings, **({"raw_partitions": "2-3", "once": True} | more))
    with pytest.raises(Refused, match=sentence):
        job.run(settings, say=lambda _: None)
    once(stream, "2-3")
    check(stream)


def test_all_jobs_need_the_same_state_topic_and_a_job_of_all_partitions_can_change_it(stream: Stream) -> None:
    stream.send(conversation(400, groups=GROUPS))
    for partitions in ("0-1", "2-3"):
        once(stream, partitions)
    before = stream.settings.state_topic_name
    stream.change(state_topic=f"{before}.new")
    topics.ensure(stream.settings.bootstrap, stream.settings.topics())
    with pytest.raises(
        Refused, match=rf"is {before}.new, but that of the job of raw partition 2 is {before}; all jobs"
    ):
        once(stream, "0-1")
    once(stream, None)
    stream.send(conversation(400, groups=GROUPS, seed=2))
    for partitions in ("0-1", "2-3"):
        once(stream, partitions)
    check(stream)


# ── with Spark ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_spark_s_jobs_share_the_partitions_and_one_writes_all_history(
    broker: Broker, tmp_path: Path, spark: SparkSession
) -> None:
    """Two jobs and one write the same topics and tables; then a partition moves, into a new checkpoint."""
    stream = Stream(broker.bootstrap, tmp_path, partitions=PARTITIONS, tick_s=0)

    def run(partitions: str, folder: str, **more: Any) -> list[str]:
        return stream.once(spark, raw_partitions=partitions, checkpoint=str(tmp_path / folder), **more)

    stream.send(conversation(800, groups=GROUPS))
    run("0-1", "first", only="order")
    run("2-3", "second")
    check(stream)
    assert len(stream.table("deliveries")) == 800
    stream.send(conversation(400, groups=GROUPS, seed=2))
    with pytest.raises(Refused, match=r"second is of the partitions 2-3 .*, and this job orders the partitions 1-3"):
        run("1-3", "second")
    run("1-3", "third", only="order")
    with pytest.raises(Refused, match=r"first is of the partitions 0-1 .*, and this job orders the partitions 0; take"):
        run("0", "first", only="order")
    run("0", "fourth", only="order")
    stream.once(spark, only="history", checkpoint=str(tmp_path / "second"))
    check(stream)
    rows = stream.table("deliveries")
    ordered = stream.ordered()
    assert sorted(row["record"].encode() for row in rows) == sorted(
        value for some in ordered.values() for value in some
    )
