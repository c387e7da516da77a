"""Restoring a fresh checkpoint from the state topic, against reading the raw log again from its beginning."""

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from confluent_kafka import Producer

from bench.figures import Figure, Report
from bench.stage import PARTITIONS, Stage, drained, rate
from bench.traffic import Conversation
from precede.ingest.kafka.topics import describe
from precede.streaming.job.ticker import TICK
from precede.streaming.order.sink import Sink
from precede.streaming.settings import Settings
from precede.streaming.spark import checkpoint, checkpoint_reader, restore
from precede.streaming.spark import query as order_query

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

LOG = 20_000_000
"""So many raw records would be read again. Not all of them are: their time is this number divided by the rate measured
with the messages of the benchmark, which have fewer records per group, and so less state to rewrite."""


def run(stage: Stage, quick: bool) -> Report:
    """One stream is ordered into its topics; then it goes on with a fresh checkpoint and twice as many shards."""
    groups, count = (500, 6_000) if quick else (1_000_000, 2_000_000)
    settings = stage.settings(only="order")
    stage.send(settings, Conversation(groups).take(count))
    warm = stage.settings(only="order")
    stage.send(warm, Conversation(10).take(1_000))
    _order(stage, warm)
    again = _order(stage, settings)
    print(f"  ordered: {again:,.0f} messages/s", file=sys.stderr, flush=True)
    fresh = stage.again(
        settings,
        ordered_topic=settings.ordered_topic,
        dead_letter_topic=settings.dead_letter_topic,
        progress_topic=settings.progress_topic,
        control_topic=settings.control_topic,
        shards=settings.shards * 2,
    )
    _tick(settings)  # so that every shard is called
    said: list[str] = []
    began = time.perf_counter()
    _order(stage, fresh, said.append)
    restored_s = time.perf_counter() - began
    print(f"  restored: {restored_s:.1f} s; {said}", file=sys.stderr, flush=True)
    again_s = LOG / again
    return Report(
        "restore",
        f"{groups:,} groups, {count:,} messages, 30 % out of order, {settings.shards} shards and then {fresh.shards}",
        [
            Figure(
                what=f"restoring the groups, to reading {LOG:,} raw records again",
                value=round(restored_s / again_s, 6),
                target=0.1,
                more_is_better=False,
                sides={"restored": round(restored_s, 1), "read again": round(again_s, 1)},
                sides_unit="s",
            ),
            Figure(
                what=f"of this, until the files of {_count(said)} groups are written", value=_files_s(said), unit="s"
            ),
            Figure(what="reading again", value=round(again), unit="messages/s"),
        ],
    )


def _order(stage: Stage, settings: Settings, say: Callable[[str], object] = print) -> float:
    """Order what is there with the job's own sink, and write all states; messages per second of the batches."""
    topics = describe(settings.bootstrap, [topic.name for topic in settings.topics()])
    folder = Path(settings.checkpoint)
    folder.mkdir(parents=True)
    checkpoint.update(settings.checkpoint_place, order=checkpoint.order_part(settings, None, topics), history=None)
    sink = Sink(settings, topics[settings.raw_topic], topics[settings.progress_topic])
    sink.open()
    try:
        restored = restore.begin(settings, sink, say)
        sink.follow_horizon(is_fresh=True)

        def publish(batch: "DataFrame", _: int) -> None:
            sink.publish(batch)

        query = order_query.start(
            stage.spark, settings, publish, partitions=PARTITIONS, state=sink.state, restored=restored, drain=True
        )
        found = rate(drained(query, None))
        if restored is None:
            checkpoint_reader.write_last_states(stage.spark, settings, sink, PARTITIONS)
        else:
            assert len(sink.shards) == settings.shards, "some shards were not called"
            assert sum(sink.counts.state_bytes.values()) > sum(map(os.path.getsize, _files(settings))) / 2
        return found
    finally:
        sink.close()


def _files(settings: Settings) -> list[Path]:
    return list(Path(settings.restored_files.location).glob("*/[0-9]*"))


def _tick(settings: Settings) -> None:
    with Producer({"bootstrap.servers": str(settings.bootstrap)}) as producer:
        for partition in range(PARTITIONS):
            producer.produce(settings.raw_topic, TICK, partition=partition)


def _count(said: list[str]) -> str:
    return said[-1].partition("the state of ")[2].partition(" ")[0]


def _files_s(said: list[str]) -> float:
    """The time that the job itself tells."""
    return float(said[-1].rpartition(" s, ")[0].rpartition(" ")[2]) or 0.05  # it tells tenths
