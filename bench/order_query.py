"""The order query without a sink, against the identity function; with many groups, small batches and shards."""

import sys
from functools import partial
from statistics import median
from typing import TYPE_CHECKING

import msgspec

from bench import plain
from bench.figures import Figure, Lookup, Report, by_turns, ratio
from bench.stage import PARTITIONS, Stage, drained, rate, took_ms
from bench.traffic import Conversation, Pair
from precede.streaming.settings import Settings
from precede.streaming.spark import query as order_query
from precede.udfs.shard import Shard

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

IDENTITY = "identity"
ORDER = "order query"
SMALL = 1_000
WARM_BATCHES = 3


def run(stage: Stage, quick: bool) -> Report:
    """Each number of groups has its own topic; the same topics then serve the table of shards."""
    per_batch = Settings().max_offsets_per_trigger
    count, many_count, repeats = (4_000, 6_000, 1) if quick else (400_000, 2_000_000, 3)
    few, middle, much, many = (2, 5, 50, 500) if quick else (10, 1_000, 100_000, 1_000_000)
    counts = {few: count, middle: count, much: count, many: many_count}
    talks = {groups: Conversation(groups) for groups in counts}
    topics: dict[int, Settings] = {}
    for groups, messages in counts.items():
        topics[groups] = stage.settings()
        stage.send(topics[groups], talks[groups].take(messages))
    measure_identity(stage, topics[middle], count)  # warms Spark and its workers
    figures: list[Figure] = []
    for groups in (few, middle, much):
        found = by_turns(
            {
                ORDER: partial(measure_order, stage, topics[groups], count),
                IDENTITY: partial(measure_identity, stage, topics[groups], count),
            },
            repeats,
        )
        figures.append(ratio(f"{groups:,} groups", found, ORDER, IDENTITY, target=0.6))
    names = {groups: f"{groups:,} groups" for groups in (many, middle)}
    found = by_turns(
        {names[groups]: partial(measure_order, stage, topics[groups], counts[groups]) for groups in names}, 1
    )
    figures.append(ratio(f"{many:,} groups to {middle:,}", found, names[many], names[middle], target=0.4))
    tried, shards = ((middle,), (4, 16)) if quick else ((middle, much, many), (16, 64, 512))
    table: list[list[str]] = []
    for groups in tried:
        for number in shards:
            more = talks[groups].take(SMALL * (2 if quick else WARM_BATCHES + 10))
            row = _with_shards(stage, topics[groups], counts[groups], more, number)
            counts[groups] += len(more)
            print(f"  {groups:,} groups, {number:,} shards: {row}", file=sys.stderr, flush=True)
            table.append([f"{groups:,}", f"{number:,}", *row])
    return Report(
        "order-query",
        f"{count:,} messages ({many_count:,} of {many:,} groups), 30 % out of order, batches of {per_batch:,}, "
        f"{Settings().shards} shards, from Kafka to nothing",
        figures,
        [
            Lookup(
                "Which number of shards: a backlog in messages/s, and ms for a batch of 1,000 messages after it",
                ["groups", "shards", "backlog messages/s", "small batch ms", "state MiB"],
                table,
            )
        ],
    )


def measure_order(stage: Stage, topic: Settings, count: int, **more: int) -> float:
    """Messages per second through the kernel."""
    settings = stage.again(topic, **more)
    return rate(drained(plain.to_nothing(_rows(stage, settings), settings.checkpoint), count))


def measure_identity(stage: Stage, topic: Settings, count: int) -> float:
    """Messages per second through the identity function."""
    rows = plain.through_identity(stage.spark, topic)
    return rate(drained(plain.to_nothing(rows, stage.checkpoint()), count))


def _rows(stage: Stage, settings: Settings) -> "DataFrame":
    shard = Shard(settings.order, settings.limits, partitions=PARTITIONS)
    return order_query.ordered(order_query.rows(stage.spark, settings), shard)


def _with_shards(stage: Stage, topic: Settings, count: int, more: list[Pair], shards: int) -> list[str]:
    """A backlog with this number of shards, then small batches after it."""
    settings = stage.again(topic, shards=shards)
    backlog = rate(drained(plain.to_nothing(_rows(stage, settings), settings.checkpoint), count))
    stage.send(topic, more)
    settings = msgspec.structs.replace(settings, max_offsets_per_trigger=SMALL)
    batches = drained(plain.to_nothing(_rows(stage, settings), settings.checkpoint), len(more))
    warm = batches[WARM_BATCHES:] or batches
    small_ms = median(map(took_ms, warm))
    state_bytes = batches[-1]["stateOperators"][0]["memoryUsedBytes"]
    return [f"{backlog:,.0f}", f"{small_ms:,.0f}", f"{state_bytes / 2**20:,.0f}"]
