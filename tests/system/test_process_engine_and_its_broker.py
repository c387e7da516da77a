"""The engine of one process while its broker is away for a minute, slow, or knows little of its state."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from precede.local.embedded_broker import HOST, Broker
from tests.faults.power import cut_power
from tests.faults.running import Running
from tests.records import by_kernel, conversation
from tests.system.door import Door
from tests.system.stream import Stream
from tests.system.test_process_engine import PARTITIONS, check, new_stream, once
from tests.system.test_state_topic import progress_of

AWAY_S = 60.0


class Away(NamedTuple):
    """A stream whose broker was killed in the middle of a transaction."""

    broker: Broker
    stream: Stream
    running: Running
    killed_at: float


@pytest.fixture(scope="module", autouse=True)
def away(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Away]:
    """The minute passes while the other tests of this file run."""
    folder = tmp_path_factory.mktemp("away")
    with Broker(data=folder / "broker") as broker:
        stream = new_stream(broker.bootstrap, folder)
        stream.send(conversation(500, groups=20))
        running = Running(stream, fault="order.open:2", folder=folder)
        try:
            for part in range(2, 300):  # a little at a time, so that there is a second transaction
                if (folder / "reached").exists():
                    break
                stream.send(conversation(20, groups=20, seed=part))
                time.sleep(0.1)
            running.reaches()
            cut_power(broker)
            running.goes_on()
            yield Away(broker, stream, running, time.monotonic())
        finally:
            running.kill()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[Stream], Running]]:
    """Starts a job as a process; it ends with the test."""
    running: list[Running] = []

    def start(stream: Stream) -> Running:
        running.append(Running(stream))
        return running[-1]

    yield start
    for one in running:
        one.kill()


def delivered(stream: Stream) -> int:
    return sum(map(len, stream.ordered().values()))


def deliverable(stream: Stream) -> int:
    """How much of what is in the log now can be delivered."""
    return sum(map(len, by_kernel(stream.raw(), partitions=PARTITIONS)[0].values()))


def test_a_broker_that_answers_slowly_makes_the_job_slow_and_nothing_else(
    tmp_path: Path, start: Callable[[Stream], Running]
) -> None:
    with Door() as door:
        properties = {"advertised.listeners": f"PLAINTEXT://{HOST}:{door.port}"}
        with Broker(door.behind, data=tmp_path / "broker", properties=properties):
            stream = new_stream(f"{HOST}:{door.port}", tmp_path)
            stream.send(conversation(1_000, groups=20))
            running = start(stream)
            running.wait_for_output("delivered", 30)
            door.slow_s = 0.3
            stream.send(conversation(1_000, groups=20, seed=2))
            time.sleep(5)
            door.slow_s = 0.0
            expected = deliverable(stream)
            running.until(lambda: delivered(stream) == expected, "the rest", 30)
            running.stop()
            assert running.process.returncode == 0
            assert not any("again" in line or "Trying" in line for line in running.said), running.said
            once(stream)
            check(stream)


def test_a_state_topic_that_is_far_behind_costs_only_reading(
    broker: Broker, tmp_path: Path, start: Callable[[Stream], Running]
) -> None:
    stream = new_stream(broker.bootstrap, tmp_path)
    stream.send(conversation(500, groups=20))
    once(stream)
    stream.change(state_every_s=3_600.0)
    stream.send(conversation(1_500, groups=20, seed=2))
    expected = deliverable(stream)
    running = start(stream)
    running.until(lambda: delivered(stream) == expected, "what is there", 30)
    running.kill_driver()
    progress = progress_of(stream)
    assert all(progress.token[at] - progress.horizon[at] > 100 for at in range(PARTITIONS))
    shutil.rmtree(stream.settings.cache)
    stream.send(conversation(500, groups=20, seed=3))
    once(stream)
    check(stream)


def test_of_two_jobs_started_at_the_same_moment_one_goes_on(
    broker: Broker, tmp_path: Path, start: Callable[[Stream], Running]
) -> None:
    stream = new_stream(broker.bootstrap, tmp_path)
    stream.send(conversation(500, groups=20))
    first = start(stream)
    stream.change(cache=str(tmp_path / "other cache"))
    second = start(stream)

    def ended() -> list[Running]:
        return [one for one in (first, second) if one.process.poll() is not None]

    deadline = time.monotonic() + 30
    while not ended():
        assert time.monotonic() < deadline, (first.said, second.said)
        time.sleep(0.1)
    (loser,) = ended()
    winner = second if loser is first else first
    loser.listener.join(10)
    assert any("Another job took over" in line for line in loser.said), loser.said
    stream.send(conversation(500, groups=20, seed=2))
    expected = deliverable(stream)
    winner.until(lambda: delivered(stream) == expected, "all of it", 30)
    winner.stop()
    once(stream)
    check(stream)


@pytest.mark.timeout(300)
def test_a_broker_that_is_away_for_a_minute_costs_nothing(away: Away) -> None:
    """The last test of this file: the minute began with the first one."""
    broker, stream, running, killed_at = away
    time.sleep(max(0.0, AWAY_S - (time.monotonic() - killed_at)))
    assert running.process.poll() is None, running.said
    assert any("Cannot reach" in line or "not answer" in line for line in running.said), running.said
    broker.start()
    stream.send(conversation(500, groups=20, seed=1_000))
    expected = deliverable(stream)
    running.until(lambda: delivered(stream) == expected, "the rest", 120)
    running.stop()
    assert running.process.returncode == 0
    once(stream)
    check(stream)
