"""The job as a process of its own: killed, stopped, and with the broker gone for a while."""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from pyspark.sql import SparkSession

from precede.embedded_broker import Broker
from tests.records import by_kernel, conversation
from tests.system.stream import Stream, contiguous


class Running:
    """A job's process and what it has said so far."""

    def __init__(self, stream: Stream) -> None:
        self.process = stream.start()
        self.said: list[str] = []
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said.append(line.rstrip())

    def hears(self, words: str, seconds: float = 240) -> None:
        self.until(lambda: any(words in line for line in self.said), f"“{words}”", seconds)

    def until(self, true: Callable[[], bool], what: str, seconds: float = 240) -> None:
        deadline = time.monotonic() + seconds
        while not true():
            assert self.process.poll() is None, f"the job ended: {self.said}"
            assert time.monotonic() < deadline, f"waited {seconds} s for {what}: {self.said}"
            time.sleep(0.1)

    def kill(self) -> None:
        """kill -9 for the driver, its JVM and its Python workers."""
        if self.process.poll() is None:
            whole = [*psutil.Process(self.process.pid).children(recursive=True), psutil.Process(self.process.pid)]
            for one in whole:
                with suppress(psutil.NoSuchProcess):
                    one.kill()
        self.process.wait(30)


@pytest.fixture
def run() -> Iterator[Callable[[Stream], Running]]:
    running: list[Running] = []

    def start(stream: Stream) -> Running:
        running.append(Running(stream))
        return running[-1]

    yield start
    for one in running:
        one.kill()


pytestmark = pytest.mark.timeout(900)
"""Spark is started four times here, on whatever machine there is."""


def count(stream: Stream) -> int:
    return sum(map(len, stream.ordered().values()))


def test_a_job_killed_in_the_middle_twice_leaves_each_position_once(
    broker: Broker, spark: SparkSession, tmp_path: Path, run: Callable[[Stream], Running]
) -> None:
    stream = Stream(broker.bootstrap, tmp_path, max_offsets_per_trigger=150)
    talk = conversation(6_000, groups=10)
    stream.send(talk)
    for enough in (300, 1_500):
        running = run(stream)
        running.until(lambda: count(stream) > enough, f"{enough} ordered records")  # noqa: B023 (called at once)
        running.kill()
    killed_at = count(stream)
    assert killed_at < 5_900, "the job was through before it was killed"
    assert contiguous(stream.ordered())

    stream.once(spark, max_offsets_per_trigger=200_000)
    assert stream.ordered() == by_kernel(stream.raw())[0]
    seen = [(row["group"], row["position"]) for row in stream.table("deliveries")]
    assert len(seen) == len(set(seen)) == count(stream)


def test_a_broker_away_in_between_is_waited_for_and_sigterm_ends_the_job_with_0(
    tmp_path: Path, run: Callable[[Stream], Running]
) -> None:
    talk = conversation(400)
    with Broker(data=tmp_path / "broker") as broker:
        stream = Stream(broker.bootstrap, tmp_path, only="order")
        stream.send(talk[:200])
        running = run(stream)
        running.until(lambda: count(stream) > 150, "the first half")
        port = broker.port
    running.hears("does not answer; nothing is lost")
    with Broker(port, data=tmp_path / "broker"):
        stream.send(talk[200:])
        expected = by_kernel(stream.raw())[0]
        running.until(lambda: stream.ordered() == expected, "the second half")
        asked = time.monotonic()
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(30) == 0
        assert time.monotonic() - asked < 15
    assert running.said[-1].startswith("Stopped: ")
    assert not [line for line in running.said if "Traceback" in line or "WARN" in line or "Exception" in line]
