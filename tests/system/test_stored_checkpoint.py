"""The folders of a job as they were stored, including its broker's: this version's job continues with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql import SparkSession

import precede
from precede.ingest.progress import Progress
from precede.local.embedded_broker import Broker
from precede.streaming.job import job
from precede.streaming.spark import checkpoint_reader as held
from precede.udfs.rules import RULES
from tests.fixtures import stored
from tests.records import Row, by_group
from tests.system.stream import Stream, contiguous
from tests.system.test_state_topic import progress_of

KEEP_ALL = {"log.initial.task.delay.ms": "86400000", "log.retention.check.interval.ms": "86400000"}
"""The records are as old as the fixture, and Kafka's cleaner must not delete them for their age."""


def texts(rows: list[Row]) -> list[list[str | None]]:
    """Keys and values in the fixture's form."""
    return sorted(
        [None if key is None else key.decode(), None if value is None else value.decode()] for key, value, *_ in rows
    )


@pytest.mark.parametrize("version", stored.having("checkpoint.json.gz"))
def test_a_job_goes_on_with_a_stored_checkpoint_as_the_version_did_that_wrote_it(
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

        published = progress_of(stream)
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
        check_change_of_rules(stream, published, spark, tmp_path)


def check_change_of_rules(stream: Stream, before: Progress, spark: SparkSession, folder: Path) -> None:
    """Where this version has newer rules, the log crosses to them where the one that stored it stopped.

    From then on nothing goes back before that place: a fresh checkpoint and the other engine begin at the state topic,
    and a live reader has what lies before it from the ordered topic.
    """
    owners = progress_of(stream).owners
    crosses = {at: owner.rules < RULES for at, owner in before.owners.items()}
    assert {at: (owner.rules, owner.rules_from) for at, owner in owners.items()} == {
        at: (RULES, before.token.get(at, 0) if crosses[at] else before.owners[at].rules_from) for at in owners
    }
    assert any(before.token.values())
    ordered = stream.ordered()
    with precede.follow(config=stream.settings, live=True, patience_s=3.0) as follower:
        assert by_group((one.group.encode(), one.record) for one in follower) == ordered
    fresh: dict[str, Any] = {"checkpoint": str(folder / "fresh"), "shards": 3}
    other: dict[str, Any] = {"engine": "process", "cache": str(folder / "cache")}
    for name, more in ((b"bob", fresh), (b"chen", other)):
        stream.change(only="order", **more)
        stream.send([(b"members", b'{"group":"members","sender":"%b","seq":1,"after":[]}' % name)])
        said: list[str] = []
        job.run(msgspec.structs.replace(stream.settings, once=True), say=said.append, spark=spark)
        assert said[-1].startswith("Done"), said
    now = stream.ordered()
    assert {key: values[: len(ordered[key])] for key, values in now.items()} == ordered
    assert contiguous({b"members": now[b"members"]})
    assert len(now[b"members"]) == len(ordered[b"members"]) + 2
