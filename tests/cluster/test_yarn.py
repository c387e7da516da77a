"""The job on YARN in cluster mode, by spark-submit, with its files in HDFS: what is killed loses nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from precede.local.embedded_broker import Broker
from tests.cluster.cluster_stream import REST, ClusterStream
from tests.cluster.hdfs import Hdfs
from tests.cluster.standalone import WAIT_S, Submitted, kill, wait_for
from tests.cluster.yarn import Yarn
from tests.faults.judge import judge
from tests.faults.running import Running
from tests.records import by_kernel, conversation

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(900)]

LEASE = "A lease of"


@pytest.fixture(scope="module")
def hdfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hdfs]:
    with Hdfs(tmp_path_factory.mktemp("hdfs")) as running:
        yield running


@pytest.fixture(scope="module")
def yarn(hdfs: Hdfs, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yarn]:
    with Yarn(tmp_path_factory.mktemp("yarn"), hdfs) as running:
        yield running


def submit(yarn: Yarn, job: Path, *values: str, variables: dict[str, str] | None = None) -> Submitted:
    return Submitted(job, *yarn.options(*values, variables=variables), variables={"HADOOP_CONF_DIR": str(yarn.conf)})


def test_application_masters_and_executors_are_killed_and_nothing_is_lost(
    broker: Broker, hdfs: Hdfs, yarn: Yarn, tmp_path: Path
) -> None:
    stream = ClusterStream(broker, tmp_path)
    stream.change(checkpoint=f"{hdfs.url}/chats/checkpoint", delta=f"{hdfs.url}/chats/delta")
    job = stream.bundle()
    driver = submit(yarn, job, "spark.yarn.maxAppAttempts=4")
    try:
        stream.send_part(driver, "the first messages")
        yarn.application_master().terminate()
        driver.wait_for(lambda: " batches, " in yarn.said(attempt=2), "an attempt after one that was told to end")
        stream.send_part(driver, "messages after the application master was told to end")
        assert "Stopped: " in yarn.said(attempt=1)
        assert LEASE not in yarn.said(attempt=2), "the driver that was told to end gave its leases back"
        kill(yarn.application_master())
        stream.send_part(driver, "messages after the application master was killed")
        assert LEASE in yarn.said(attempt=3)
        kill(yarn.executors()[0])
        stream.send_part(driver, "messages after an executor was killed")
        master = yarn.application_master()
        for one in [*master.children(recursive=True), master]:
            kill(one)
        driver.wait_for(
            lambda: " batches, " in yarn.said(attempt=4), "the attempt after all of the last one was killed"
        )
        yarn.kill_application()
        assert driver.process.wait(WAIT_S) == 1
        # YARN calls it killed at once, and the job is still ending.
        wait_for(lambda: not yarn.application_masters(), "the end of the application master")
        assert "Stopped: " in yarn.said(attempt=4)
    finally:
        driver.kill()
    last = submit(yarn, job, variables=REST)
    try:
        assert last.process.wait(WAIT_S) == 0, last.said[-40:]
        assert "Done: " in yarn.said()
        assert LEASE not in yarn.said(), "the driver that was stopped gave its leases back"
    finally:
        last.kill()
    problems = judge(stream, tmp_path, None, is_held_in_topic=True)
    assert problems == [], problems


def test_a_refusal_is_tried_twice_and_then_it_is_over(broker: Broker, hdfs: Hdfs, yarn: Yarn, tmp_path: Path) -> None:
    stream = ClusterStream(broker, tmp_path, tasks=0)
    stream.change(checkpoint=f"{hdfs.url}/refused/checkpoint", delta=f"{hdfs.url}/refused/delta")
    driver = submit(yarn, stream.bundle())
    try:
        assert driver.process.wait(WAIT_S) == 1, driver.said[-40:]
    finally:
        driver.kill()
    application = yarn.application()
    assert application["finalStatus"] == "FAILED"
    assert "User application exited with status 1" in application["diagnostics"]
    assert len(yarn.attempts()) == 2
    assert yarn.said().count("The setting tasks must be set where Spark runs on a cluster (yarn)") == 2


def test_a_job_that_was_taken_over_does_not_take_the_topics_back(
    broker: Broker, hdfs: Hdfs, yarn: Yarn, tmp_path: Path
) -> None:
    stream = ClusterStream(broker, tmp_path)
    own = stream.settings
    stream.change(checkpoint=f"{hdfs.url}/taken/checkpoint", delta=f"{hdfs.url}/taken/delta")
    driver = submit(yarn, stream.bundle(only="order"))
    stream.change(checkpoint=own.checkpoint, delta=own.delta)
    other: Running | None = None
    try:
        stream.send_part(driver, "the first messages")
        variables = {"PRECEDE_ENGINE": "process", "PRECEDE_ONLY": "order", "PRECEDE_CACHE": str(tmp_path / "cache")}
        other = Running(stream, variables=variables)
        assert driver.process.wait(WAIT_S) == 0, driver.said[-40:]
        assert yarn.application()["finalStatus"] == "SUCCEEDED"
        assert len(yarn.attempts()) == 1
        stream.send(conversation(200, groups=3, seed=2))
        other.until(lambda: stream.ordered() == by_kernel(stream.raw())[0], "the other job")
    finally:
        driver.kill()
        if other is not None:
            other.stop()
