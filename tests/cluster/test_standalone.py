"""The job on a standalone cluster, by spark-submit, with its files in an S3 store: what is killed loses nothing."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from precede.commands.bundle import bundle
from precede.local.embedded_broker import Broker
from tests.cluster.config import config_of
from tests.cluster.s3 import Store
from tests.cluster.standalone import WAIT_S, Standalone, Submitted
from tests.faults.judge import judge
from tests.faults.scene import BAD
from tests.records import conversation
from tests.system.stream import Stream


@pytest.fixture(scope="module")
def store() -> Iterator[Store]:
    with Store() as running:
        yield running


@pytest.mark.timeout(900)
def test_executors_workers_and_drivers_are_killed_and_nothing_is_lost(
    broker: Broker, store: Store, tmp_path: Path
) -> None:
    stream = Stream(
        broker.bootstrap,
        tmp_path,
        shards=4,
        max_offsets_per_trigger=60,
        history_every_s=2.0,
        ask_after_ms=500,
        state_every_s=0.5,
    )
    stream.change(checkpoint=store.uri("checkpoint"), delta=store.uri("delta"), spark=store.spark_table())
    config = tmp_path / "own.toml"
    config.write_text(config_of(stream.settings))
    for name in ("one", "elsewhere"):
        bundle(tmp_path / name, config)
    pairs: list[tuple[bytes | None, bytes | None]] = [*conversation(500, groups=6), *BAD]
    size = len(pairs) // 4 + 1
    parts = [pairs[at : at + size] for at in range(0, len(pairs), size)]

    def ordered() -> int:
        return sum(map(len, stream.ordered().values()))

    def send(driver: Submitted, part: list[tuple[bytes | None, bytes | None]], what: str) -> None:
        before = ordered()
        stream.send(part)
        driver.wait_for(lambda: ordered() > before + 40, what)

    with Standalone(tmp_path) as cluster:
        values = ["spark.executor.memory=600m", "spark.driver.memory=600m", f"spark.pyspark.python={sys.executable}"]
        options = ["--master", cluster.url, *(word for value in values for word in ("--conf", value))]
        first = Submitted(tmp_path / "one", *options)
        try:
            send(first, parts[0], "the first messages")
            cluster.executors()[0].kill()
            send(first, parts[1], "messages after an executor was killed")
            cluster.kill_worker()
            send(first, parts[2], "messages after a worker was killed")
        finally:
            first.kill()
        second = Submitted(tmp_path / "elsewhere", *options)
        try:
            second.wait_for(lambda: second.says("waiting until it has not been renewed"), "a word about the lease")
            send(second, parts[3], "messages of a driver elsewhere")
            second.stop()
            assert second.says("Stopped: "), second.said[-40:]
        finally:
            second.kill()
        last = Submitted(tmp_path / "elsewhere", *options, variables={"PRECEDE_ONCE": "true"})
        try:
            assert last.process.wait(WAIT_S) == 0, last.said[-40:]
            assert not last.says("A lease of"), "the driver that was stopped gave its leases back"
        finally:
            last.kill()
    problems = judge(stream, tmp_path, None, is_held_in_topic=True)
    assert problems == [], problems
