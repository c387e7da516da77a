"""The engines that are measured, each as the command that runs it."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from bench.peers.programs import program
from precede.streaming.settings import Settings
from precede.streaming.spark.jars import Say

HOME = Path(__file__).resolve().parent.parent.parent
FLINK_CHECKPOINTS_MS = 100
FLINK_OPENS = [
    f"--add-opens=java.base/{package}=ALL-UNNAMED"
    for package in (
        "java.io",
        "java.lang",
        "java.lang.invoke",
        "java.net",
        "java.nio",
        "java.text",
        "java.time",
        "java.util",
        "java.util.concurrent",
    )
]


class Run(NamedTuple):
    """One run of an engine. Started again with the same values it goes on where it stood."""

    bootstrap: str
    raw: str
    out: str
    folder: Path
    name: str
    classes: Path
    backlog: int
    """So many messages wait in the raw topic."""


class Command(NamedTuple):
    argv: list[str]
    environment: dict[str, str]


class Engine(NamedTuple):
    command: Callable[[Run, Say], Command]
    about: str
    """What it runs with, and what is unequal about it."""
    warm_s: int = 15
    """How long it needs until its code is compiled."""


def _plain(run: Run, _say: Say) -> Command:
    return Command([sys.executable, "-m", "bench.peers.plain_loop", run.bootstrap, run.raw, run.out], {})


def _spark(run: Run, _say: Say) -> Command:
    """At its defaults, but a short backlog must not be one batch: then nothing would be left after a kill."""
    records = Settings().max_offsets_per_trigger
    if run.backlog > 1:
        records = min(records, max(run.backlog // 4, 1_000))
    return _ours(run, {"PRECEDE_MAX_OFFSETS_PER_TRIGGER": str(records)})


def _process(run: Run, _say: Say) -> Command:
    return _ours(run, {"PRECEDE_ENGINE": "process", "PRECEDE_CACHE": str(run.folder / "cache")})


def _two_jobs(run: Run, say: Say) -> Command:
    return Command([sys.executable, "-m", "bench.peers.two_jobs"], _process(run, say).environment)


def _ours(run: Run, more: dict[str, str]) -> Command:
    environment = {
        "PRECEDE_BOOTSTRAP": run.bootstrap,
        "PRECEDE_ONLY": "order",
        "PRECEDE_RAW_TOPIC": run.raw,
        "PRECEDE_ORDERED_TOPIC": run.out,
        "PRECEDE_DEAD_LETTER_TOPIC": f"{run.out}.dead-letters",
        "PRECEDE_PROGRESS_TOPIC": f"{run.out}.progress",
        "PRECEDE_CONTROL_TOPIC": f"{run.out}.control",
        "PRECEDE_CHECKPOINT": str(run.folder / "checkpoint"),
        "PRECEDE_DELTA": str(run.folder / "delta"),
    }
    return Command([sys.executable, "-m", "precede", "run"], environment | more)


def _kafka_streams(run: Run, say: Say) -> Command:
    return Command([*program("StreamsApp", "kafka-streams", run.classes / "kafka-streams", say), *_arguments(run)], {})


def _kafka_streams_10_ms(run: Run, say: Say) -> Command:
    start = _kafka_streams(run, say)
    return Command([*start.argv, "10", "0"], {})


def _flink(run: Run, say: Say) -> Command:
    start = program("FlinkApp", "flink", run.classes / "flink", say, opens=FLINK_OPENS)
    return Command([*start, *_arguments(run), str(FLINK_CHECKPOINTS_MS)], {})


def _arguments(run: Run) -> list[str]:
    return [run.bootstrap, run.raw, run.out, str(run.folder), run.name]


PLAIN = "plain loop"
PROCESS = "process"
SPARK = "spark"
TWO_JOBS = "two jobs"

ENGINES = {
    PLAIN: Engine(
        _plain,
        "precede's kernel between a consumer and a transactional producer. Checks its input, but keeps no state and "
        "writes no dead letters: wrong after a kill.",
        warm_s=5,
    ),
    PROCESS: Engine(_process, "`precede run --engine process`: everything on.", warm_s=5),
    SPARK: Engine(
        _spark, "`precede run --only order`, local Spark, all settings at their defaults: everything on.", warm_s=30
    ),
    TWO_JOBS: Engine(
        _two_jobs, "`precede run --engine process`, twice, with two raw partitions each; not measured unless named.", 5
    ),
    "kafka-streams": Engine(
        _kafka_streams,
        "Kafka Streams, exactly_once_v2, two threads, RocksDB with a changelog topic, a commit each 100 ms (its "
        "default). Hand-written s_b; does not check its input and writes no dead letters.",
    ),
    "kafka-streams-10-ms": Engine(
        _kafka_streams_10_ms, "The same with a commit each 10 ms and no linger; not measured unless named."
    ),
    "flink": Engine(
        _flink,
        f"Flink in one JVM, parallelism 2, state on the heap, an exactly-once sink, a checkpoint to the local disk "
        f"each {FLINK_CHECKPOINTS_MS} ms. Hand-written s_b; does not check its input and writes no dead letters.",
    ),
}
USUAL = [name for name in ENGINES if name not in ("kafka-streams-10-ms", TWO_JOBS)]


def ready(name: str, run: Run, say: Say) -> tuple[list[str], dict[str, str]]:
    """The command line and environment that start the engine."""
    start = ENGINES[name].command(run, say)
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("PRECEDE_")}
    kept = {key: value for key, value in os.environ.items() if key in ("PRECEDE_JARS", "PRECEDE_IVYSETTINGS")}
    return start.argv, inherited | kept | {"PYTHONPATH": str(HOME)} | start.environment
