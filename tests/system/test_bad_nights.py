"""A night with a broker that goes away: the process stays, says that it is not ready, and goes on by itself."""

from __future__ import annotations

import http.client
import os
import re
import time
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

pytestmark = [pytest.mark.xdist_group("edge"), pytest.mark.timeout(500 + AWAY_S)]


def status(port: int, page: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("GET", f"/{page}")
    return connection.getresponse().status


def page_of(port: int, page: str) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("GET", f"/{page}")
    return connection.getresponse().read().decode()


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
