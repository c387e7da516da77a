"""What several commands share: common options and the settings behind them, ids and names, files, and what is told.

Files are opened without a buffer, so that a pipe is never kept waiting.
"""

import gc
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from precede.terminal_text import plain
from precede.udfs.errors import PrecedeError, Refused
from precede.udfs.records.identifiers import MessageId, checked_id
from precede.udfs.records.identifiers import parse_id as parse_text

if TYPE_CHECKING:
    from precede.inspect.knowledge import StreamKnowledge
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


# ── ids and names ─────────────────────────────────────────────────────────────────────────────────────────────────────


def parse_id(text: str, given: str = "--after") -> MessageId:
    """Read `sender:seq`, which stands for epoch 0, or `sender@epoch:seq`, or the JSON form."""
    import msgspec

    try:
        if not text.endswith("]"):
            return parse_text(text)
        return checked_id(*msgspec.json.decode(text, type=tuple[str, int, int]))
    except (msgspec.DecodeError, UnicodeEncodeError):
        raise WrongUse(
            f'{given} {text} is no id; write sender:seq, sender@epoch:seq or ["sender", epoch, seq].'
        ) from None
    except ValueError as error:
        raise WrongUse(f"{given} {error}.") from None


def check_name(what: str, name: str) -> None:
    """Raise WrongUse if this cannot be the name of a group or a member."""
    from precede.udfs.records.messages import NAME_BYTES_MAX

    size = utf8_size(what, name)
    if not 1 <= size <= NAME_BYTES_MAX:
        raise WrongUse(f"{what} must have 1 to {NAME_BYTES_MAX} bytes, not {size}.")


def utf8_size(what: str, text: str) -> int:
    """The size in bytes; raises WrongUse if it is not text, because a shell passes on any bytes."""
    try:
        return len(text.encode())
    except UnicodeEncodeError:
        raise WrongUse(f"{what} is not UTF-8.") from None


# ── files ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def open_input(file: str, files: ExitStack) -> int:
    """The descriptor of the file with that name, or of standard input for `-`."""
    if file == "-" and sys.stdin is None:
        raise WrongUse("Standard input is closed, so - cannot be read.")
    if file == "-":
        return sys.stdin.fileno()
    try:
        return files.enter_context(Path(file).open("rb", buffering=0)).fileno()
    except OSError as error:
        raise WrongUse(f"The file {file} cannot be read: {error.strerror}.") from error


def open_output(path: Path, source: int, files: ExitStack) -> int:
    """Open a file for writing, but never the one that is being read, because opening would empty it."""
    try:
        if path.is_file() and os.path.samestat(path.stat(), os.fstat(source)):
            raise WrongUse(f"{path} is the file that is read; write to another file.")
        return files.enter_context(path.open("wb", buffering=0)).fileno()
    except OSError as error:
        raise WrongUse(f"The file {path} cannot be written: {error.strerror}.") from error


def write_all(file: int, text: bytes) -> None:
    """Write all of it: one system call may write only a part."""
    view = memoryview(text)
    while view:
        view = view[os.write(file, view) :]


# ── what is being read ────────────────────────────────────────────────────────────────────────────────────────────────

TERMINAL_AFTER_S, TERMINAL_EVERY_S = 1.0, 0.2
LINE_EVERY_S = 10.0
"""Where standard error is no terminal, a line is written this often."""
CLEAR_LINE = "\r\x1b[K"


@contextmanager
def shown_progress() -> Iterator[Callable[[str, float], None]]:
    """A function that takes what is being read, and which part of it was read: 0 to 1."""
    is_terminal = sys.stderr.isatty()
    next_at = time.monotonic() + (TERMINAL_AFTER_S if is_terminal else LINE_EVERY_S)
    is_shown = False

    def tell(what: str, part: float) -> None:
        nonlocal next_at, is_shown
        now = time.monotonic()
        if now < next_at:
            return
        line = f"Reading {plain(what)}: {min(100, round(part * 100))} %"
        sys.stderr.write(f"{CLEAR_LINE}{line}" if is_terminal else f"{line}\n")
        sys.stderr.flush()
        is_shown = True
        next_at = now + (TERMINAL_EVERY_S if is_terminal else LINE_EVERY_S)

    try:
        yield tell
    finally:
        if is_shown and is_terminal:
            sys.stderr.write(CLEAR_LINE)
            sys.stderr.flush()


def caught_up(settings: "Settings", group: str | None = None) -> "StreamKnowledge":
    """What is known now of one group or of all."""
    from precede.inspect.knowledge import look

    gc.disable()  # nothing here makes cycles, and looking for them took half of the time with 100,000 groups
    knowledge = look(settings, group)
    if knowledge.warning is not None:
        say(knowledge.warning)
    with shown_progress() as tell:
        knowledge.catch_up(tell)
    return knowledge
