"""`precede doctor`: shows the settings and where they come from, and checks whether a job could start."""

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import typer

from precede.command_options import Bootstrap, Config, load_settings
from precede.terminal_text import plain

if TYPE_CHECKING:
    from precede.doctor.findings import Finding
    from precede.streaming.settings import Settings

FAILED = 1
WIDTH = 5


def doctor(bootstrap: Bootstrap = None, config: Config = None) -> None:
    """Check whether `precede run` could start with these settings, without starting or changing anything.

    First each setting is shown with where it comes from, then a line for each check: ok, note, or stop with what to do.
    Exit status 1 if something would stop a start.

    Examples:

      precede doctor --config precede.toml
    """
    from precede.doctor.findings import origins

    settings = load_settings(config, bootstrap=bootstrap)
    file = config or os.environ.get("PRECEDE_CONFIG")
    for name, value, origin in origins(settings, {"bootstrap": bootstrap}, os.environ, file):
        typer.echo(plain(f"{name} = {value}{f'   ({origin})' if origin else ''}"))
    typer.echo()
    stops = 0
    for level, what in _findings(settings):
        typer.echo(plain(f"{level:<{WIDTH}} {what}"))
        stops += level == "stop"
    typer.echo()
    if stops:
        typer.echo(f"A start would stop: {stops} of these lines {'says' if stops == 1 else 'say'} why.")
        raise typer.Exit(FAILED)
    typer.echo("Nothing would stop a start.")


def _findings(settings: "Settings") -> "Iterator[Finding]":
    from precede.doctor.kafka import check_broker, check_stream
    from precede.doctor.machine import check_machine

    yield from check_machine(settings)
    answers = True
    for number, found in enumerate(check_broker(settings)):
        answers = answers and not (number == 0 and found.level == "stop")
        yield found
    if answers:
        yield from check_stream(settings)
