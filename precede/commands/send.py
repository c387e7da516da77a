"""`precede send`: publish one message."""

from typing import Annotated

import typer

from precede.command_options import Bootstrap, Config, Key, State, WrongUse, load_settings, state_file
from precede.identifiers import check_name, id_text, parse_id, utf8_size


def send(
    group: Annotated[str, typer.Argument(metavar="GROUP", help="The group to speak to.")],
    sender: Annotated[str, typer.Argument(metavar="SENDER", help="Who speaks.")],
    text: Annotated[str, typer.Argument(metavar="TEXT", help="What is said.")],
    after: Annotated[
        str | None, typer.Option(metavar="ID", help='What this answers: sender:seq, or JSON ["sender", epoch, seq].')
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="TEXT is a JSON value, to be carried as it is.")] = False,
    state: State = None,
    key: Key = None,
    bootstrap: Bootstrap = None,
    config: Config = None,
) -> None:
    """Publish one message, and print its id once Kafka has it.

    Examples:

      precede send travel ann "Who comes along?"       prints ann:1

      precede send travel bob --after ann:1 "I do."    prints bob:1

    The last seq of each group and sender is kept in the state file. If it is lost, the log is asked: a sender that is
    in it goes on under a new epoch, and its ids print as JSON. A message that Kafka did not confirm is sent again by
    the next call; the same call again is a retry, not a second message.
    """
    import msgspec

    settings = load_settings(config, bootstrap=bootstrap, key=key, state=state)
    check_name("GROUP", group)
    check_name("SENDER", sender)
    utf8_size("TEXT", text)
    parents = [] if after is None else [parse_id(after)]
    from precede.ingest.sending import send_one
    from precede.ingest.signing import key_in

    id_ = send_one(
        settings.bootstrap,
        settings.raw_topic,
        state_file(settings),
        group=group,
        sender=sender,
        after=parents,
        data=msgspec.Raw(_json_text(text)) if as_json else text,
        key=key_in(settings.key),
    )
    typer.echo(id_text(id_))


def _json_text(text: str) -> str:
    """Checked by the standard reader, which takes numbers of any length if it need not count them; sent as written."""
    import json

    try:
        json.loads(text, parse_constant=_no_constant, parse_int=str)
    except (ValueError, RecursionError):
        raise WrongUse("TEXT is not a JSON value; without --json it is taken as plain text.") from None
    return text


def _no_constant(name: str) -> None:
    raise ValueError(name)
