"""`precede groups`: which groups there are; begin, join and leave them, and give up on what they wait for."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from precede.command_options import (
    Bootstrap,
    Config,
    Key,
    State,
    WrongUse,
    done_when_the_reader_leaves,
    load_settings,
    say,
    state_file,
)
from precede.commands.send import check_name, id_text, parse_id
from precede.terminal_text import plain, safe_text

if TYPE_CHECKING:
    from rich.table import Table

    from precede.groups.manager import Answer, Groups
    from precede.streaming.job.settings import Settings
    from precede.udfs.peers.catalogue import Listing

MEMBERS_SHOWN_MAX = 8  # in the table; --json names all

Group = Annotated[str, typer.Argument(metavar="GROUP", help="The group.")]
Name = Annotated[str, typer.Argument(metavar="NAME", help="Who does it, the SENDER of `precede send`.")]
Wait = Annotated[
    float, typer.Option(min=0, metavar="N", help="How many seconds to wait for the job's answer; 0 does not wait.")
]

groups = typer.Typer(invoke_without_command=True, no_args_is_help=False)


@groups.callback()
def list_groups(
    context: typer.Context,
    delta: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Read the job's Delta tables rather than the ordered topic; needs no Kafka."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object a line, with all options and members.")
    ] = False,
    bootstrap: Bootstrap = None,
    config: Config = None,
) -> None:
    """Show which groups there are, with their orders and members; begin, join and leave them, change their keys, and
    give up on what is missing.

    A group nobody created has the default order and is open to everybody. One that was created may be closed: then
    what somebody says who is not a member is held until it joins.

    Examples:

      precede groups

      precede groups --delta delta/ --json

      precede groups create travel ann --order causal --closed --member bob

      precede groups join travel chen

      precede groups leave travel chen
    """
    if context.invoked_subcommand is not None:
        _refuse_options_before(context)
        return
    settings = load_settings(config, bootstrap=bootstrap)
    from precede.groups.catalogue import CatalogueReader, catalogue_of_delta

    cut_off: set[str] = set()
    if delta is not None:
        catalogue = catalogue_of_delta(delta)
    else:
        reader = CatalogueReader(settings.bootstrap, settings.ordered_topic)
        reader.read_on()
        catalogue, cut_off = reader.catalogue, reader.cut_off
        reader.close()
    listings = [catalogue.groups[group] for group in sorted(catalogue.groups)]
    with done_when_the_reader_leaves():
        if as_json:
            _write_lines(listings)
        elif listings:
            _print_table(listings)
        else:
            say("There is no group yet.")
    if cut_off:
        named = ", ".join(sorted(cut_off)[:3])
        say(f"The topic no longer has the beginning of {named}: who is in may be incomplete; --delta knows it all.")


def _refuse_options_before(context: typer.Context) -> None:
    """The list's own options would be passed over in silence, and a group changed on another broker than was named."""
    command = context.invoked_subcommand
    for option in context.command.params:
        source = context.get_parameter_source(str(option.name))
        if source is not None and source.name == "COMMANDLINE":  # an empty value was given, too
            flag = option.opts[0]
            raise WrongUse(
                f"{flag} stands before {command}, where only the list sees it: see precede groups {command} --help."
            )


@groups.command()
def create(
    group: Group,
    name: Name,
    order: Annotated[str | None, typer.Option(metavar="ORDER", help="Its order. Default: the job's.")] = None,
    member: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="One more first member; may be given again and again.")
    ] = None,
    closed: Annotated[
        bool, typer.Option("--closed", help="Only members are heard; others are held until they join.")
    ] = False,
    loss: Annotated[
        str | None, typer.Option(metavar="hold|abandon", help="What becomes of messages that never come.")
    ] = None,
    give_up_ms: Annotated[
        int | None, typer.Option(metavar="MS", help="How long to wait for a missing message; 0: for ever.")
    ] = None,
    window: Annotated[int | None, typer.Option(metavar="N", help="How far a seq may be past the highest seen.")] = None,
    digests: Annotated[
        int | None,
        typer.Option(metavar="N", help="Of how many last messages another content under the same id is noticed."),
    ] = None,
    accuracy_ms: Annotated[
        int | None, typer.Option(metavar="MS", help="two_clock: by how much members' clocks may differ.")
    ] = None,
    delay_min_ms: Annotated[int | None, typer.Option(metavar="MS", help="two_clock: no message is faster.")] = None,
    delay_max_ms: Annotated[int | None, typer.Option(metavar="MS", help="two_clock: no message is slower.")] = None,
    conflict: Annotated[
        list[str] | None,
        typer.Option(metavar="OP,OP", help="object: two operations that conflict; may be given again."),
    ] = None,
    public_key: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=KEY", help="A member's public key: nothing unsigned is taken then (precede key)."),
    ] = None,
    wait: Wait = 30.0,
    state: State = None,
    key: Key = None,
    bootstrap: Bootstrap = None,
    config: Config = None,
) -> None:
    """Begin a group, with NAME and every --member in it.

    It counts only before anything else of the group. In `lamport` and `two_clock` the group is closed in any case,
    since everybody waits for every member there.

    Examples:

      precede groups create travel ann

      precede groups create travel ann --order lamport --member bob --member chen

      precede groups create accounts ann --order object --conflict deposit,audit --conflict withdraw,audit
    """
    options: dict[str, Any] = {
        "closed": closed or None,
        "loss": loss,
        "give_up_ms": give_up_ms,
        "window": window,
        "digests": digests,
        "accuracy_ms": accuracy_ms,
        "delay_min_ms": delay_min_ms,
        "delay_max_ms": delay_max_ms,
        "conflicts": None if conflict is None else [_parts(one, ",", "--conflict") for one in conflict],
        "keys": None if public_key is None else dict(_parts(one, "=", "--public-key") for one in public_key),
    }
    members = list(dict.fromkeys([name, *(member or [])]))
    with _opened(group, name, wait, load_settings(config, bootstrap=bootstrap, key=key, state=state)) as manager:
        answer = manager.create(group, order=order, members=members, **options)
        _tell(f"{group} is there, with {', '.join(members)} in it", answer, wait)


@groups.command()
def join(
    group: Group,
    name: Name,
    new_key: Annotated[
        str | None,
        typer.Option(metavar="KEY", help="The public key under which NAME speaks from now on; --key signs for it."),
    ] = None,
    wait: Wait = 30.0,
    state: State = None,
    key: Key = None,
    bootstrap: Bootstrap = None,
    config: Config = None,
) -> None:
    """Become a member of a group, or go on in it with another key.

    The epoch is one that NAME never used before in it, so whoever still speaks under an older one is no longer heard;
    `precede send` goes on with the new one.

    In a group with keys --key signs. To change the key, sign with the old one and name the public half of the new one;
    from then on the new one signs. Who has lost its key asks the group's service: precede groups admit.

    Examples:

      precede groups join travel chen

      precede groups join travel ann --key ann.key --new-key "$(precede key new.key)"
    """
    with _opened(group, name, wait, load_settings(config, bootstrap=bootstrap, key=key, state=state)) as manager:
        answer = manager.join(group, new_key=new_key)
        with_key = "" if new_key is None else " and a new key"
        _tell(f"{name} is in {group} with epoch {answer.epoch}{with_key}", answer, wait)


@groups.command()
def admit(
    group: Group,
    member: Annotated[str, typer.Argument(metavar="MEMBER", help="Who is let in, or gets a new key.")],
    public_key: Annotated[str, typer.Argument(metavar="KEY", help="Its public key, as `precede key` prints it.")],
    wait: Wait = 30.0,
    key: Key = None,
    bootstrap: Bootstrap = None,
    config: Config = None,
) -> None:
    """As the service of a group with keys: let somebody in, or bring a member a new key.

    --key is the service's private key, whose public half the group was created with under the name `precede`. It
    alone lets newcomers into a closed group. A member whose key was lost or stolen gets the new one with a larger
    epoch, so what is said with the old key no longer counts, but for gaps that it had left open.

    Example:

      precede groups admit travel chen CHENS-PUBLIC-KEY --key service.key
    """
    check_name("MEMBER", member)
    from precede.udfs.membership.keyring import SERVICE

    with _opened(group, SERVICE, wait, load_settings(config, bootstrap=bootstrap, key=key)) as manager:
        answer = manager.admit(group, member, key=public_key)
        _tell(f"{member} is in {group} with epoch {answer.epoch} and the key given", answer, wait)


@groups.command()
def leave(
    group: Group,
    name: Name,
    last: Annotated[
        int | None, typer.Option(min=0, metavar="SEQ", help="The last seq it used. Default: as the state file has it.")
    ] = None,
    wait: Wait = 30.0,
    state: State = None,
    key: Key = None,
    bootstrap: Bootstrap = None,
    config: Config = None,
) -> None:
    """Be a member of a group no longer.

    What was sent up to now still counts, even where it arrives later; nothing after it does. NAME may join again, with
    a larger epoch, as often as it likes.

    Example:

      precede groups leave travel chen
    """
    with _opened(group, name, wait, load_settings(config, bootstrap=bootstrap, key=key, state=state)) as manager:
        answer = manager.leave(group, last=last)
        _tell(f"{name} has left {group}", answer, wait)


@groups.command()
def evict(
    group: Group,
    name: Name,
    member: Annotated[str, typer.Argument(metavar="MEMBER", help="Who is put out.")],
    cut: Annotated[int, typer.Option(min=0, metavar="SEQ", help="The last of its seqs that still counts.")],
    wait: Wait = 30.0,
    state: State = None,
    key: Key = None,
    bootstrap: Bootstrap = None,
    config: Config = None,
) -> None:
    """Put somebody else out of a group: who crashed, and holds the others back.

    `precede held` names who is waited for.

    Example:

      precede groups evict travel ann dara --cut 12
    """
    with _opened(group, name, wait, load_settings(config, bootstrap=bootstrap, key=key, state=state)) as manager:
        answer = manager.evict(group, member, cut=cut)
        _tell(f"{member} is out of {group}, after its seq {cut}", answer, wait)


@groups.command()
def abandon(
    group: Group,
    name: Name,
    message: Annotated[str, typer.Argument(metavar="ID", help="A missing message, as `precede held --gaps` names it.")],
    last: Annotated[
        int | None, typer.Option(min=1, metavar="SEQ", help="Of a run of missing messages, the last seq. Default: one.")
    ] = None,
    wait: Wait = 30.0,
    state: State = None,
    key: Key = None,
    bootstrap: Bootstrap = None,
    config: Config = None,
) -> None:
    """Give up on messages that will never come, so that what waits for them goes on.

    The job does this by itself once `give_up_ms` is over, unless the group or its settings say to hold for ever. A
    stand-in takes the place of each message, and what comes of them after all is refused as late. Where each sender's
    order is kept, a stand-in waits its turn, too.

    In a group with keys others' messages are given up by its service: NAME is `precede` then, and --key its key.

    Example:

      precede groups abandon travel ann dara:13 --last 15
    """
    id_ = parse_id(message, "the message")
    if last is not None and last < id_[2]:
        raise WrongUse(f"--last {last} is below the seq of {message}: name the first missing message, then the last.")
    with _opened(group, name, wait, load_settings(config, bootstrap=bootstrap, key=key, state=state)) as manager:
        answer = manager.abandon(group, id_, last=last)
        upto = "" if last is None or last == id_[2] else f" to {last}"
        _tell(f"{group} has given up on {id_text(id_)}{upto}", answer, wait)


@contextmanager
def _opened(group: str, name: str, wait: float, settings: "Settings") -> "Iterator[Groups]":
    check_name("GROUP", group)
    check_name("NAME", name)
    from precede.groups.manager import Groups

    with Groups(
        name,
        bootstrap=settings.bootstrap,
        raw_topic=settings.raw_topic,
        ordered_topic=settings.ordered_topic,
        dead_letter_topic=settings.dead_letter_topic,
        state=state_file(settings),
        key=None if settings.key is None else Path(settings.key),
        answer_s=wait,
        partitioner=settings.partitioner,
    ) as manager:
        yield manager


def _tell(what: str, answer: "Answer", wait: float) -> None:
    if answer.position is not None:
        typer.echo(f"{plain(what)} (position {answer.position}).")
    elif not answer.written:
        typer.echo(f"{plain(what)} already.")
    else:
        waited = f" within {wait:g} s: does `precede run` run?" if wait else "; nobody waited for the job's answer."
        say(f"The log has it, but the job has not ordered it{waited}")


def _parts(text: str, mark: str, flag: str) -> tuple[str, str]:
    """The two things that one value of a flag names."""
    one, found, other = text.partition(mark)
    if not found or not one.strip() or not other.strip():
        raise WrongUse(f"{flag} {text}: write two things with a {mark!r} between them.")
    return one.strip(), other.strip()


def _write_lines(listings: "list[Listing]") -> None:
    import msgspec

    for listing in listings:
        fields = {
            "group": listing.group,
            "order": listing.order,
            "created": listing.created,
            "closed": listing.closed,
            "members": listing.members,
            "options": listing.options,
            "position": listing.position,
        }
        sys.stdout.buffer.write(msgspec.json.encode(fields) + b"\n")
    sys.stdout.buffer.flush()


def _print_table(listings: "list[Listing]") -> None:
    from rich.console import Console

    Console().print(_table(listings))


def _table(listings: "list[Listing]") -> "Table":
    from rich.table import Table

    table = Table("group", "order", "who may speak", "members", "position")
    for listing in listings:
        named = [name if epoch == 0 else f"{name} (epoch {epoch})" for name, epoch in listing.members.items()]
        more = f" and {len(named) - MEMBERS_SHOWN_MAX} more" if len(named) > MEMBERS_SHOWN_MAX else ""
        table.add_row(
            safe_text(listing.group),
            safe_text(listing.order),
            "its members" if listing.closed else "everybody",
            safe_text(", ".join(named[:MEMBERS_SHOWN_MAX]) + more),
            str(listing.position) if listing.position else "",
        )
    return table
