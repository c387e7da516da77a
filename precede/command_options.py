"""What several commands share: their common options, and the settings behind them."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from precede.terminal_text import plain
from precede.udfs.errors import PrecedeError, Refused

if TYPE_CHECKING:
    from precede.streaming.job.settings import Settings

Bootstrap = Annotated[
    str | None,
    typer.Option(metavar="HOST:PORT", help="The Kafka brokers. Default: PRECEDE_BOOTSTRAP, else localhost:9092."),
]
Config = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="A TOML file of settings, also by PRECEDE_CONFIG; a flag and a PRECEDE_* variable stand over it.",
    ),
]
Checkpoint = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="The job's progress and state. Default: PRECEDE_CHECKPOINT, else checkpoints/."),
]
Order = Annotated[
    str | None,
    typer.Option(
        metavar="ORDER",
        help="The order of groups nobody created, one of docs/orders/README.md. Default: PRECEDE_ORDER, else s_b.",
    ),
]
Partitioner = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="The function of the key that says in which partition a group belongs: murmur2, as in Kafka's Java "
        "client, or crc32, librdkafka's own default. Default: PRECEDE_PARTITIONER, else murmur2.",
    ),
]
State = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Where the last seq of each sender is kept. Default: PRECEDE_STATE, else your state folder.",
    ),
]
Key = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Sign with the private key in FILE (precede key). Default: PRECEDE_KEY."),
]
Seconds = Annotated[float | None, typer.Option(min=0, metavar="N", help="Stop by itself after N seconds.")]


class WrongUse(PrecedeError):
    """The command was called in a way that can mean nothing; its text is the sentence the caller reads."""


def load_settings(config: Path | None, *, reaches_kafka: bool = True, **flags: Any) -> "Settings":
    """Flag over variable over file over default; what cannot be a setting is wrong use."""
    from precede.streaming.job import settings

    for name, meant in settings.likely_slips(os.environ):
        say(f"The variable {name} is none of precede's and sets nothing: is {meant} meant?")
    try:
        file = config or os.environ.get("PRECEDE_CONFIG")
        return settings.load(flags, os.environ, file, reaches_kafka=reaches_kafka)
    except Refused as error:
        raise WrongUse(str(error)) from error


def state_file(settings: "Settings") -> Path:
    """Where the last seq of each sender is kept."""
    from precede.ingest.sender_state import default_file

    return Path(settings.state) if settings.state else default_file()


@contextmanager
def done_when_the_reader_leaves() -> Iterator[None]:
    """Whoever reads our output, as `head` does, may have seen enough: then the command is done, and silent."""
    try:
        yield
    except (BrokenPipeError, SystemExit):  # the second is rich's, which prints the tables
        # Python would try to write what is left, and complain, while it shuts down.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit from None


def say(sentence: str) -> None:
    """One sentence for the person, apart from what a program reads on standard output."""
    typer.echo(plain(sentence), err=True)
