"""`precede send`: publish one message."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from precede.command_options import Bootstrap, Config, Key, State, WrongUse, load_settings, state_file

if TYPE_CHECKING:
    from precede.udfs.records.messages import Id


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
    _size("TEXT", text)
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
        partitioner=settings.partitioner,
    )
    typer.echo(id_text(id_))


def id_text(id_: "Id") -> str:
    """An id as `--after` takes it: short where the epoch is 0."""
    import msgspec

    sender, epoch, seq = id_
    short = epoch == 0 and not sender.startswith("[")  # that is how JSON begins
    return f"{sender}:{seq}" if short else msgspec.json.encode(id_).decode()


def parse_id(text: str, given: str = "--after") -> "Id":
    """`sender:seq` stands for epoch 0; a sender's name may itself hold colons."""
    import msgspec

    from precede.udfs.records.messages import EPOCH_MAX, SEQ_MAX

    sender, colon, seq = text.rpartition(":")
    if not text.startswith("[") and colon and seq.isascii() and seq.isdecimal() and len(seq) <= len(str(SEQ_MAX)):
        id_: Any = (sender, 0, int(seq))
    else:
        try:
            id_ = msgspec.json.decode(text, type=tuple[str, int, int])
        except (msgspec.DecodeError, UnicodeEncodeError):
            raise WrongUse(f'{given} {text} is no id; write sender:seq or ["sender", epoch, seq].') from None
    check_name(f"the sender in {given}", id_[0])
    if not 0 <= id_[1] <= EPOCH_MAX or not 1 <= id_[2] <= SEQ_MAX:
        raise WrongUse(f"{given} {text}: an epoch is 0 to {EPOCH_MAX}, a seq 1 to {SEQ_MAX}.")
    return id_[0], id_[1], id_[2]


def check_name(what: str, name: str) -> None:
    from precede.udfs.records.messages import NAME_BYTES_MAX

    size = _size(what, name)
    if not 1 <= size <= NAME_BYTES_MAX:
        raise WrongUse(f"{what} must have 1 to {NAME_BYTES_MAX} bytes, not {size}.")


def _size(what: str, text: str) -> int:
    """In bytes; the shell lets through what is no text at all."""
    try:
        return len(text.encode())
    except UnicodeEncodeError:
        raise WrongUse(f"{what} is not UTF-8.") from None


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
