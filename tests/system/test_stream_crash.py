"""The job as a separate process: killed, stopped, and with the broker down for a while."""

import http.client
import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from precede.local.embedded_broker import Broker, free_port
from precede.streaming.job.ticker import TICK
from tests.faults.judge import judge
from tests.faults.running import Running
from tests.records import by_kernel, conversation
from tests.system.stream import AWAY_S_MAX, Stream


@pytest.fixture
def run() -> Iterator[Callable[..., Running]]:
    running: list[Running] = []

    def start(stream: Stream, fault: str | None = None, folder: Path | None = None, **more: str) -> Running:
        running.append(Running(stream, fault=fault, folder=folder, variables=more))
        return running[-1]

    yield start
    for one in running:
        one.kill()


pytestmark = pytest.mark.timeout(900)
"""Spark starts four times here, perhaps on a slow machine."""


def look(port: int, page: str) -> tuple[int, str]:
    """What the job's monitoring answers."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("GET", f"/{page}")
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


def count(stream: Stream) -> int:
    return sum(map(len, stream.ordered().values()))


def test_a_job_killed_in_the_middle_twice_leaves_each_position_once(
    broker: Broker, spark: SparkSession, tmp_path: Path, run: Callable[..., Running]
) -> None:
    stream = Stream(broker.bootstrap, tmp_path, max_offsets_per_trigger=150)
    stream.send(conversation(6_000, groups=10))
    running = run(stream, "order.open:3", tmp_path)
    running.reaches()
    running.kill()
    killed_at = count(stream)
    assert killed_at > 0, "there was no batch before the one that was open"
    running = run(stream)
    running.until(lambda: count(stream) > killed_at + 300, "some more")
    running.kill()
    assert count(stream) < 5_900, "the job had finished before it was killed"

    stream.once(spark, max_offsets_per_trigger=200_000)
    assert judge(stream, tmp_path, spark) == []


def test_a_broker_away_in_between_is_waited_for_and_ctrl_c_ends_the_job_with_0(
    tmp_path: Path, run: Callable[..., Running]
) -> None:
    talk = conversation(400)
    with Broker(data=tmp_path / "broker") as broker:
        page = free_port()
        stream = Stream(broker.bootstrap, tmp_path, only="order", metrics=str(page))
        stream.send(talk[:200])
        running = run(stream, **{AWAY_S_MAX: "8"})  # longer than from one question to the next, with its answer
        running.until(lambda: count(stream) > 150, "the first half")
        running.until(lambda: look(page, "health")[0] == 200, "a healthy job")
        metrics = look(page, "metrics")[1]
        assert f"precede_delivered_records_total {count(stream)}.0" in metrics
        # A tick may just have come; then it is still on its way.
        running.until(lambda: 'precede_lag_records{partition="1"} 0.0' in look(page, "metrics")[1], "no lag")
        assert 'precede_batch_seconds_count{phase="transaction",query="order"}' in metrics
        assert float(re.search(r"^precede_state_bytes (\S+)$", metrics, re.MULTILINE)[1]) > 500  # type: ignore[index]
        port = broker.port
    running.wait_for_output("does not answer; nothing is lost")
    running.until(lambda: "Kafka has not answered for" in look(page, "health")[1], "a job that says it is not well")
    with Broker(port, data=tmp_path / "broker"):
        stream.send(talk[200:])
        expected = by_kernel(stream.raw())[0]
        running.until(lambda: stream.ordered() == expected, "the second half")
        asked = time.monotonic()
        running.process.send_signal(signal.SIGINT)
        assert running.process.wait(30) == 0
        assert time.monotonic() - asked < 15
        ticks = {partition for _, value, partition, *_ in stream.raw() if value == TICK}
    assert running.said[-1].startswith("Stopped: ")
    assert len([line for line in running.said if line.startswith("Ready: the job orders")]) == 1
    assert ticks == {0, 1}, "a running job lets time pass in every partition"
    assert not [line for line in running.said if "Traceback" in line or "WARN" in line or "Exception" in line]
