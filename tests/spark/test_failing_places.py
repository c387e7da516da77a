"""A disk or a store that fails while a job starts: a sentence that names the place and says what to do."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from precede.ingest.kafka.topics import Topic
from precede.streaming.history import tables
from precede.streaming.history.tables import DELIVERIES
from precede.streaming.job import job as run
from precede.streaming.places.place import LocalPlace
from precede.streaming.settings import Settings
from precede.streaming.spark import checkpoint
from precede.streaming.spark.checkpoint import Checkpoint
from precede.udfs.errors import Refused


def test_a_file_that_cannot_be_opened_is_refused_and_named(tmp_path: Path) -> None:
    (tmp_path / ".lock").mkdir()
    said: list[str] = []
    settings = Settings(engine="process", cache=str(tmp_path), log_format="json")
    sentence = f"{tmp_path}/.lock cannot be used: Is a directory. Nothing is lost; start the job again when it works."
    with pytest.raises(Refused, match=sentence):
        run.run(settings, say=said.append)
    assert sentence in said[-1]


def test_a_checkpoint_file_that_cannot_be_written_is_refused_and_named(tmp_path: Path) -> None:
    (tmp_path / "precede.json").mkdir()
    with pytest.raises(
        Refused, match=f"The checkpoint file {tmp_path}/precede.json cannot be written: Is a directory."
    ):
        checkpoint.write(LocalPlace(tmp_path), Checkpoint())


def test_a_table_that_cannot_be_created_is_refused_and_named(spark: SparkSession, tmp_path: Path) -> None:
    settings = Settings(checkpoint=str(tmp_path), delta="/proc/precede")
    with pytest.raises(
        Refused, match="The Delta table /proc/precede/deliveries cannot be created: .* Start the job again"
    ):
        tables.create(spark, settings, DELIVERIES, Topic("ordered", "id", 1))
