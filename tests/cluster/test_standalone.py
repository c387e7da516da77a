"""The job on a standalone cluster, by spark-submit, with its files in an S3 store: what is killed loses nothing."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from precede.local.embedded_broker import Broker
from tests.cluster.cluster_stream import REST, ClusterStream
from tests.cluster.s3 import Store
from tests.cluster.standalone import WAIT_S, Standalone, Submitted
from tests.faults.judge import judge


@pytest.fixture(scope="module")
def store() -> Iterator[Store]:
    with Store() as running:
        yield running


@pytest.mark.timeout(900)
def test_executors_workers_and_drivers_are_killed_and_nothing_is_lost(
    broker: Broker, store: Store, tmp_path: Path
) -> None:
    stream = ClusterStream(broker, tmp_path)
    stream.change(checkpoint=store.uri("checkpoint"), delta=store.uri("delta"), spark=store.spark_table())
    one, elsewhere = stream.bundle("one"), stream.bundle("elsewhere")
    with Standalone(tmp_path) as cluster:
        values = ["spark.executor.memory=600m", "spark.driver.memory=600m", f"spark.pyspark.python={sys.executable}"]
        options = ["--master", cluster.url, *(word for value in values for word in ("--conf", value))]
        first = Submitted(one, *options)
        try:
            stream.send_part(first, "the first messages")
            cluster.executors()[0].kill()
            stream.send_part(first, "messages after an executor was killed")
            cluster.kill_worker()
            stream.send_part(first, "messages after a worker was killed")
        finally:
            first.kill()
        second = Submitted(elsewhere, *options)
        try:
            second.wait_for(lambda: second.says("waiting until it has not been renewed"), "a word about the lease")
            stream.send_part(second, "messages of a driver elsewhere")
            second.stop()
            assert second.says("Stopped: "), second.said[-40:]
        finally:
            second.kill()
        last = Submitted(elsewhere, *options, variables=REST)
        try:
            assert last.process.wait(WAIT_S) == 0, last.said[-40:]
            assert not last.says("A lease of"), "the driver that was stopped gave its leases back"
        finally:
            last.kill()
    problems = judge(stream, tmp_path, None, is_held_in_topic=True)
    assert problems == [], problems
