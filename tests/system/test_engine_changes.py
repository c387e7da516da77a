"""Either engine takes over from the other at any moment: the same sequence goes on, and nothing comes twice."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from pyspark.sql import SparkSession

from precede.local.embedded_broker import Broker
from precede.streaming.job import job
from tests.faults.running import Running
from tests.records import by_kernel, conversation
from tests.system.stream import Stream

PARTITIONS = 2
MESSAGES = conversation(2_400, groups=12)


@pytest.fixture
def stream(broker: Broker, tmp_path: Path) -> Stream:
    cache = str(tmp_path / "cache")
    return Stream(broker.bootstrap, tmp_path, partitions=PARTITIONS, only="order", cache=cache, state_every_s=0.2)


@pytest.fixture
def started() -> Iterator[list[Running]]:
    """Jobs as processes, which end with the test."""
    running: list[Running] = []
    yield running
    for one in running:
        one.kill()


def process_once(stream: Stream) -> None:
    said: list[str] = []
    job.run(msgspec.structs.replace(stream.settings, engine="process", once=True), say=said.append)
    assert said[-1].startswith("Done"), said


def check(stream: Stream) -> None:
    assert stream.ordered() == by_kernel(stream.raw(), partitions=PARTITIONS)[0]
    assert stream.dead() == by_kernel(stream.raw(), partitions=PARTITIONS)[1]


def test_the_engines_go_on_with_each_others_state(stream: Stream, spark: SparkSession) -> None:
    parts = [MESSAGES[start : start + 400] for start in range(0, len(MESSAGES), 400)]
    for part, engine in zip(parts, ("process", "spark", "process", "process", "spark", "process"), strict=False):
        stream.send(part)
        if engine == "process":
            process_once(stream)
        else:
            stream.once(spark)
        check(stream)


def test_an_engine_that_starts_ends_the_other_one_which_says_so(stream: Stream, started: list[Running]) -> None:
    """At each change the earlier engine is running; the last one is killed while it works."""
    stream.send(MESSAGES[:600])
    for number, engine in enumerate(("process", "spark", "process")):
        started.append(Running(stream, variables={"PRECEDE_ENGINE": engine, "PRECEDE_TICK_S": "0"}))
        if number:
            before = started[number - 1]
            assert before.ends(120) != 0
            assert any("Another job took over" in line and f"engine {engine}" in line for line in before.said)
        # Sent only now: what the earlier engine delivers, this one never tells of.
        stream.send(MESSAGES[600 * (number + 1) : 600 * (number + 2)])
        started[-1].wait_for_output("delivered", 120)
    started[-1].kill_driver()
    process_once(stream)
    check(stream)
