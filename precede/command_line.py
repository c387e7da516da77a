"""The command `precede`: what all commands have in common, which is help, exit status, and one sentence per error.

Each command is a file of `precede/commands/`. Exit status: 0 done, 1 failed, 2 wrong use, 3 another job took
over. The commands import Spark, Kafka and pandas only where they need them, so that `precede replay` and
`precede --help` start in a quarter of a second.
"""

import os
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from difflib import get_close_matches
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

import precede
from precede.command_options import WrongUse, say
from precede.udfs.errors import PrecedeError, TakenOver

DONE, FAILED, WRONG_USE, TAKEN_OVER = 0, 1, 2, 3

TERMINATION_LOG = Path("/dev/termination-log")
"""Where a container platform looks for the reason why a program ended: Kubernetes shows it with the pod."""
REASON_BYTES_MAX = 4096
"""The platform reads no more."""

ABOUT = """Messages of a group, delivered in the order they depend on each other.

Messages go into a Kafka topic in any order. The stream holds back those that came too early, and writes one sequence
per group to another topic, exactly once, and to Delta tables.

[bold]See it work[/bold]

  precede demo                        everything on this machine, with a live view

[bold]The order alone, without Spark and Kafka[/bold]

  precede replay messages.jsonl       raw messages in, one per line; ordered records out
  precede compare messages.jsonl      the same messages under every order, and what each costs

[bold]A stream of your own[/bold]

  precede broker                      a Kafka broker, if you have none
  precede run                         the streaming job
  precede doctor                      what would stop it from starting
  precede gateway                     peers of a network segment, and the log
  precede send travel ann "Who comes along?"
  precede send travel bob --after ann:1 "I do."
  precede tail travel                 what was delivered, in order
  precede held travel                 what waits, and for what
  precede why travel bob:1            what became of one message
  precede groups                      the groups, and their members
  precede dead-letters --since 1d     what was refused, and why
  precede check                       whether all of it is right, by code of its own

[bold]Without Kafka, between machines that hear each other[/bold]

  precede peer travel ann             take part in a group by multicast
"""

COMMANDS = (
    "demo",
    "replay",
    "compare",
    "run",
    "doctor",
    "gateway",
    "send",
    "tail",
    "held",
    "why",
    "groups",
    "dead-letters",
    "check",
    "peer",
    "key",
    "broker",
    "bundle",
)  # as --help lists them


def application(arguments: list[str]) -> typer.Typer:
    """The command line. If a command is named, only that one is loaded, which halves the time to start."""
    app = typer.Typer(
        name="precede",
        help=ABOUT,
        add_completion=False,
        no_args_is_help=True,
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_precede)
    for name in arguments[:1] if arguments[:1] and arguments[0] in COMMANDS else COMMANDS:
        module = name.replace("-", "_")
        command = getattr(import_module(f"precede.commands.{module}"), module)
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name)
        else:
            app.command(name)(command)
    return app


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"precede {precede.__version__}")
        raise typer.Exit


def _precede(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run one command, and exit with its status."""
    given = sys.argv[1:] if arguments is None else arguments
    warnings.showwarning = partial(_show_warning, warnings.showwarning)
    try:
        status = application(given)(given, prog_name="precede", standalone_mode=False)
    except typer.TyperException as error:
        typer.echo(_usage(error), err=True)  # the library's own text, which may be lines of help
        sys.exit(error.exit_code)
    except WrongUse as error:
        _end(str(error), WRONG_USE)
    except TakenOver as error:
        _end(str(error), DONE if _is_yarn_driver() else TAKEN_OVER)
    except Exception as error:
        if os.environ.get("PRECEDE_DEBUG"):
            raise
        _end(_sentence(error), FAILED)
    # The library turns Ctrl-C into 130; commands that are meant to be stopped so exit with 0 themselves.
    sys.exit(FAILED if status == 130 else status or DONE)


def _is_yarn_driver() -> bool:
    """Whether YARN started this: it starts again whatever fails, and this job would take the topics back."""
    return "PYSPARK_GATEWAY_PORT" in os.environ and "CONTAINER_ID" in os.environ


def _end(sentence: str, status: int) -> NoReturn:
    """Say why, where people and container platforms look, and exit with the status."""
    say(sentence)
    with suppress(OSError):
        if TERMINATION_LOG.is_file():
            TERMINATION_LOG.write_bytes(sentence.encode(errors="replace")[:REASON_BYTES_MAX] + b"\n")
    sys.exit(status)


def _show_warning(show: Callable[..., None], message: Warning | str, category: type[Warning], *place: Any) -> None:
    """Show what the classes of the Python door warn of as a sentence, without the place in the code."""
    if category is UserWarning:
        say(str(message))
    else:
        show(message, category, *place)


def _usage(error: typer.TyperException) -> str:
    text = error.format_message()
    if option := getattr(error, "option_name", None):  # the library also offers what is not like it at all
        like = get_close_matches(
            option.strip("-"), [one.strip("-") for one in getattr(error, "possibilities", None) or []]
        )
        text = getattr(error, "message", text) + "".join(f". Did you mean --{one}?" for one in like[:1])
    if error.exit_code != WRONG_USE or "\n" in text:
        return text
    command = getattr(error, "ctx", None)  # errors of wrong use have it
    see = "precede" if command is None else command.command_path
    end = "" if text.endswith("?") else "."
    return f"{text.rstrip('.')}{end} See {see} --help." if text else "Say which command."


def _sentence(error: Exception) -> str:
    """Errors of precede are sentences already; for any other, say what kind it is and how to see all of it."""
    if isinstance(error, PrecedeError):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename or 'precede'}: {error.strerror}."
    text = " ".join(str(error).split())
    return f"precede failed: {type(error).__name__}: {text[:500]} (PRECEDE_DEBUG=1 shows where)"
