"""`precede held`: what is held now, and what it waits for."""

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from precede.options import Config, done_when_the_reader_leaves, load_settings, say

if TYPE_CHECKING:
    from rich.table import Table

    from udfs.held import Held

NAMED_MAX = 3  # of what one message waits for, in the table; --json names all


def held(
    group: Annotated[str | None, typer.Argument(metavar="GROUP", help="One group; without it, all.")] = None,
    checkpoint: Annotated[Path | None, typer.Option(metavar="DIR", help="The job's checkpoint.")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object a line, as `precede replay --held` writes.")
    ] = False,
    config: Config = None,
) -> None:
    """Show what is held now, what each message waits for, and since when.

    It reads the job's checkpoint as of the last batch, whether the job runs or not; that starts Spark for a moment.

    Example:

      precede held travel --checkpoint checkpoints/
    """
    settings = load_settings(config, checkpoint=checkpoint)
    from streaming import held as reader

    if sys.stderr.isatty():
        say("Reading the checkpoint ...")
    with done_when_the_reader_leaves():
        messages = list(reader.read(settings, group))
        if as_json:
            _write_lines(messages)
        elif messages:
            _print_table(messages)
        else:
            say("Nothing is held." if group is None else f"Nothing is held in {group}.")


def _write_lines(messages: "list[Held]") -> None:
    import msgspec

    for message in messages:
        typer.echo(msgspec.json.encode(message))


def _print_table(messages: "list[Held]") -> None:
    from rich.console import Console

    Console().print(_table(messages, time.time() * 1000))


def _table(messages: "list[Held]", now_ms: float) -> "Table":
    from rich.table import Table

    from precede.send import id_text

    table = Table("group", "message", "waits for", "since")
    for message in messages:
        place = message.group if message.destination is None else f"{message.group} for {message.destination}"
        names = [id_text(id_) for id_ in message.missing] + [f"a word of {member}" for member in message.silent]
        more = f" and {len(names) - NAMED_MAX} more" if len(names) > NAMED_MAX else ""
        table.add_row(
            place,
            id_text((message.sender, message.epoch, message.seq)),
            ", ".join(names[:NAMED_MAX]) + more,
            duration((now_ms - message.since_ms) / 1000),
        )
    return table


def duration(seconds: float) -> str:
    """As a person would say it."""
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{max(0.0, seconds):.1f} s"
