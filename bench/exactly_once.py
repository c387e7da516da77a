"""Kafka to the ordered topic in transactions, against Spark's at-least-once sink with the identity function."""

from functools import partial
from typing import Any

from bench import plain
from bench.figures import Report, by_turns, ratio
from bench.stage import Stage, drained, rate
from bench.traffic import Conversation
from precede.ingest.kafka.topics import describe
from precede.streaming.order.sink import Sink
from precede.streaming.settings import Settings
from precede.streaming.spark import query as order_query

ORDERED = "precede, exactly once"
IDENTITY = "identity, at least once"
COPY = "JVM copy, at least once"


def run(stage: Stage, quick: bool) -> Report:
    """The same raw topic written to a topic in three ways."""
    count, groups, repeats = (4_000, 5, 1) if quick else (400_000, 1_000, 3)
    topic = stage.settings()
    stage.send(topic, Conversation(groups).take(count))
    measure_identity(stage, topic, count)  # warms Spark and its workers
    found = by_turns(
        {
            ORDERED: partial(measure_precede, stage, topic, count),
            IDENTITY: partial(measure_identity, stage, topic, count),
            COPY: partial(measure_copy, stage, topic, count),
        },
        repeats,
    )
    return Report(
        "exactly-once",
        f"{count:,} messages of {groups:,} groups, 30 % out of order, batches of {topic.max_offsets_per_trigger:,}, "
        f"{topic.shards} shards, from Kafka to Kafka",
        [
            ratio("precede to the identity function", found, ORDERED, IDENTITY, target=0.5),
            ratio("precede to the plain JVM copy", found, ORDERED, COPY, target=None),
        ],
    )


def measure_precede(stage: Stage, topic: Settings, count: int) -> float:
    """The order query with the job's own sink."""
    return publish(stage, stage.again(topic), count)


def publish(stage: Stage, settings: Settings, count: int, *, writes_state: bool = True) -> float:
    """Order everything into the ordered topic; returns messages per second."""
    return rate(published(stage, settings, count, writes_state=writes_state))


def published(stage: Stage, settings: Settings, count: int, *, writes_state: bool = True) -> list[dict[str, Any]]:
    """The same; returns what Spark says of each batch."""
    topics = describe(settings.bootstrap, [settings.raw_topic, settings.progress_topic])
    sink = Sink(settings, topics[settings.raw_topic], topics[settings.progress_topic])
    sink.open()
    sink.follow_horizon(is_fresh=True)
    try:
        query = order_query.start(
            stage.spark,
            settings,
            lambda batch, _: sink.publish(batch),
            partitions=topics[settings.raw_topic].partitions,
            state=sink.state if writes_state else None,
            drain=True,
        )
        return drained(query, count)
    finally:
        sink.close()


def measure_identity(stage: Stage, topic: Settings, count: int) -> float:
    """The identity function and Spark's sink."""
    settings = stage.again(topic)
    rows = plain.through_identity(stage.spark, settings)
    return rate(drained(plain.to_topic(rows, settings, settings.checkpoint, drain=True), count))


def measure_copy(stage: Stage, topic: Settings, count: int) -> float:
    """No function, and Spark's sink."""
    settings = stage.again(topic)
    rows = plain.copy(stage.spark, settings)
    return rate(drained(plain.to_topic(rows, settings, settings.checkpoint, drain=True), count))
