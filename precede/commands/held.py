"""`precede held`: shows what is held now, and what it waits for."""

import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from precede.command_options import Bootstrap, Config, check_name, done_when_the_reader_leaves, load_settings, say
from precede.terminal_text import safe_text
from precede.udfs.records.identifiers import id_text

if TYPE_CHECKING:
    from rich.table import Table

    from precede.streaming.settings import Settings
    from precede.udfs.engine.held import Held
    from precede.udfs.engine.inspection import OpenGap

NAMED_MAX = 3  # so many things that one message waits for are in the table; --json names all


FromCheckpoint = Annotated[
    str | None,
    typer.Option(
        "--checkpoint",
        metavar="DIR",
        help="Read the job's checkpoint instead, as of its last batch. That needs no Kafka, and starts Spark.",
    ),
]


def held(
    group: Annotated[str | None, typer.Argument(metavar="GROUP", help="One group; without it, all.")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object per line, as `precede replay --held` writes it.")
    ] = False,
    gaps: Annotated[
        bool,
        typer.Option("--gaps", help="Show what is missing instead: who waits for it, and how often it was requested."),
    ] = False,
    bootstrap: Bootstrap = None,
    checkpoint: FromCheckpoint = None,
    config: Config = None,
) -> None:
    """Show what is held now, what each message waits for, and since when.

    This reads the state topic and the raw records behind it, so it needs no Spark, knows what came a moment ago, and
    works while the job is down. `precede why GROUP ID` tells more of one message.

    Examples:

      precede held

      precede held travel --gaps          what is missing, and since when

      precede held --checkpoint checkpoints/
    """
    if group is not None:
        check_name("GROUP", group)
    if checkpoint is None:
        settings = load_settings(config, bootstrap=bootstrap)
        missing, messages = _from_topics(settings, group, gaps=gaps)
    else:
        settings = load_settings(config, reaches_kafka=False, checkpoint=checkpoint)
        missing, messages = _from_checkpoint(settings, group, gaps=gaps)
    with done_when_the_reader_leaves():
        if gaps:
            _show(missing, lambda now_ms: table_of_gaps(missing, now_ms), as_json=as_json)
        else:
            _show(messages, lambda now_ms: table_of_held(messages, now_ms), as_json=as_json)
        if not as_json and not (missing if gaps else messages):
            say(f"Nothing is {'missing' if gaps else 'held'}{'' if group is None else f' in {group}'}.")


def _from_topics(settings: "Settings", group: str | None, *, gaps: bool) -> "tuple[list[OpenGap], list[Held]]":
    from precede.command_options import caught_up
    from precede.inspect import holding

    knowledge = caught_up(settings, group)
    return (list(holding.gaps(knowledge)), []) if gaps else ([], list(holding.held(knowledge)))


def _from_checkpoint(settings: "Settings", group: str | None, *, gaps: bool) -> "tuple[list[OpenGap], list[Held]]":
    from precede.ingest.extras import need

    need("spark", "precede held --checkpoint")
    from precede.streaming.spark import checkpoint_reader as reader

    if sys.stderr.isatty():
        say("Reading the checkpoint ...")
    return (list(reader.gaps(settings, group)), []) if gaps else ([], list(reader.read(settings, group)))


def _show(found: "Sequence[Held | OpenGap]", table: "Callable[[float], Table]", *, as_json: bool) -> None:
    """Print lines for a program, or a table for a person."""
    if as_json:
        _write_lines(found)
    elif found:
        _print_table(table(time.time() * 1000))


def _write_lines(found: "Sequence[Held | OpenGap]") -> None:
    import msgspec

    for one in found:
        typer.echo(msgspec.json.encode(one))


def _print_table(table: "Table") -> None:
    from rich.console import Console

    Console().print(table)


def table_of_gaps(gaps: "list[OpenGap]", now_ms: float) -> "Table":
    """One row per gap."""
    from rich.table import Table

    table = Table("group", "missing", "waited for by", "requested", "since")
    for gap in gaps:
        missing = id_text((gap.sender, gap.epoch, gap.first)) + (f" to {gap.last}" if gap.last > gap.first else "")
        names = [id_text(id_) for id_ in gap.waited]
        more = f" and {len(names) - NAMED_MAX} more" if len(names) > NAMED_MAX else ""
        asked = "not yet" if gap.asked == 0 else "once" if gap.asked == 1 else f"{gap.asked} times"
        since = duration((now_ms - gap.since_ms) / 1000)
        table.add_row(*map(safe_text, (gap.group, missing, ", ".join(names[:NAMED_MAX]) + more, asked, since)))
    return table


def table_of_held(messages: "list[Held]", now_ms: float) -> "Table":
    """One row per held message."""
    from rich.table import Table

    table = Table("group", "message", "waits for", "since")
    for message in messages:
        place = message.group if message.destination is None else f"{message.group} for {message.destination}"
        joins = message.joins or []
        names = [id_text(id_) for id_ in message.missing] + [f"{member} to join" for member in joins]
        names += [f"a word of {member}" for member in message.silent if member not in joins]
        more = f" and {len(names) - NAMED_MAX} more" if len(names) > NAMED_MAX else ""
        who = id_text((message.sender, message.epoch, message.seq))
        since = duration((now_ms - message.since_ms) / 1000)
        table.add_row(*map(safe_text, (place, who, ", ".join(names[:NAMED_MAX]) + more, since)))
    return table


def duration(seconds: float) -> str:
    """A duration in the unit that fits."""
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{max(0.0, seconds):.1f} s"
