"""The order query in a local Spark, its log in files: batches, restarts and shards change nothing."""

import json
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (the name all of Spark's pages use)

from precede.streaming.order.packed_rows import packed_rows
from precede.streaming.spark import query as order_query
from precede.udfs.limits import Limits
from precede.udfs.shard import Shard, shard_number
from precede.udfs.steps import Records
from tests.records import Row, by_group, by_kernel, conversation, log

Batches = dict[int, list[Records]]


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return log([*conversation(700, groups=12, late=0.4), (b"group-1", b'{"group": 1}'), (b"group-2", b"\xff")])


@pytest.fixture(scope="module")
def write(spark: SparkSession) -> Callable[..., None]:
    """Write the rows into this many files; Spark reads the oldest first, each as a batch."""

    def files(folder: Path, rows: list[Row], count: int, *, first: int = 0) -> None:
        folder.mkdir(exist_ok=True)
        size = -(-len(rows) // count)
        for number, at in enumerate(range(0, len(rows), size), first):
            lines = [
                json.dumps([None if part is None else part.hex() for part in row[:2]] + list(row[2:]))
                for row in rows[at : at + size]
            ]
            path = folder / f"{number:05}.json"
            path.write_text("\n".join(lines))
            os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))

    return files


def order(spark: SparkSession, source: Path, checkpoint: Path, *, shards: int = 8) -> Batches:
    """Run the query over all files, one per batch; returns what each batch published."""
    lines = spark.readStream.schema("value string").option("maxFilesPerTrigger", 1).text(str(source))
    field = F.from_json("value", "array<string>")
    raw = lines.select(
        F.unhex(field[0]).alias("key"),
        F.unhex(field[1]).alias("value"),
        field[2].cast("int").alias("partition"),
        field[3].cast("long").alias("offset"),
        field[4].cast("long").alias("timestamp_ms"),
    ).select(order_query.shard_of(F.col("key"), shards).alias("shard"), "*")
    batches: Batches = {}

    def keep(batch: DataFrame, number: int) -> None:
        batch.persist()
        batches[number] = [records for *_, records in packed_rows(batch)]
        batch.unpersist()

    ordered = order_query.ordered(raw, Shard("s_b", Limits()))
    query = ordered.writeStream.foreachBatch(keep).option("checkpointLocation", str(checkpoint))
    query.trigger(availableNow=True).start().awaitTermination()
    return batches


def test_the_shard_of_a_key_is_computed_as_spark_does(spark: SparkSession) -> None:
    chance = random.Random(5)
    keys = [b"", b"a", "grüß dich".encode(), *(chance.randbytes(chance.randrange(70)) for _ in range(300))]
    for shards in (1, 7, 16, 65_536):
        column = order_query.shard_of(F.col("key"), shards)
        frame = spark.createDataFrame([(key,) for key in keys], "key binary")
        assert [row[0] for row in frame.select(column).collect()] == [shard_number(key, shards) for key in keys]


def whole(batches: Batches) -> tuple[dict[bytes, list[bytes]], list[bytes]]:
    records = [one for number in sorted(batches) for one in batches[number]]
    pairs = (pair for one in records for pair in zip(one.ordered_keys, one.ordered, strict=True))
    return by_group(pairs), sorted(letter for one in records for letter in one.dead)


@pytest.mark.parametrize("count", [1, 50])
def test_one_batch_and_fifty_give_the_bytes_of_the_kernel_alone(
    spark: SparkSession, write: Callable[..., None], rows: list[Row], tmp_path: Path, count: int
) -> None:
    write(tmp_path / "log", rows, count)
    batches = order(spark, tmp_path / "log", tmp_path / "checkpoint")
    assert len(batches) == count
    assert whole(batches) == by_kernel(rows)


def test_a_restart_goes_on_and_a_batch_run_again_gives_the_same_rows(
    spark: SparkSession, write: Callable[..., None], rows: list[Row], tmp_path: Path
) -> None:
    half = len(rows) // 2
    source, checkpoint = tmp_path / "log", tmp_path / "checkpoint"
    write(source, rows[:half], 3)
    before = order(spark, source, checkpoint)
    (checkpoint / "commits" / "2").unlink()
    (checkpoint / "commits" / ".2.crc").unlink(missing_ok=True)
    write(source, rows[half:], 2, first=3)
    after = order(spark, source, checkpoint)
    assert set(before) == {0, 1, 2}
    assert set(after) == {2, 3, 4}
    assert whole({2: after[2]}) == whole({2: before[2]})
    assert whole(before | after) == by_kernel(rows)


@pytest.mark.parametrize("tasks", ["1", "5"])
def test_a_restart_with_more_or_fewer_cores_goes_on_with_the_tasks_of_the_checkpoint(
    spark: SparkSession,
    write: Callable[..., None],
    rows: list[Row],
    tmp_path: Path,
    request: pytest.FixtureRequest,
    tasks: str,
) -> None:
    half, setting = len(rows) // 2, "spark.sql.shuffle.partitions"
    source, checkpoint = tmp_path / "log", tmp_path / "checkpoint"
    first = spark.conf.get(setting) or ""
    write(source, rows[:half], 2)
    before = order(spark, source, checkpoint)
    request.addfinalizer(lambda: spark.conf.set(setting, first))
    spark.conf.set(setting, tasks)  # like a start on another machine
    write(source, rows[half:], 2, first=2)
    after = order(spark, source, checkpoint)
    assert whole(before | after) == by_kernel(rows)
    assert len(list((checkpoint / "state" / "0").glob("[0-9]*"))) == int(first)


@pytest.mark.parametrize("shards", [1, 5])
def test_the_number_of_shards_changes_nothing(
    spark: SparkSession, write: Callable[..., None], rows: list[Row], tmp_path: Path, shards: int
) -> None:
    write(tmp_path / "log", rows, 2)
    batches = order(spark, tmp_path / "log", tmp_path / "checkpoint", shards=shards)
    assert whole(batches) == by_kernel(rows)
