"""Shared by all tests: a level for each, from its folder, and slow fixtures created once per session."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from precede.local.embedded_broker import Broker
from precede.streaming.spark import jars

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HERE = Path(__file__).parent

# In running order, with the seconds allowed for one test, including shared fixtures.
LEVELS = {
    "tidy": 60,
    "kernel": 60,
    "scenarios": 60,
    "door": 60,
    "shard": 60,
    "spark": 300,
    "cluster": 300,
    "segments": 300,
    "system": 300,
}

TOGETHER = {"segments"}
"""Levels that one worker runs, because their times count."""

BY_FILE = {"spark", "cluster", "system"}
"""Levels whose files are shared out: what a file makes for its tests is made once, and each worker has one broker.
Tests that use the one Spark session are together, whatever file they stand in, so that one worker starts it."""

QUICK_JAVA = "-XX:TieredStopAtLevel=1"
"""No JVM of a test lives long enough to earn back the full compilation that it would spend its first minute on."""


def level_of(path: Path) -> str:
    """The folder under tests/ names the level; tests directly in tests/ check the sources."""
    folder = path.relative_to(HERE).parts[0]
    return folder if folder in LEVELS else "tidy"


def pytest_configure() -> None:
    """Tests started in the background may ignore Ctrl-C, and their child processes would ignore it too."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ["JAVA_TOOL_OPTIONS"] = f"{QUICK_JAVA} {os.environ.get('JAVA_TOOL_OPTIONS', '')}".strip()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--nightly", action="store_true", help="also the tests that `make test` leaves to a night")
    parser.addoption("--rewrite-scenarios", action="store_true", help="rewrite the traces in tests/scenarios")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark each test with its level and run fast levels first: a broken kernel shows before a broker starts."""
    if not config.getoption("--nightly"):
        items[:] = [item for item in items if item.get_closest_marker("nightly") is None]
    rank = {level: number for number, level in enumerate(LEVELS)}
    items.sort(key=lambda item: rank[level_of(item.path)])
    for item in items:
        level = level_of(item.path)
        item.add_marker(level)
        if (group := _group(item, level)) is not None:
            item.add_marker(pytest.mark.xdist_group(group))
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(LEVELS[level]))


def _group(item: pytest.Item, level: str) -> str | None:
    """The tests that go to one worker with this one; None where it goes alone."""
    if "spark" in getattr(item, "fixturenames", ()):
        return "spark"
    if level in TOGETHER:
        return level
    return f"{level}/{item.path.stem}" if level in BY_FILE else None


@pytest.fixture(scope="session")
def broker() -> Iterator[Broker]:
    """One real broker for each worker; each test creates its own topics, with unique names."""
    with Broker() as running:
        yield running


@pytest.fixture(scope="session")
def spark_jars() -> list[Path]:
    """The jars of a Spark session, fetched if this machine does not have them yet."""
    return jars.ensure("spark")


@pytest.fixture(scope="session")
def spark(spark_jars: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One Spark session for the whole run, configured like the job's; one worker has all tests that use it."""
    from precede.streaming.settings import Settings
    from precede.streaming.spark import session

    running = session.start(Settings(tasks=2), spark_jars, tmp_path_factory.mktemp("spark"))
    yield running
    running.stop()
