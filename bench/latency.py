"""From send to the ordered topic, read_committed, against a stateless copy job under the same load."""

import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import msgspec

from bench import plain
from bench.figures import Figure, Report
from bench.load import Times
from bench.stage import PARTITIONS, Stage
from precede.ingest.kafka.topics import describe
from precede.streaming.order.sink import Sink
from precede.streaming.settings import Settings
from precede.streaming.spark import query as order_query

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

HOME = Path(__file__).resolve().parent.parent
WARM_S = 30  # a job runs for weeks, so the first half minute, in which the JVM compiles, does not count
TARGET = 3.0


def run(stage: Stage, quick: bool) -> Report:
    """Run both jobs alternately at each rate, one at a time."""
    warm_s, seconds, repeats = (1, 3, 1) if quick else (WARM_S, 15, 3)
    rates = (200,) if quick else (1_000, 5_000)
    figures: list[Figure] = []
    for per_s in rates:
        times: dict[str, list[Times]] = {"precede": [], "copy": []}
        for _ in range(repeats):
            for side, measure in (("precede", _precede), ("copy", _copy)):
                times[side].append(measure(stage, per_s, warm_s, seconds))
                print(f"  {side}: {times[side][-1]}", file=sys.stderr, flush=True)
        for quantile in ("p50", "p99"):
            mine, theirs = ([getattr(one, quantile) for one in times[side]] for side in ("precede", "copy"))
            figures.append(
                Figure(
                    what=f"{quantile} at {per_s:,} messages/s",
                    value=round(median(a / b for a, b in zip(mine, theirs, strict=True)), 2),
                    target=TARGET,
                    more_is_better=False,
                    sides={"precede": round(median(mine)), "copy": round(median(theirs))},
                    sides_unit="ms",
                )
            )
    return Report(
        "latency",
        f"{seconds} s each time after {warm_s} s to warm up, 1,000 groups, in order, {Settings().shards} shards, "
        "read_committed",
        figures,
    )


def _precede(stage: Stage, per_s: int, warm_s: int, seconds: int) -> Times:
    settings = stage.settings()
    topics = describe(settings.bootstrap, [settings.raw_topic, settings.progress_topic])
    sink = Sink(settings, topics[settings.raw_topic], topics[settings.progress_topic])
    sink.open()
    try:
        query = order_query.start(stage.spark, settings, lambda batch, _: sink.publish(batch), partitions=PARTITIONS)
        return _under_load(query, settings, per_s, warm_s, seconds)
    finally:
        sink.close()


def _copy(stage: Stage, per_s: int, warm_s: int, seconds: int) -> Times:
    settings = stage.settings()
    rows = plain.copy(stage.spark, settings)
    copying = plain.to_topic(rows, settings, settings.checkpoint, drain=False)
    return _under_load(copying, settings, per_s, warm_s, seconds)


def _under_load(query: "StreamingQuery", settings: Settings, per_s: int, warm_s: int, seconds: int) -> Times:
    """Send and read in a separate process, so that this one is free to publish."""
    try:
        command = [sys.executable, "-m", "bench.load", str(settings.bootstrap), settings.raw_topic]
        command += [settings.ordered_topic, str(per_s), str(warm_s), str(seconds)]
        said = subprocess.run(
            command, stdout=subprocess.PIPE, check=True, cwd=HOME, timeout=60 + 4 * (warm_s + seconds)
        ).stdout
        return msgspec.json.decode(said, type=Times)
    finally:
        query.stop()
