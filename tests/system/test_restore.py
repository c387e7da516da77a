"""A fresh checkpoint begins at the state topic and the horizon, whatever is left of the log before it."""

import json
import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from precede.ingest.kafka import topics
from precede.local.embedded_broker import Broker
from precede.streaming.order import counts
from precede.streaming.spark import restored_files
from precede.streaming.spark.checkpoint_reader import read as read_held
from precede.udfs.errors import Refused
from tests.faults.running import Running
from tests.records import Row, by_kernel, conversation
from tests.system.stream import Stream
from tests.system.test_state_topic import progress_of

PARTITIONS = 2


@pytest.fixture
def stream(broker: Broker, tmp_path: Path) -> Stream:
    return Stream(broker.bootstrap, tmp_path, partitions=PARTITIONS, only="order")


def cut_to_horizon(stream: Stream) -> list[Row]:
    """Remove all of the raw topic that the state topic covers; returns what was there."""
    rows = stream.raw()
    for partition, offset in progress_of(stream).horizon.items():
        stream.cut_partition(stream.settings.raw_topic, partition, offset)
    return rows


def whole(before: list[Row], stream: Stream) -> tuple[dict[bytes, list[bytes]], list[bytes]]:
    """What the kernel alone makes of the log with what was removed from it."""
    return by_kernel(sorted({row[2:4]: row for row in [*before, *stream.raw()]}.values(), key=lambda row: row[2:4]))


def test_without_checkpoint_and_without_the_old_log_the_same_sequence_goes_on(
    stream: Stream, spark: SparkSession, tmp_path: Path
) -> None:
    pairs = conversation(2_400, groups=30, late=0.5)
    stream.send([*pairs[:800], (b"group-3", b"not json")])
    stream.once(spark)
    before = cut_to_horizon(stream)
    stream.send(pairs[800:1_600])
    said = stream.once(spark, checkpoint=str(tmp_path / "second"), shards=3)
    assert any("the state of 30 groups has been read from" in line for line in said), said
    assert (stream.ordered(), stream.dead()) == whole(before, stream)
    before += cut_to_horizon(stream)
    stream.send(pairs[1_600:])
    stream.change(checkpoint=str(tmp_path / "third"), shards=16, max_offsets_per_trigger=100, tasks=3)
    stream.once(spark)
    assert (stream.ordered(), stream.dead()) == whole(before, stream)
    assert not any("has been read from" in line for line in stream.once(spark)), "it goes on with its own checkpoint"


def test_a_fresh_checkpoint_without_any_state_reads_the_whole_log_and_says_so(
    stream: Stream, spark: SparkSession, tmp_path: Path
) -> None:
    stream.send(conversation(300, groups=10))
    assert not any("the whole raw log is read again" in line for line in stream.once(spark)), "nothing is published yet"
    before = stream.ordered()
    stream.change(checkpoint=str(tmp_path / "second"), state_topic=f"{stream.settings.ordered_topic}.second-state")
    topics.ensure(stream.settings.bootstrap, stream.settings.topics())
    sentence = (
        f"The state topic {stream.settings.state_topic_name} has nothing of this stream: the whole raw log is read "
        "again, and nothing is published twice."
    )
    assert stream.once(spark).count(sentence) == 1
    assert stream.ordered() == before


def test_a_shard_without_input_keeps_its_file_and_what_it_holds_is_known(
    stream: Stream, spark: SparkSession, tmp_path: Path
) -> None:
    waiting = [(f"g{at}".encode(), b'{"group":"g%d","sender":"a","seq":2,"after":[["a",0,1]]}' % at) for at in range(9)]
    stream.send(waiting)
    stream.once(spark)
    cut_to_horizon(stream)
    stream.send([(b"g0", b'{"group":"g0","sender":"a","seq":1,"after":[]}')])
    stream.change(checkpoint=str(tmp_path / "a name with spaces"), shards=64)
    stream.once(spark)
    found = restored_files.find(stream.settings.restored_files)
    assert found is not None
    assert found.reader is not None
    assert len(list(Path(stream.settings.restored_files.location).glob("*/[0-9]*"))) > 1
    assert counts.load(stream.settings.checkpoint_place).held_now == 8
    assert len(list(read_held(stream.settings, spark=spark))) == 8
    assert sorted(stream.ordered()) == [b"g0"]
    assert progress_of(stream).horizon == progress_of(stream).token, "what was restored is in the state topic"
    stream.send((key, value.replace(b'"seq":2,"after":[["a",0,1]]', b'"seq":1,"after":[]')) for key, value in waiting)
    stream.once(spark)
    stream.send([(b"g0", b'{"group":"g0","sender":"a","seq":3,"after":[]}')])
    stream.once(spark)  # all took their files in the batch before this one
    assert stream.settings.restored_files.names() == [restored_files.MANIFEST]
    assert {key: len(values) for key, values in stream.ordered().items()} == {b"g0": 3} | {
        b"g%d" % at: 2 for at in range(1, 9)
    }


def test_a_checkpoint_that_the_log_has_left_behind_is_set_aside_and_restored(
    stream: Stream, spark: SparkSession, tmp_path: Path
) -> None:
    pairs = conversation(900, groups=10)
    stream.send(pairs[:300])
    stream.once(spark)
    shutil.copytree(stream.settings.order_checkpoint.location, tmp_path / "copy")
    stream.send(pairs[300:600])
    stream.once(spark)
    before = cut_to_horizon(stream)
    shutil.rmtree(stream.settings.order_checkpoint.location)
    (tmp_path / "copy").rename(Path(stream.settings.order_checkpoint.location))
    stream.send(pairs[600:])
    said = stream.once(spark)
    aside = stream.settings.order_checkpoint.sibling("order.set-aside-1")
    assert any(line.startswith("The checkpoint is not continued") and str(aside) in line for line in said), said
    assert aside.exists()
    assert stream.ordered() == whole(before, stream)[0]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("point", ["restore.files:1", "order.worked:3"])
def test_a_job_killed_in_the_middle_of_a_restore_leaves_each_position_once(
    stream: Stream, spark: SparkSession, tmp_path: Path, point: str
) -> None:
    pairs = conversation(600, groups=20)
    stream.send(pairs[:400])
    stream.once(spark)
    before = cut_to_horizon(stream)
    stream.send(pairs[400:])
    stream.change(checkpoint=str(tmp_path / "second"), shards=5)
    running = Running(stream, fault=point, folder=tmp_path)
    try:
        running.reaches()
    finally:
        running.kill()
    assert stream.settings.restored_files.exists()
    stream.once(spark)
    assert stream.ordered() == whole(before, stream)[0]


def test_a_copy_of_the_checkpoint_from_before_all_had_taken_their_state_is_set_aside(
    stream: Stream, spark: SparkSession, tmp_path: Path
) -> None:
    stream.send(conversation(300))
    stream.once(spark)
    stream.change(checkpoint=str(tmp_path / "second"))
    stream.once(spark)
    manifest = Path(stream.settings.restored_files.location) / restored_files.MANIFEST
    content = json.loads(manifest.read_text())
    assert content["taken_by"] is None
    manifest.write_text(json.dumps(content | {"taken_by": 7}))
    assert any("older than state that was restored into it" in line for line in stream.once(spark))
    assert stream.ordered() == by_kernel(stream.raw())[0]


def test_a_log_that_no_longer_reaches_back_to_the_horizon_is_refused_without_the_checkpoint(
    stream: Stream, spark: SparkSession, tmp_path: Path
) -> None:
    stream.send(conversation(300))
    stream.once(spark)
    stream.send(conversation(300, seed=2))
    stream.cut(stream.settings.raw_topic, min(end for end in progress_of(stream).horizon.values()) + 5)
    with pytest.raises(Refused, match=r"no longer reaches back to the horizon: its partition \d begins at offset \d+"):
        stream.once(spark, checkpoint=str(tmp_path / "second"))
    with pytest.raises(Refused, match="has lost messages that were not ordered yet"):
        stream.once(spark)
