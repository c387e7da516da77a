"""The history query against a plain Spark job that parses the same topic with from_json into Delta."""

from functools import partial
from typing import TYPE_CHECKING, Any

from bench.exactly_once import publish
from bench.figures import Report, by_turns, ratio
from bench.stage import Stage, drained, rate
from bench.traffic import Conversation
from precede.ingest.kafka.topics import Topic
from precede.streaming.history import tables
from precede.streaming.history.tables import DELIVERIES
from precede.streaming.settings import Settings
from precede.streaming.spark import history_query

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

HISTORY = "history query"
PLAIN = "from_json to Delta"

FIELDS = (
    "`group` string, position long, destination string, sender string, epoch int, seq long, kind string, "
    "after array<array<string>>, `order` string, status string, data string, partition int, offset long, "
    "arrived_ms long, released_offset long, released_ms long"
)
COLUMNS = [
    *(f"message.`{name}`" for name in ("group", "position", "destination", "sender", "epoch", "seq", "kind")),
    "transform(message.after, id -> struct(id[0] AS sender, int(id[1]) AS epoch, bigint(id[2]) AS seq)) AS after",
    *(f"message.`{name}`" for name in ("order", "status", "data")),
    "record",
    *(f"message.`{name}`" for name in ("partition", "offset", "released_offset")),
    "timestamp_millis(message.arrived_ms) AS arrived_at",
    "timestamp_millis(message.released_ms) AS released_at",
    "to_date(timestamp_millis(message.arrived_ms)) AS day",
]


def run(stage: Stage, quick: bool) -> Report:
    """The same ordered topic, written in transactions, goes into a new table each time."""
    count, groups, repeats = (4_000, 5, 1) if quick else (400_000, 1_000, 3)
    topic = stage.settings()
    stage.send(topic, Conversation(groups).take(count))
    publish(stage, topic, count)
    delivered = sum(batch["numInputRows"] for batch in _plainly(stage, topic))  # warms Spark, and counts
    found = by_turns(
        {
            HISTORY: partial(measure_history, stage, topic, delivered),
            PLAIN: lambda: rate(_plainly(stage, topic)),
        },
        repeats,
    )
    return Report(
        "history",
        f"{delivered:,} ordered records of {groups:,} groups, in one batch, the same columns and partitions",
        [ratio("history query to from_json", found, HISTORY, PLAIN, target=0.8)],
    )


def _another(stage: Stage, topic: Settings) -> Settings:
    """A new checkpoint and a new folder for the tables, and the same topics to read."""
    return stage.settings(
        raw_topic=topic.raw_topic, ordered_topic=topic.ordered_topic, dead_letter_topic=topic.dead_letter_topic
    )


def measure_history(stage: Stage, topic: Settings, count: int) -> float:
    """The job's own table and query."""
    settings = _another(stage, topic)
    tables.create(stage.spark, settings, DELIVERIES, Topic(settings.ordered_topic, "", 0))
    return rate(drained(history_query.start(stage.spark, settings, DELIVERIES, drain=True), count))


def _plainly(stage: Stage, topic: Settings) -> list[dict[str, Any]]:
    settings = _another(stage, topic)
    records = history_query.records(stage.spark, settings, settings.ordered_topic)
    writer = parsed(records).writeStream.format("delta").partitionBy("day").trigger(availableNow=True)
    query = writer.option("checkpointLocation", settings.checkpoint).start(tables.path(settings, DELIVERIES).location)
    return drained(query, None)


def parsed(records: "DataFrame") -> "DataFrame":
    """The columns of the table `deliveries`, parsed by from_json."""
    record = records.selectExpr("string(value) AS record")
    message = record.selectExpr("record", f"from_json(record, '{FIELDS}') AS message")
    return message.selectExpr(*COLUMNS)
