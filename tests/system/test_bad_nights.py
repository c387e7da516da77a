"""A night with a broker that goes away: the process stays, says that it is not ready, and goes on by itself."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from precede.local.embedded_broker import Broker, free_port
from tests.faults.power import cut_power
from tests.faults.running import Running
from tests.records import by_kernel, conversation
from tests.system.stream import AWAY_S_MAX, Stream

AWAY_S = float(os.environ.get("TEST_AWAY_S", "15"))
"""How long the broker stays away; `make test-nights` takes it away for ten minutes."""

pytestmark = pytest.mark.timeout(500 + AWAY_S)


def status(port: int, page: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("GET", f"/{page}")
    return connection.getresponse().status


def page_of(port: int, page: str) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("GET", f"/{page}")
    return connection.getresponse().read().decode()


def answers(port: int) -> bool:
    """Whether the pages are there."""
    with suppress(OSError):
        return status(port, "live") > 0
    return False


def metric(port: int, name: str) -> float:
    found = re.search(rf"^{re.escape(name)} (\S+)$", page_of(port, "metrics"), re.MULTILINE)
    assert found is not None, name
    return float(found[1])


@pytest.mark.parametrize("engine", ["process", "spark"])
def test_a_broker_that_is_away_restarts_nothing(tmp_path: Path, engine: str) -> None:
    """Liveness stays all the time, readiness follows the broker, and times are told when it is back."""
    page = free_port()
    with Broker(data=tmp_path / "broker") as broker:
        more: dict[str, Any] = {
            "engine": engine,
            "only": "order" if engine == "process" else None,
            "cache": str(tmp_path / "cache"),
            "metrics": str(page),
        }
        stream = Stream(broker.bootstrap, tmp_path, **more)
        stream.send(conversation(500))
        running = Running(stream, variables={AWAY_S_MAX: "8"})
        try:
            running.until(lambda: sum(map(len, stream.ordered().values())) == 500, "the first messages")
            running.until(lambda: status(page, "ready") == 200, "a job that is ready")
            port = broker.port
            assert metric(page, 'precede_delay_seconds_bucket{le="+Inf"}') == pytest.approx(500)
            assert 0 < metric(page, "precede_delay_seconds_sum") / 500 < 120
            assert metric(page, 'precede_hold_seconds_bucket{le="+Inf"}') > 20
            if engine == "spark":
                name = 'precede_history_lag_seconds{table="deliveries"}'
                running.until(lambda: name in page_of(page, "metrics"), "the first batch of history")
                running.until(lambda: metric(page, name) < 10, "no lag of history")
            cut_power(broker)
            until = time.monotonic() + AWAY_S
            was_ready = []
            while time.monotonic() < until:
                assert status(page, "live") == 200
                was_ready.append(status(page, "ready") == 200)
                assert running.process.poll() is None, running.said
                time.sleep(0.5)
            assert not was_ready[-1], "a job without Kafka does not do its work"
            with Broker(port, data=tmp_path / "broker"):
                stream.send(conversation(500, seed=2))
                expected = by_kernel(stream.raw())[0]
                running.until(lambda: stream.ordered() == expected, "the rest")
                running.until(lambda: status(page, "ready") == 200, "a job that is ready again")
                for partition in (0, 1):
                    name = f'precede_lag_seconds{{partition="{partition}"}}'
                    running.until(lambda name=name: metric(page, name) < 10, "no lag")  # type: ignore[misc]
                running.stop()
        finally:
            running.kill()
    assert running.process.returncode == 0, running.said


@pytest.mark.parametrize("engine", ["process", pytest.param("spark", marks=pytest.mark.nightly)])
def test_a_job_that_starts_while_the_broker_is_away_is_alive_and_waits(tmp_path: Path, engine: str) -> None:
    """A startup probe asks for liveness, and gives up a pod that does not answer for ten minutes."""
    page = free_port()
    with Broker(data=tmp_path / "broker") as broker:
        more: dict[str, Any] = {"engine": engine, "only": "order", "cache": str(tmp_path / "cache")}
        stream = Stream(broker.bootstrap, tmp_path, metrics=str(page), **more)
        stream.send(conversation(500))
        port = broker.port
        expected = by_kernel(stream.raw())[0]
        cut_power(broker)
    running = Running(stream, program=("-m", "precede", "run"))
    try:
        running.until(lambda: answers(page), "the pages", 60)
        until = time.monotonic() + AWAY_S
        while time.monotonic() < until:
            assert status(page, "live") == 200
            assert status(page, "ready") == 503
            assert running.process.poll() is None, running.said
            time.sleep(0.5)
        problems = json.loads(page_of(page, "ready"))["problems"]
        assert problems == ["Kafka has not answered yet.", "The job is starting: it waits for its topics in Kafka."]
        with Broker(port, data=tmp_path / "broker"):
            running.until(lambda: stream.ordered() == expected, "the messages")
            running.until(lambda: status(page, "ready") == 200, "a job that is ready")
            running.stop()
    finally:
        running.kill()
    assert running.process.returncode == 0, running.said


def test_a_job_that_waits_for_the_broker_can_be_stopped(tmp_path: Path) -> None:
    page = free_port()
    given = {"PRECEDE_CACHE": str(tmp_path / "cache"), "PRECEDE_BOOTSTRAP": f"127.0.0.1:{free_port()}"}
    given |= {"PRECEDE_ENGINE": "process", "PRECEDE_METRICS": str(page)}
    command = [sys.executable, "-m", "precede", "run"]
    with subprocess.Popen(command, env=os.environ | given, cwd=tmp_path) as process:
        deadline = time.monotonic() + 60
        while not answers(page):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
