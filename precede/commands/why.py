"""`precede why`: what became of one message."""

from pathlib import Path
from typing import Annotated

import typer

from precede.command_options import Bootstrap, Config, check_name, load_settings, parse_id, say
from precede.terminal_text import plain


def why(
    group: Annotated[str, typer.Argument(metavar="GROUP", help="The group.")],
    message: Annotated[str, typer.Argument(metavar="ID", help="The message: sender:seq, or sender@epoch:seq.")],
    delta: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="The job's Delta tables. Default: PRECEDE_DELTA, else delta/."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of sentences.")] = False,
    bootstrap: Bootstrap = None,
    config: Config = None,
) -> None:
    """Tell what became of one message: delivered, held, refused, given up, not come yet, or never seen.

    Where it is held, this names what it waits for, since when, how often that was asked for, and when it is given up.
    Where it was delivered, this names the place in the sequence, and how long the message waited before that and for
    what. Where it was refused, it names the code and the reason.

    This reads the state topic and the raw records behind it, so it needs no Spark and knows what came a moment ago.
    What was settled before is looked up in the Delta tables, if there are any here; otherwise one partition of the
    ordered topic, or of the dead-letter topic, is read, newest records first.

    Give it the job's config file, so that it knows when the job gives up (give_up_ms, loss, silent_ms).

    Examples:

      precede why travel bob:2

      precede why travel bob@1:2 --json   of epoch 1
    """
    check_name("GROUP", group)
    id_ = parse_id(message, "the message")
    settings = load_settings(config, bootstrap=bootstrap, delta=delta)
    import msgspec

    from precede.command_options import shown_progress
    from precede.inspect.why import find_out

    with shown_progress() as tell:
        answer = find_out(settings, group, id_, tell=tell, warn=say)
    typer.echo(msgspec.json.encode(answer) if as_json else "\n".join(map(plain, str(answer).splitlines())))
