"""Rows that Spark deletes without writing files anew, and commits without statistics, are counted too."""

from pathlib import Path

import msgspec
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from precede.streaming.history import tables
from precede.streaming.history.tables import DELIVERIES
from precede.streaming.settings import Settings
from precede.udfs.errors import Refused


def test_rows_marked_as_deleted_are_missing_and_files_without_statistics_are_counted(
    spark: SparkSession, tmp_path: Path
) -> None:
    settings = Settings(checkpoint=str(tmp_path / "checkpoint"), delta=str(tmp_path / "delta"))
    checkpoint, folder = Path(settings.history_checkpoint(DELIVERIES).location), tmp_path / "delta" / DELIVERIES
    (checkpoint / "commits").mkdir(parents=True)
    (checkpoint / "metadata").write_bytes(msgspec.json.encode({"id": "query"}))

    def check() -> None:
        tables.check(settings, DELIVERIES, str(DeltaTable(folder).metadata().id))

    for batch, statistics in enumerate(("true", "false")):
        spark.conf.set("spark.databricks.delta.stats.collect", statistics)
        writer = spark.range(100).coalesce(1).write.format("delta").mode("append")
        writer.option("txnAppId", "query").option("txnVersion", batch).save(str(folder))
        (checkpoint / "commits" / str(batch)).touch()
        check()
    spark.conf.unset("spark.databricks.delta.stats.collect")
    spark.sql(f"ALTER TABLE delta.`{folder}` SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')")
    spark.sql(f"DELETE FROM delta.`{folder}` WHERE id = 7")
    with pytest.raises(Refused, match=r"198 rows, but 200 were written to it: 2 are missing since its version 3 "):
        check()
