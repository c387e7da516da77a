"""The folders of a job from an older version, including its broker's: this version's job continues with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import precede
from precede.local.embedded_broker import Broker
from precede.streaming.job import checkpoint_reader as held
from tests.fixtures import stored
from tests.records import Row
from tests.system.stream import Stream, contiguous

KEEP_ALL = {"log.initial.task.delay.ms": "86400000", "log.retention.check.interval.ms": "86400000"}
"""The records are as old as the fixture, and Kafka's cleaner must not delete them for their age."""


def texts(rows: list[Row]) -> list[list[str | None]]:
    """Keys and values in the fixture's form."""
    return sorted(
        [None if key is None else key.decode(), None if value is None else value.decode()] for key, value, *_ in rows
    )


@pytest.mark.parametrize("version", stored.VERSIONS)
def test_a_job_goes_on_with_the_checkpoint_of_an_older_version_as_that_one_did(
    spark: SparkSession, tmp_path: Path, version: str
) -> None:
    stored.unpack(version, tmp_path)
    fixture: dict[str, Any] = stored.read(version, "checkpoint.json.gz")
    with Broker(data=tmp_path / "broker", properties=KEEP_ALL) as broker:
        stream = Stream(broker.bootstrap, tmp_path, **fixture["settings"])
        settings = stream.settings
        before = len(stream.read(settings.ordered_topic))
        assert 0 < before < len(fixture["ordered"])
        assert len({one.group for one in held.read(settings, spark=spark)}) > 10
        assert any(gap.asked for gap in held.gaps(settings, spark=spark))

        stream.once(spark)
        assert texts(stream.read(settings.ordered_topic)) == fixture["ordered"]
        assert texts(stream.read(settings.dead_letter_topic)) == fixture["dead_letters"]
        assert texts(stream.read(settings.control_topic)) == fixture["control"]
        records = {row["record"] for row in stream.table("deliveries")}
        assert len(records) == len(stream.table("deliveries")) == fixture["deliveries"]
        assert records == {value for _, value in fixture["ordered"]}

        with precede.Member(
            "members",
            "ann",
            bootstrap=settings.bootstrap,
            state=tmp_path / "ann.json",
            raw_topic=settings.raw_topic,
            ordered_topic=settings.ordered_topic,
            control_topic=settings.control_topic,
            progress_topic=settings.progress_topic,
            patience_s=20.0,
        ) as ann:
            assert [next(ann).data for _ in range(2)] == ["two", "three"], "one was handed over before"
            assert ann.send("four") == ("ann", 0, 4)
        stream.once(spark)
        assert contiguous({key: values for key, values in stream.ordered().items() if key == b"members"})
        assert len(stream.ordered()[b"members"]) == 4
