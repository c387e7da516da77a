"""`precede run`: runs the streaming job."""

import signal
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from precede.command_options import Bootstrap, Checkpoint, Config, Order, load_settings, say

if TYPE_CHECKING:
    from precede.streaming.job.announcer import Announcer
    from precede.streaming.job.settings import Settings


class Query(StrEnum):
    order = "order"
    history = "history"


def run(
    bootstrap: Bootstrap = None,
    checkpoint: Checkpoint = None,
    delta: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Root of the Delta tables. Default: PRECEDE_DELTA, else delta/.")
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
    only: Annotated[
        Query | None, typer.Option(help="Run only one of the two queries; the other may run elsewhere.")
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Handle what is there, Delta included, and stop.")] = False,
    rebuild_delta: Annotated[
        bool, typer.Option("--rebuild-delta", help="Throw the Delta tables away and write them again from the topics.")
    ] = False,
    config: Config = None,
) -> None:
    """Run the streaming job: it orders what is in the raw topic, and keeps the history in Delta.

    Ctrl-C stops it between two batches. Started again with the same checkpoint it continues where it stopped, and no
    reader of committed records sees a position twice.

    Examples:

      precede run --bootstrap localhost:9092 --checkpoint checkpoints/ --delta delta/

      precede run --once                  handle what is there, then stop

      precede run --only order            history may run elsewhere
    """
    from precede.ingest.extras import need

    need("spark", "precede run")
    settings = load_settings(
        config,
        bootstrap=bootstrap,
        checkpoint=checkpoint,
        delta=delta,
        order=order,
        shards=shards,
        only=None if only is None else only.value,
        once=once or None,
        rebuild_delta=rebuild_delta or None,
    )
    from precede.ingest.signing import key_in
    from precede.streaming.job.announcer import Announcer
    from precede.udfs.errors import PrecedeError

    announcer = Announcer(say if settings.log_format == "text" else typer.echo, settings.log_format)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # until the job handles it
    try:
        service_key = key_in(settings.service_key)
        _make_topics(settings, announcer)
    except KeyboardInterrupt:
        return
    except PrecedeError as refusal:
        announcer.refused(refusal)
        raise
    from precede.streaming.job import run as job

    job.run(settings, key=service_key)


def _make_topics(settings: "Settings", announcer: "Announcer") -> None:
    """Create the topics that are absent; wait for a broker that does not answer."""
    from precede.ingest.kafka import topics

    topics.ensure_patiently(
        settings.bootstrap,
        settings.topics(),
        replicas=settings.replicas,
        patience_s=settings.patience_s,
        say=announcer,
    )
