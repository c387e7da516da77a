"""The plain solutions: what one would write with Spark alone for the same task."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import pandas as pd

from precede.streaming.settings import Settings
from precede.streaming.spark import query as order_query

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

ROW_TYPE = "key binary, value binary"


def identity(_key: tuple[Any, ...], frames: Iterable[pd.DataFrame], _state: Any) -> Iterator[pd.DataFrame]:
    """Returns its input and keeps nothing: the least that a function in this place can do."""
    for frame in frames:
        yield frame[["key", "value"]]


def through_identity(spark: "SparkSession", settings: Settings) -> "DataFrame":
    """The raw topic through the identity function, with the order query's own source and shards."""
    return order_query.ordered(order_query.rows(spark, settings), identity, ROW_TYPE)


def copy(spark: "SparkSession", settings: Settings) -> "DataFrame":
    """The raw topic without a function: it never leaves the JVM."""
    return order_query.rows(spark, settings).select("key", "value")


def to_topic(rows: "DataFrame", settings: Settings, checkpoint: str, *, drain: bool) -> "StreamingQuery":
    """Into the ordered topic by Spark's Kafka sink, which is at-least-once."""
    writer = rows.writeStream.format("kafka").option("kafka.bootstrap.servers", str(settings.bootstrap))
    writer = writer.option("topic", settings.ordered_topic).option("checkpointLocation", checkpoint)
    if drain:
        writer = writer.trigger(availableNow=True)
    return writer.start()


def to_nothing(rows: "DataFrame", checkpoint: str) -> "StreamingQuery":
    """Spark's sink that only drains."""
    writer = rows.writeStream.format("noop").option("checkpointLocation", checkpoint)
    return writer.trigger(availableNow=True).start()
