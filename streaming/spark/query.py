"""The order query: raw topic -> shards -> the kernel -> packed rows for the sink.

Each step is its own function, so that benchmarks and tests can replace the kernel or the sink.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from precede.ingest.kafka import clients
from precede.streaming import faults
from precede.streaming.settings import Settings
from precede.streaming.spark.restored_files import RestoredFiles
from precede.streaming.spark.session import ORDER_POOL
from precede.udfs.shard import ROW_TYPE, STATE_TYPE, Shard
from precede.udfs.state_log import StateSettings

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

SOURCE = {
    "startingOffsets": "earliest",
    "failOnDataLoss": "true",  # or a log with a hole would be ordered as if nothing had been there
    "kafka.isolation.level": "read_committed",
    "kafka.fetch.max.wait.ms": "10",
    "kafka.max.poll.records": "5000",
    "kafka.request.timeout.ms": "15000",
    "kafka.default.api.timeout.ms": "20000",  # after that the query fails, and the job reports it
}


def rows(
    spark: "SparkSession",
    settings: Settings,
    offsets: Mapping[int, int] | None = None,
    owned: Sequence[int] | None = None,
) -> "DataFrame":
    """The raw log as (shard, key, value, partition, offset, timestamp_ms); the JVM only hashes the key.

    A new checkpoint begins at these offsets, by default at the beginning of the log. With `owned` only these
    partitions are read.
    """
    from pyspark.sql import functions as F  # noqa: N812 (the name all of Spark's pages use)

    raw = (
        spark.readStream.format("kafka")
        .options(**SOURCE)
        .options(**clients.spark_options(settings.bootstrap))
        .options(**_starting_offsets(settings.raw_topic, offsets))
        .options(**_partitions(settings.raw_topic, owned))
        .option("maxOffsetsPerTrigger", settings.max_offsets_per_trigger)
        .load()
    )
    return raw.select(
        F.explode(shards_of(F.col("key"), settings.shards)).alias("shard"),
        "key",
        "value",
        "partition",
        "offset",
        F.unix_millis("timestamp").alias("timestamp_ms"),
    )


def _partitions(topic: str, owned: Sequence[int] | None) -> dict[str, str]:
    return {"subscribe": topic} if owned is None else {"assign": json.dumps({topic: list(owned)})}


def _starting_offsets(topic: str, offsets: Mapping[int, int] | None) -> dict[str, str]:
    return {} if offsets is None else {"startingOffsets": json.dumps({topic: offsets})}


def shards_of(key: Any, shards: int) -> Any:
    """The shards of a record, as a column: that of its key, or all for a record without a key, which may be a tick."""
    from pyspark.sql import functions as F  # noqa: N812

    return F.when(key.isNull(), F.sequence(F.lit(0), F.lit(shards - 1))).otherwise(F.array(shard_of(key, shards)))


def shard_of(key: Any, shards: int) -> Any:
    """The shard of a key, as a column."""
    from pyspark.sql import functions as F  # noqa: N812

    return F.pmod(F.xxhash64(key), F.lit(shards)).cast("int")


def ordered(rows: "DataFrame", function: Callable[..., Any], row_type: str = ROW_TYPE) -> "DataFrame":
    """The rows after a function of (key, frames, state), applied to each shard."""
    from pyspark.sql.streaming.state import GroupStateTimeout

    return rows.groupBy("shard").applyInPandasWithState(
        function, row_type, STATE_TYPE, "append", GroupStateTimeout.NoTimeout
    )


def start(
    spark: "SparkSession",
    settings: Settings,
    publish: Callable[["DataFrame", int], None],
    *,
    key: "Ed25519PrivateKey | None" = None,
    partitions: int,
    owned: Sequence[int] | None = None,
    state: StateSettings | None = None,
    restored: RestoredFiles | None = None,
    drain: bool = False,
) -> "StreamingQuery":
    """Start the query over so many raw partitions, or the `owned` ones of them; the job signs with `key`.

    A checkpoint that began with restored state goes on with `restored`. With `drain` the query ends when all that is
    there now is processed.
    """
    spark.sparkContext.setLocalProperty("spark.scheduler.pool", ORDER_POOL)
    patience = settings.patience(key)
    initial = None if restored is None else restored.reader
    if initial is not None:
        initial.send_to_workers(partial(spark.sparkContext.addFile, recursive=True))
    shard = Shard(
        settings.order,
        settings.limits,
        patience,
        partitions=partitions,
        partitioner=settings.partitioner,
        state=state,
        initial=initial,
    )
    function = faults.around(shard, "order")
    offsets = None if restored is None else restored.offsets
    some = None if owned is None or len(owned) == partitions else owned
    packed = ordered(rows(spark, settings, offsets, some), function)
    writer = packed.writeStream.queryName("order").foreachBatch(publish)
    writer = writer.option("checkpointLocation", settings.order_checkpoint.location)
    if drain:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=f"{settings.pause_ms} milliseconds").start()
