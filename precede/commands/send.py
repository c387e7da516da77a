"""`precede send`: publishes one message."""

from typing import Annotated

import typer

from precede.command_options import (
    Bootstrap,
    Config,
    Key,
    State,
    WrongUse,
    check_name,
    load_settings,
    parse_id,
    say,
    state_file,
    utf8_size,
)
from precede.udfs.records.identifiers import id_text
from precede.udfs.records.messages import Id


def send(
    group: Annotated[str, typer.Argument(metavar="GROUP", help="The group to send to.")],
    sender: Annotated[str, typer.Argument(metavar="SENDER", help="The name of the sender.")],
    text: Annotated[str, typer.Argument(metavar="TEXT", help="The message.")],
    after: Annotated[
        str | None,
        typer.Option(metavar="ID", help="The message that this one answers: sender:seq or sender@epoch:seq."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="TEXT is a JSON value and is carried as it is.")] = False,
    state: State = None,
    key: Key = None,
    bootstrap: Bootstrap = None,
    config: Config = None,
) -> None:
    """Publish one message, and print its id when Kafka has it.

    Examples:

      precede send travel ann "Who comes along?"       prints ann:1

      precede send travel bob --after ann:1 "I do."    prints bob:1

    The state file keeps the last seq of each sender in each group. If the file is lost, the log is read instead: a
    sender that the log knows goes on with a new epoch, which its ids name: ann@1:1.

    A group whose order needs a stamp that this command does not write (causal, causal_p2p, lamport, two_clock) is
    refused: send with precede.Member there.

    A message that Kafka did not confirm is sent again by the next call. To repeat the same call is a retry, not a
    second message.
    """
    import msgspec

    settings = load_settings(config, bootstrap=bootstrap, key=key, state=state)
    check_name("GROUP", group)
    check_name("SENDER", sender)
    utf8_size("TEXT", text)
    parents: list[Id] = [] if after is None else [parse_id(after)]
    from precede.ingest.sending import StreamTopicNames, send_one
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
        partitioner=settings.partitioner,
        partitions=settings.partitions,
        replicas=settings.replicas,
        stream=StreamTopicNames(settings.ordered_topic, settings.progress_topic),
        say=say,
        confirm_s=settings.confirm_s,
    )
    typer.echo(id_text(id_))


def _json_text(text: str) -> str:
    """The text as written, if it is JSON; numbers may have any length, because they are not converted."""
    import json

    try:
        json.loads(text, parse_constant=_no_constant, parse_int=str)
    except (ValueError, RecursionError):
        raise WrongUse("TEXT is not a JSON value; without --json it is taken as plain text.") from None
    return text


def _no_constant(name: str) -> None:
    raise ValueError(name)
