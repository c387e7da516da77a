"""Live reading beside the real job, while that runs, is killed and starts again."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic

import pytest
from pyspark.sql import SparkSession

import precede
from precede.local.embedded_broker import Broker
from tests.faults.running import Running
from tests.records import by_group, by_kernel, conversation
from tests.system.stream import Stream

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def running() -> Iterator[list[Running]]:
    jobs: list[Running] = []
    yield jobs
    for one in jobs:
        one.kill()


@pytest.mark.parametrize("engine", ["process", "spark"])
def test_live_equals_committed_over_a_job_that_runs_is_killed_and_starts_again(
    broker: Broker, tmp_path: Path, running: list[Running], engine: str
) -> None:
    stream = Stream(
        broker.bootstrap,
        tmp_path,
        engine=engine,
        only="order",
        cache=str(tmp_path / "cache"),
        state_every_s=0.5,
        max_offsets_per_trigger=150,
    )
    talk = conversation(3_000, groups=10)
    got: list[tuple[bytes, bytes]] = []
    token: str | None = None

    def read(until: int, live_state: Path | None = None) -> None:
        """Read live until so many records are there, and go on from the token."""
        nonlocal token
        deadline = monotonic() + 120
        with precede.follow(config=stream.settings, token=token, live=True, live_state=live_state) as follower:
            while len(got) < until and monotonic() < deadline:
                one = follower.poll(0.5)
                if one is not None:
                    got.append((one.group.encode(), one.record))
            token = follower.token
        assert len(got) >= until, f"only {len(got)} of {until} came"

    def whole() -> int:
        return sum(map(len, by_kernel(stream.raw(), partitions=2)[0].values()))

    stream.send(talk[:1_000])
    running.append(Running(stream, fault="order.open:4", folder=tmp_path))
    running[-1].reaches()
    read(whole())  # the job stands in the middle of a transaction
    running[-1].kill()
    stream.send(talk[1_000:2_000])
    read(whole(), tmp_path / "live.state")  # no job runs
    stream.change(engine="process")  # whatever ran before
    running.append(Running(stream))
    stream.send(talk[2_000:])
    read(whole(), tmp_path / "live.state")  # it catches up
    running[-1].until(lambda: sum(map(len, stream.ordered().values())) == whole(), "all of it")
    committed = stream.ordered()
    assert by_group(got) == committed
    running[-1].kill()
    with precede.follow(config=stream.settings, token=token, patience_s=2.0) as follower:
        assert [one.record for one in follower] == []
    with precede.follow(config=stream.settings, live=True, patience_s=5.0) as follower:
        again = by_group((one.group.encode(), one.record) for one in follower)
    assert again == committed


@contextmanager
def live_reader(stream: Stream, got: list[tuple[bytes, bytes]]) -> Iterator[None]:
    """Reads live in a thread of its own, into `got`."""
    ended = threading.Event()

    def read() -> None:
        with precede.follow(config=stream.settings, live=True) as follower:
            while not ended.is_set():
                one = follower.poll(0.2)
                if one is not None:
                    got.append((one.group.encode(), one.record))

    reader = threading.Thread(target=read)
    reader.start()
    try:
        yield
    finally:
        ended.set()
        reader.join(30)


def test_a_live_reader_goes_on_while_the_job_begins_again_with_other_shards_from_the_state_topic(
    broker: Broker, spark: SparkSession, tmp_path: Path
) -> None:
    stream = Stream(broker.bootstrap, tmp_path, only="order", max_offsets_per_trigger=200)
    talk = conversation(2_400, groups=12, late=0.5)
    got: list[tuple[bytes, bytes]] = []
    stream.send(talk[:600])
    stream.once(spark)
    with live_reader(stream, got):
        for part, shards in enumerate((3, 16, 1), start=1):
            stream.send(talk[600 * part : 600 * (part + 1)])
            stream.change(checkpoint=str(tmp_path / f"checkpoint {part}"), shards=shards)
            assert any("has been read from" in line for line in stream.once(spark)), "it began at the state topic"
        whole, _ = by_kernel(stream.raw(), partitions=2)
        deadline = monotonic() + 30
        while len(got) < sum(map(len, whole.values())) and monotonic() < deadline:
            threading.Event().wait(0.1)
    assert stream.ordered() == whole
    assert by_group(got) == whole
