"""Two real jobs: the second takes over, and the first, whatever it does at that moment, ends by itself."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from precede.ingest.kafka.topics import describe
from precede.ingest.progress import read_progress
from precede.local.embedded_broker import Broker
from precede.streaming.process import cache
from precede.streaming.spark import restore
from precede.udfs.errors import TakenOver
from precede.udfs.shard import RestoredGroup, ShardState, initial_states
from tests.faults.running import Running
from tests.records import conversation
from tests.system.stream import Stream, contiguous
from tests.system.test_ownership import NAMED, Job

pytestmark = pytest.mark.timeout(600)

RUN = ("-m", "precede", "run")
TAKEN_OVER_S_MAX = 15
TAKEN_OVER = 3


def owners(stream: Stream) -> set[str]:
    settings = stream.settings
    topic = describe(settings.bootstrap, [settings.progress_topic])[settings.progress_topic]
    found = read_progress(settings.bootstrap, topic, settings.ordered_topic, settled=False)
    return {owner.job for owner in found.owners.values()}


def ends_with(status: int, job: Running) -> None:
    try:
        assert job.ends(TAKEN_OVER_S_MAX) == status
    except subprocess.TimeoutExpired:
        pytest.fail(f"the job still runs: {job.said}")


@pytest.mark.parametrize(
    ("engine", "fault"),
    [
        pytest.param("spark", None, id="Spark, idle"),
        pytest.param("spark", "order.work:1", id="Spark, in a batch that takes long"),
        pytest.param("process", None, id="process, idle"),
        pytest.param("process", "order.open:1", id="process, in a transaction that takes long"),
    ],
)
def test_a_job_that_was_taken_over_ends_with_3_within_15_seconds_and_names_both(
    broker: Broker, tmp_path: Path, engine: str, fault: str | None
) -> None:
    stream = Stream(broker.bootstrap, tmp_path, only="order", tick_s=0, cache=str(tmp_path / "cache"))
    stream.send(conversation(100))
    first = Running(stream, fault=fault, folder=tmp_path, program=(*RUN, "--engine", engine))
    others: list[Running] = []
    try:
        if fault is None:
            first.until(lambda: sum(map(len, stream.ordered().values())) == 100, "the first job's output")
        else:
            first.reaches()
        (before,) = owners(stream)
        stream.change(checkpoint=str(tmp_path / "second"), cache=str(tmp_path / "second-cache"), engine=engine)
        second = Running(stream)
        others.append(second)
        second.until(lambda: owners(stream) != {before}, "the second job's owner records")
        ends_with(TAKEN_OVER, first)
        first.listener.join(10)
        named = [match for line in first.said if (match := NAMED.search(line))]
        assert named, first.said
        (after,) = owners(stream)
        assert named[0].groups() == (stream.settings.ordered_topic, after[:8], engine, before[:8], engine)
        stream.send([(b"another", msgspec.json.encode({"group": "another", "sender": "ann", "seq": 1, "after": []}))])
        second.until(lambda: b"another" in stream.ordered(), "the second job's output")
        assert contiguous(stream.ordered())
    finally:
        for one in (first, *others):
            one.kill()


def put(producer: Producer, topic: str, partition: int) -> None:
    """Publish a record that is no state."""
    errors: list[object] = []
    producer.produce(topic, b"no state", b"no key", partition, on_delivery=lambda error, _: errors.append(error))
    assert (producer.flush(30), errors) == (0, [None])


@contextmanager
def long_state_topic(stream: Stream) -> Iterator[Callable[[], object]]:
    """A state topic that nobody reads to its end: a transaction is open, and at each call more has come."""
    settings = {"bootstrap.servers": str(stream.settings.bootstrap)}
    topic = stream.settings.state_topic_name
    opened, other = Producer(settings | {"transactional.id": topic}), Producer(settings)
    opened.init_transactions()
    opened.begin_transaction()
    put(opened, topic, 0)
    put(other, topic, 1)
    yield lambda: put(other, topic, 1)
    opened.abort_transaction(30)


@pytest.mark.parametrize(("is_taken_over", "status"), [(True, TAKEN_OVER), (False, 0)], ids=["taken over", "SIGTERM"])
def test_a_job_that_reads_a_large_state_notices_that_it_must_end(
    broker: Broker, tmp_path: Path, *, is_taken_over: bool, status: int
) -> None:
    stream = Stream(broker.bootstrap, tmp_path, tick_s=0, cache=str(tmp_path / "cache"))
    other = Job(stream, "spark", None)
    with long_state_topic(stream) as grow:
        first = Running(stream, program=(*RUN, "--engine", "process"))
        try:
            first.until((Path(stream.settings.cache) / cache.FILE).exists, "the cache, into which it reads")
            if is_taken_over:
                other.open()
            else:
                first.process.terminate()
            deadline = time.monotonic() + TAKEN_OVER_S_MAX
            while first.process.poll() is None and time.monotonic() < deadline:
                grow()
                time.sleep(0.2)
            assert first.process.poll() == status, first.said
        finally:
            first.kill()
            other.close()


def test_a_restore_of_a_large_state_ends_when_another_job_takes_over(
    broker: Broker, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = Stream(broker.bootstrap, tmp_path, only="order", tick_s=0, cache=str(tmp_path / "cache"))
    stream.send(conversation(100))
    stream.once(spark, engine="process")
    other = Job(stream, "process", None)

    def many(groups: Iterable[RestoredGroup], shards: int, topic: str) -> Iterator[tuple[int, ShardState]]:
        """As if there were very many shards."""
        found = list(initial_states(groups, shards, topic))
        other.open()
        deadline = time.monotonic() + TAKEN_OVER_S_MAX
        while time.monotonic() < deadline:
            yield found[0]
            time.sleep(0.1)
        yield from found
        pytest.fail("the restore went on")

    monkeypatch.setattr(restore, "initial_states", many)
    try:
        with pytest.raises(TakenOver):
            stream.once(spark)
    finally:
        other.close()
