"""`precede groups`: lists the groups; creates, joins and leaves them, and abandons missing messages."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from precede.command_options import (
    Bootstrap,
    Config,
    Key,
    State,
    WrongUse,
    check_name,
    done_when_the_reader_leaves,
    load_settings,
    parse_id,
    say,
    state_file,
)
from precede.terminal_text import plain
from precede.udfs.records.identifiers import as_description, id_text

if TYPE_CHECKING:
    from precede.groups.manager import Groups, Outcome
    from precede.inspect.holding import Holding
    from precede.streaming.settings import Settings
    from precede.udfs.peers.catalogue import Listing

TopBy = Literal["held", "wait", "bytes"]

Group = Annotated[str, typer.Argument(metavar="GROUP", help="The group.")]
Name = Annotated[str, typer.Argument(metavar="NAME", help="The member that does it, the SENDER of `precede send`.")]
Wait = Annotated[
    float, typer.Option(min=0, metavar="N", help="How many seconds to wait for the job's answer; 0: do not wait.")
]

groups = typer.Typer(invoke_without_command=True, no_args_is_help=False)


@groups.callback()
def list_groups(
    context: typer.Context,
    delta: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Read the job's Delta tables rather than its topics; needs no Kafka."),
    ] = None,
    top: Annotated[
        TopBy | None,
        typer.Option(help="Show the groups that hold most messages, wait longest, or have most state, instead."),
    ] = None,
    count: Annotated[int, typer.Option(min=1, metavar="N", help="With --top: how many groups.")] = 20,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object per line, with all options and members.")
    ] = False,
    bootstrap: Bootstrap = None,
    config: Config = None,
) -> None:
    """List the groups, with their orders and members. The commands below create, join and leave groups, change keys,
    and abandon missing messages.

    A group without a create record has the default order and is open to every sender. A group that was created may be
    closed: then messages of senders that are not members are held until they join.

    Examples:

      precede groups

      precede groups --top wait           which groups have waited longest, and how much they hold

      precede groups --delta delta/ --json

      precede groups create travel ann --order causal --closed --member bob

      precede groups join travel chen

      precede groups leave travel chen
    """
    if context.invoked_subcommand is not None:
        _refuse_options_before(context)
        return
    if top is not None and delta is not None:
        raise WrongUse("--top reads the state topic and --delta the tables: leave out one of the two.")
    settings = load_settings(config, bootstrap=bootstrap)
    from precede.groups import tables

    with done_when_the_reader_leaves():
        if top is not None:
            holdings = _top(settings, top, count)
            tables.show_top(holdings, as_json=as_json)
            if not holdings and not as_json:
                say("No group has any state yet." if top == "bytes" else "Nothing is held.")
            return
        listings = _listings(settings, delta)
        tables.show_listings(listings, as_json=as_json)
        if not listings and not as_json:
            say("There are no groups yet.")


def _top(settings: "Settings", by: "TopBy", count: int) -> "list[Holding]":
    from precede.command_options import caught_up
    from precede.inspect import holding

    return holding.top(caught_up(settings), by, count)


def _listings(settings: "Settings", delta: str | None) -> "list[Listing]":
    from precede.command_options import caught_up
    from precede.groups.manager import CatalogueReader, catalogue_of_delta
    from precede.inspect import holding
    from precede.inspect.knowledge import NoStateError
    from precede.streaming.places import place

    if delta is not None:
        return catalogue_of_delta(place.at(delta), settings.storage_options).sorted()
    try:
        return holding.listings(caught_up(settings))
    except NoStateError:  # no job has written it yet: what others wrote there is all
        reader = CatalogueReader(settings.bootstrap, settings.ordered_topic)
        reader.read_on()
        reader.close()
    if reader.cut_off:
        named = ", ".join(sorted(reader.cut_off)[:3])
        say(f"The topic no longer has the beginning of {named}: members may be missing here; --delta reads all of it.")
    return reader.catalogue.sorted()


def _refuse_options_before(context: typer.Context) -> None:
    """Otherwise these options would be ignored silently, and a group changed on another broker than the one named."""
    command = context.invoked_subcommand
    for option in context.command.params:
        source = context.get_parameter_source(str(option.name))
        if source is not None and source.name == "COMMANDLINE":  # an empty value counts, too
            flag = option.opts[0]
            raise WrongUse(
                f"{flag} stands before {command}, which would ignore it: see precede groups {command} --help."
            )


@groups.command()
def create(
    group: Group,
    name: Name,
    order: Annotated[str | None, typer.Option(metavar="ORDER", help="Its order. Default: the job's.")] = None,
    member: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="One more first member; may be repeated.")
    ] = None,
    description: Annotated[
        str | None, typer.Option(metavar="TEXT", help="What it is about, in at most 1,000 characters.")
    ] = None,
    closed: Annotated[
        bool, typer.Option("--closed", help="Only members are delivered; messages of others are held until they join.")
    ] = False,
    loss: Annotated[
        str | None, typer.Option(metavar="hold|abandon", help="What happens to messages that never come.")
    ] = None,
    give_up_ms: Annotated[
        int | None, typer.Option(metavar="MS", help="How long to wait for a missing message; 0: for ever.")
    ] = None,
    window: Annotated[
        int | None, typer.Option(metavar="N", help="How far a seq may be ahead of the highest one seen.")
    ] = None,
    digests: Annotated[
        int | None,
        typer.Option(metavar="N", help="How many last messages are compared with what comes under the same id."),
    ] = None,
    accuracy_ms: Annotated[
        int | None, typer.Option(metavar="MS", help="two_clock: by how much a member's clock may be off.")
    ] = None,
    delay_min_ms: Annotated[int | None, typer.Option(metavar="MS", help="two_clock: no message is faster.")] = None,
    delay_max_ms: Annotated[int | None, typer.Option(metavar="MS", help="two_clock: no message is slower.")] = None,
    conflict: Annotated[
        list[str] | None,
        typer.Option(metavar="OP,OP", help="object: two operations that conflict; may be repeated."),
    ] = None,
    public_key: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=KEY", help="A member's public key: from then on nothing unsigned is accepted (precede key)."
        ),
    ] = None,
    wait: Wait = 30.0,
    state: State = None,
    key: Key = None,
    bootstrap: Bootstrap = None,
    config: Config = None,
) -> None:
    """Create a group, with NAME and every --member in it.

    This only counts if the log has nothing of the group yet. In `lamport` and `two_clock` the group is always closed,
    because there each message waits for every member.

    Examples:

      precede groups create travel ann --description "Who comes along to the lake?"

      precede groups create travel ann --order lamport --member bob --member chen

      precede groups create accounts ann --order object --conflict deposit,audit --conflict withdraw,audit
    """
    options: dict[str, Any] = {
        "description": description,
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
    try:
        as_description(description)
    except ValueError as error:
        raise WrongUse(f"--description: {error}.") from error
    members = list(dict.fromkeys([name, *(member or [])]))
    with _opened(group, name, wait, load_settings(config, bootstrap=bootstrap, key=key, state=state)) as manager:
        answer = manager.create(group, order=order, members=members, **options)
        _tell(f"{group} is created, with the members {', '.join(members)}", answer, wait)


@groups.command()
def join(
    group: Group,
    name: Name,
    new_key: Annotated[
        str | None,
        typer.Option(metavar="KEY", help="The public key under which NAME sends from now on; --key signs for it."),
    ] = None,
    wait: Wait = 30.0,
    state: State = None,
    key: Key = None,
    bootstrap: Bootstrap = None,
    config: Config = None,
) -> None:
    """Become a member of a group, or continue in it with another key.

    The epoch is one that NAME never used before in this group. A program that still sends under an older epoch is no
    longer delivered; `precede send` continues with the new one.

    In a group with keys --key signs. To change the key, sign with the old one and name the public half of the new one;
    from then on the new one signs. If the key is lost, ask the group's service: precede groups admit.

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
    member: Annotated[str, typer.Argument(metavar="MEMBER", help="The member that is admitted, or gets a new key.")],
    public_key: Annotated[str, typer.Argument(metavar="KEY", help="Its public key, as `precede key` prints it.")],
    wait: Wait = 30.0,
    key: Key = None,
    bootstrap: Bootstrap = None,
    config: Config = None,
) -> None:
    """As the service of a group with keys: admit a newcomer, or give a member a new key.

    --key is the service's private key. The group was created with its public half, under the name `precede`. Only the
    service admits newcomers to a closed group. A member whose key was lost or stolen gets the new one with a larger
    epoch, so what is signed with the old key no longer counts, except to fill gaps that were open before.

    Example:

      precede groups admit travel chen CHENS-PUBLIC-KEY --key service.key
    """
    check_name("MEMBER", member)
    from precede.udfs.engine.signers import SERVICE

    with _opened(group, SERVICE, wait, load_settings(config, bootstrap=bootstrap, key=key)) as manager:
        answer = manager.admit(group, member, key=public_key)
        _tell(f"{member} is in {group} with epoch {answer.epoch} and the given key", answer, wait)


@groups.command()
def leave(
    group: Group,
    name: Name,
    last: Annotated[
        int | None,
        typer.Option(min=0, metavar="SEQ", help="The last seq that it used. Default: as the state file has it."),
    ] = None,
    wait: Wait = 30.0,
    state: State = None,
    key: Key = None,
    bootstrap: Bootstrap = None,
    config: Config = None,
) -> None:
    """End the membership of NAME in a group.

    What was sent up to now still counts, even if it arrives later; what is sent later does not. NAME may join again at
    any time, with a larger epoch.

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
    member: Annotated[str, typer.Argument(metavar="MEMBER", help="The member that is put out.")],
    cut: Annotated[int, typer.Option(min=0, metavar="SEQ", help="The last of its seqs that still counts.")],
    wait: Wait = 30.0,
    state: State = None,
    key: Key = None,
    bootstrap: Bootstrap = None,
    config: Config = None,
) -> None:
    """Put another member out of a group, for example one that crashed and holds the others back.

    `precede held` names the members that messages wait for.

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
        int | None,
        typer.Option(min=1, metavar="SEQ", help="The last seq of a run of missing messages. Default: only ID."),
    ] = None,
    wait: Wait = 30.0,
    state: State = None,
    key: Key = None,
    bootstrap: Bootstrap = None,
    config: Config = None,
) -> None:
    """Abandon messages that will never come, so that what waits for them is released.

    The job does this by itself after `give_up_ms`, unless the group or its settings say to hold for ever. A stand-in
    takes the place of each message, and if the message still comes, it is refused as late. In orders that keep each
    sender's order, a stand-in also waits for its turn.

    In a group with keys only its service abandons messages of others: then NAME is `precede`, and --key its key.

    Example:

      precede groups abandon travel ann dara:13 --last 15
    """
    id_ = parse_id(message, "the message")
    if last is not None and last < id_[2]:
        raise WrongUse(
            f"--last {last} is below the seq of {message}: name the first missing message, then the last one."
        )
    with _opened(group, name, wait, load_settings(config, bootstrap=bootstrap, key=key, state=state)) as manager:
        answer = manager.abandon(group, id_, last=last)
        upto = "" if last is None or last == id_[2] else f" to {last}"
        _tell(f"{group} has abandoned {id_text(id_)}{upto}", answer, wait)


@contextmanager
def _opened(group: str, name: str, wait: float, settings: "Settings") -> "Iterator[Groups]":
    check_name("GROUP", group)
    check_name("NAME", name)
    from precede.groups.manager import Groups

    with Groups(
        name,
        config=settings,
        state=state_file(settings),
        answer_s=wait,
    ) as manager:
        yield manager


def _tell(what: str, answer: "Outcome", wait: float) -> None:
    if answer.position is not None:
        typer.echo(f"{plain(what)} (position {answer.position}).")
    elif not answer.written:
        typer.echo(f"{plain(what)} already.")
    else:
        waited = f" within {wait:g} s: is `precede run` running?" if wait else "; --wait 0 does not wait for that."
        say(f"The log has the record, but the job has not ordered it{waited}")


def _parts(text: str, mark: str, flag: str) -> tuple[str, str]:
    """The two parts of a flag's value."""
    one, found, other = text.partition(mark)
    if not found or not one.strip() or not other.strip():
        raise WrongUse(f"{flag} {text}: write two values with a {mark!r} between them.")
    return one.strip(), other.strip()
