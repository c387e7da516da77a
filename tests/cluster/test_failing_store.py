"""A store that fails in mid-stream: the job says so, goes on by itself, and nothing is lost or published twice."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from precede.local.embedded_broker import Broker
from tests.cluster.config import config_of
from tests.cluster.gate import Gate
from tests.cluster.s3 import Store
from tests.faults.judge import judge
from tests.faults.running import Running
from tests.faults.scene import BAD
from tests.records import conversation
from tests.system.stream import Stream

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(900)]

AWAY_S = 60
GROWS_S = 300.0
"""A client that was turned away waits longer each time, so it comes back later than the store does."""


@pytest.fixture(scope="module")
def store() -> Iterator[Store]:
    with Store() as running:
        yield running


class Outage:
    """A minute in which the store fails, and what a job did before, meanwhile and after that."""

    def __init__(self, stream: Stream, folder: Path) -> None:
        self.stream, self.folder = stream, folder
        pairs = [*conversation(300, groups=6), *BAD]
        size = len(pairs) // 3 + 1
        self.parts = [pairs[at : at + size] for at in range(0, len(pairs), size)]
        config = folder / "precede.toml"
        config.write_text(config_of(stream.settings))
        self.program = ("-m", "precede", "run", "--config", str(config))

    def last(self, begin: Callable[[], object], end: Callable[[], object]) -> list[str]:
        """Play it; returns what the job said."""
        job = Running(self.stream, program=self.program)
        try:
            self._send(job, 0)
            begin()
            self.stream.send(self.parts[1])
            time.sleep(AWAY_S)
            end()
            self._send(job, 2)
            job.wait_for_output("works again", GROWS_S)
            job.stop()
            assert job.process.returncode == 0, job.said
        finally:
            job.kill()
        done = Running(self.stream, program=(*self.program, "--once"))
        assert done.ends() == 0, done.said
        return job.said

    def _send(self, job: Running, part: int) -> None:
        before = self._ordered()
        self.stream.send(self.parts[part])
        job.until(lambda: self._ordered() > before + 40, f"part {part}", GROWS_S)

    def _ordered(self) -> int:
        return sum(map(len, self.stream.ordered().values()))


def outage(broker: Broker, store: Store, folder: Path, url: str | None = None) -> Outage:
    more: dict[str, Any] = {"shards": 4, "max_offsets_per_trigger": 60, "history_every_s": 2.0, "trigger_ms": 0}
    stream = Stream(broker.bootstrap, folder, ask_after_ms=500, state_every_s=0.5, **more)
    there = {name: store.uri(f"{folder.name}/{name}") for name in ("checkpoint", "delta")}
    stream.change(spark=store.spark_table(url=url), **there)
    return Outage(stream, folder)


def fails_once(said: list[str], words: str) -> bool:
    sentence = f"The store s3a://bucket fails: {words}; nothing is lost, and the job continues when it works."
    return said.count(sentence) == 1 and said.count("The store s3a://bucket works again.") == 1


def test_a_store_that_throttles_everything_for_a_minute(broker: Broker, store: Store, tmp_path: Path) -> None:
    played = outage(broker, store, tmp_path)
    said = played.last(lambda: store.fail(status=503, for_s=10 * AWAY_S), store.fail)
    assert fails_once(said, "it asks for fewer requests"), said
    assert judge(played.stream, tmp_path, None, is_held_in_topic=True) == []


def test_a_store_that_refuses_connections_for_a_minute(broker: Broker, store: Store, tmp_path: Path) -> None:
    with Gate(store.port) as gate:
        played = outage(broker, store, tmp_path, gate.url)
        said = played.last(gate.shut, gate.open)
        assert fails_once(said, "it takes no connections"), said
        assert judge(played.stream, tmp_path, None, is_held_in_topic=True) == []
