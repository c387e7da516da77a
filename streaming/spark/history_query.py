"""The history queries: committed records of the ordered, dead-letter and control topic, each into its Delta table.

The ordered topic is the truth, and its Delta table is an exact copy, written rarely and in large batches. Delta's own
sink writes each batch once. A slow or failing Delta never delays ordering.
"""

from functools import partial
from typing import TYPE_CHECKING

from precede.ingest.kafka import clients
from precede.streaming import faults
from precede.streaming.history import rows as history_rows
from precede.streaming.history import tables
from precede.streaming.history.tables import DEAD_LETTERS, DELIVERIES, GAPS
from precede.streaming.settings import Settings
from precede.streaming.spark.query import SOURCE
from precede.streaming.spark.session import HISTORY_POOL

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

RECORDS_MAX = 2_000_000
"""In one batch: a table in few large files is four times faster to write, and faster to read."""

ROWS = {
    DELIVERIES: history_rows.deliveries,
    DEAD_LETTERS: history_rows.dead_letters,
    GAPS: history_rows.gaps,
}


def records(spark: "SparkSession", settings: Settings, topic: str) -> "DataFrame":
    """The committed records of a topic, as bytes."""
    source = spark.readStream.format("kafka").options(**SOURCE, **clients.spark_options(settings.bootstrap))
    return source.option("subscribe", topic).option("maxOffsetsPerTrigger", RECORDS_MAX).load().select("value")


def rows(records: "DataFrame", table: str) -> "DataFrame":
    """The records as typed columns."""
    return records.mapInArrow(faults.around(ROWS[table], table), tables.COLUMNS[table])


def start(spark: "SparkSession", settings: Settings, table: str, *, drain: bool = False) -> "StreamingQuery":
    """Start writing one table; with `drain` the query ends when everything that is there now is written."""
    spark.sparkContext.setLocalProperty("spark.scheduler.pool", HISTORY_POOL)
    written = rows(records(spark, settings, tables.topic(settings, table)), table)
    folder = tables.path(settings, table).location
    writer = written.writeStream.queryName(table)
    writer = writer.option("checkpointLocation", settings.history_checkpoint(table).location)
    if table == GAPS:
        writer = writer.foreachBatch(partial(_merge, folder))
    else:
        writer = writer.format("delta").option("path", folder).partitionBy("day").outputMode("append")
    if drain:
        writer = writer.trigger(availableNow=True)
    else:
        writer = writer.trigger(processingTime=f"{round(settings.history_every_s * 1000)} milliseconds")
    return writer.start()


def _merge(folder: str, batch: "DataFrame", _batch_id: int) -> None:
    """Keep one row for each gap, from its newest record; a batch that is written twice changes nothing."""
    from delta.tables import DeltaTable
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812 (the name all of Spark's pages use)

    key = ("group", "sender", "epoch", "last", "opened_at")
    newest = F.row_number().over(Window.partitionBy(*key).orderBy(F.col("offset").desc()))
    latest = batch.withColumn("age", newest).where("age = 1").drop("age")
    same = " AND ".join(f"gap.`{name}` = new.`{name}`" for name in ("day", *key))
    merge = DeltaTable.forPath(batch.sparkSession, folder).alias("gap").merge(latest.alias("new"), same)
    merge.whenMatchedUpdateAll("new.offset > gap.offset").whenNotMatchedInsertAll().execute()
