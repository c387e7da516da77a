"""What several commands share: common options, and the settings behind them."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from precede.terminal_text import plain
from precede.udfs.errors import PrecedeError, Refused

if TYPE_CHECKING:
    from precede.streaming.settings import Settings

Bootstrap = Annotated[
    str | None,
    typer.Option(metavar="HOST:PORT", help="The Kafka brokers. Default: PRECEDE_BOOTSTRAP, else localhost:9092."),
]
Config = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="A TOML file of settings; flags and PRECEDE_* variables override it. Default: PRECEDE_CONFIG.",
    ),
]
Checkpoint = Annotated[
    str | None,
    typer.Option(
        metavar="DIR",
        help="The job's progress and state: a folder or a URI. Default: PRECEDE_CHECKPOINT, else checkpoints/.",
    ),
]
Order = Annotated[
    str | None,
    typer.Option(
        metavar="ORDER",
        help="Order of groups without a create record, see docs/orders/README.md. Default: PRECEDE_ORDER, else s_b.",
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
Seconds = Annotated[float | None, typer.Option(min=0, metavar="N", help="Stop after N seconds.")]


class Engine(StrEnum):
    """What runs the kernel."""

    spark = "spark"
    process = "process"


class WrongUse(PrecedeError):
    """The command line cannot mean anything; the text of the error is the sentence that the caller reads."""


def load_settings(config: Path | None, *, reaches_kafka: bool = True, **flags: Any) -> "Settings":
    """The settings: a flag overrides a variable, which overrides the file, which overrides the default.

    Raises WrongUse for what cannot be a setting.
    """
    return load_given_settings(config, reaches_kafka=reaches_kafka, **flags)[0]


def load_given_settings(
    config: Path | None, *, reaches_kafka: bool = True, **flags: Any
) -> tuple["Settings", set[str]]:
    """The same, with the names of the settings that were given anywhere."""
    from precede.streaming import settings

    for name, meant in settings.likely_slips(os.environ):
        say(f"The variable {name} is not a setting of precede and has no effect: did you mean {meant}?")
    try:
        file = config or os.environ.get("PRECEDE_CONFIG")
        given = set(settings.given(flags, os.environ, file))
        return settings.load(flags, os.environ, file, reaches_kafka=reaches_kafka), given
    except Refused as error:
        raise WrongUse(str(error)) from error


def state_file(settings: "Settings") -> Path:
    """Where the last seq of each sender is kept."""
    from precede.ingest.sender_state import default_file

    return Path(settings.state) if settings.state else default_file()


@contextmanager
def done_when_the_reader_leaves() -> Iterator[None]:
    """If the reader of the output closes it early, as `head` does, the command is done, without an error."""
    try:
        yield
    except (BrokenPipeError, SystemExit):  # the second is rich's, which prints the tables
        # Python would try to write the rest at shutdown, and report an error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit from None


def say(sentence: str) -> None:
    """Print a sentence for a person to standard error; standard output is for programs."""
    typer.echo(plain(sentence), err=True)
