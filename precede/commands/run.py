"""`precede run`: runs the streaming job."""

import signal
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from precede.command_options import Bootstrap, Checkpoint, Config, Engine, Order, load_given_settings, say
from precede.ingest.extras import need

if TYPE_CHECKING:
    from precede.streaming.settings import Settings


WITHOUT_SPARK = "Without Spark, `precede run --engine process` orders on this machine, and writes no history."


class Query(StrEnum):
    order = "order"
    history = "history"


def run(
    bootstrap: Bootstrap = None,
    checkpoint: Checkpoint = None,
    delta: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            help="Root of the Delta tables: a folder or a URI. Default: PRECEDE_DELTA, else delta/.",
        ),
    ] = None,
    order: Order = None,
    shards: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="The number of parts over which the groups are spread (docs/internals/benchmarks.md); fixed by the "
            "checkpoint. "
            "Default: PRECEDE_SHARDS, else 16.",
        ),
    ] = None,
    raw_partitions: Annotated[
        str | None,
        typer.Option(
            metavar="P",
            help="Order only these partitions of the raw topic, such as 0-3,7; other jobs order the rest. Default: "
            "PRECEDE_RAW_PARTITIONS, else all.",
        ),
    ] = None,
    only: Annotated[
        Query | None, typer.Option(help="Run only one of the two queries; the other may run elsewhere.")
    ] = None,
    engine: Annotated[
        Engine | None,
        typer.Option(
            help="What orders: Spark, or this process alone, without Spark and history. Default: PRECEDE_ENGINE, else "
            "spark."
        ),
    ] = None,
    cache: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="With --engine process: a copy of the state, for a fast start. Default: PRECEDE_CACHE, else cache/.",
        ),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Handle what is there, Delta included, and stop.")] = False,
    rebuild_delta: Annotated[
        bool, typer.Option("--rebuild-delta", help="Throw the Delta tables away and write them again from the topics.")
    ] = False,
    config: Config = None,
) -> None:
    """Run the streaming job: it orders what is in the raw topic, and keeps the history in Delta.

    Ctrl-C stops it between two batches. Started again with the same checkpoint it continues where it stopped, and no
    reader of committed records sees a position twice. A second job with the same topics takes over: the first one then
    ends with exit status 3.

    Examples:

      precede run --bootstrap localhost:9092 --checkpoint checkpoints/ --delta delta/

      precede run --once                  handle what is there, then stop

      precede run --only order            history may run elsewhere

      precede run --engine process        order on this machine, without Spark
    """
    settings, given = load_given_settings(
        config,
        bootstrap=bootstrap,
        checkpoint=checkpoint,
        delta=delta,
        order=order,
        shards=shards,
        raw_partitions=raw_partitions,
        only=None if only is None else only.value,
        engine=None if engine is None else engine.value,
        cache=cache,
        once=once or None,
        rebuild_delta=rebuild_delta or None,
    )
    if not settings.runs_without_spark:
        need("spark", "precede run", otherwise=WITHOUT_SPARK)
    from precede.ingest.service.running import Announcer
    from precede.ingest.signing import key_in
    from precede.udfs.errors import PrecedeError

    announcer = Announcer(say if settings.log_format == "text" else typer.echo, settings.log_format)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # until the job handles it
    for sentence in without_effect(settings, given):
        announcer(sentence)
    try:
        service_key = key_in(settings.service_key)
        from precede.streaming.job import job
    except KeyboardInterrupt:
        return
    except PrecedeError as refusal:
        announcer.refused(refusal)
        raise
    job.run(settings, key=service_key, makes_topics=True)


def without_effect(settings: "Settings", given: set[str]) -> Iterator[str]:
    """What was given and does nothing with this engine."""
    from precede.streaming.settings import SPARK_ONLY

    unused = [name for name in SPARK_ONLY if name in given]
    if settings.runs_without_spark and unused:
        yield f"Only Spark needs {', '.join(unused)}; with engine = process this has no effect."
    if settings.runs_without_spark and settings.only is None:
        yield "This engine writes no history; `precede run --only history` writes it beside."
