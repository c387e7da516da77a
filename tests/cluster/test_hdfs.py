"""Places in HDFS: what every place does, and a lease."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from precede.streaming.settings import Settings
from tests.cluster.hdfs import Hdfs
from tests.cluster.test_stores import ALL, LEASE, RACE, STARTS, run

pytestmark = pytest.mark.nightly


@pytest.fixture(scope="module")
def hdfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hdfs]:
    with Hdfs(tmp_path_factory.mktemp("hdfs")) as running:
        yield running


def test_a_place_in_hdfs_does_what_a_place_does_and_of_many_creators_one_wins(hdfs: Hdfs) -> None:
    settings = Settings(checkpoint=f"{hdfs.url}/checkpoint/place", only="order")
    assert run(ALL + RACE + LEASE + STARTS, settings) == ""


def test_an_hdfs_that_is_away_is_named(tmp_path: Path) -> None:
    settings = Settings(checkpoint="hdfs://127.0.0.1:1/checkpoint", only="order")
    said = run(STARTS, settings)
    assert said.startswith("REFUSED The checkpoint folder hdfs://127.0.0.1:1/checkpoint is not writable: "), said
