"""`precede peer`: takes part in a group on a segment, without Kafka."""

import gc
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from precede.command_options import Config, Key, WrongUse, check_name, done_when_the_reader_leaves, load_settings, say


def peer(
    group: Annotated[str, typer.Argument(metavar="GROUP", help="The group to create or join.")],
    name: Annotated[str, typer.Argument(metavar="NAME", help="The own name in it.")],
    segment: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Where the peers speak, as udp://239.255.70.80:17080%eth0. Default: PRECEDE_SEGMENT, else that "
            "address on the interface of its route.",
        ),
    ] = None,
    order: Annotated[
        str | None,
        typer.Option(metavar="ORDER", help="The order of a group that is created, see docs/orders/README.md: s_b."),
    ] = None,
    closed: Annotated[
        bool, typer.Option("--closed", help="Only members may speak in a group that is created.")
    ] = False,
    leave: Annotated[
        bool, typer.Option("--leave", help="At the end of input, leave once everyone has what was said.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help='Lines of {"data", "after"} in, lines of {"event", ...} out.')
    ] = False,
    key: Key = None,
    segment_key: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The key that all peers of the segment have. Default: PRECEDE_SEGMENT_KEY."),
    ] = None,
    state: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Where this peer keeps its state. Default: a file in your state folder."),
    ] = None,
    config: Config = None,
) -> None:
    """Take part in a group on a network segment, without Kafka: read messages from standard input, show what happens.

    The group is joined if a peer of the segment is in it, and created otherwise. A line of input is a message, and
    `> ID text` answers one.

    Examples:

      precede peer travel ann

      precede peer travel bob --segment udp://239.255.70.80:17080%eth0

      precede peer travel log --json < messages.jsonl --leave

    It ends with Ctrl-C, and goes on where it was when it is started again; with --leave it leaves the group at the end
    of input. docs/how-to/segments.md says what networks must do, and what peers promise.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # SIGTERM stops it as Ctrl-C does
    check_name("GROUP", group)
    check_name("NAME", name)
    settings = load_settings(config, reaches_kafka=False, segment=segment, segment_key=segment_key, key=key)
    from precede.peer.conversation import (
        EventLines,
        JsonLines,
        PeerConversation,
        TextLines,
        read_json,
        read_text,
        refused_sentence,
    )
    from precede.peer.peer import Peer
    from precede.udfs.orders import ORDERS

    if order is not None and order not in ORDERS:
        raise WrongUse(f"There is no order {order}: choose one of {', '.join(ORDERS)}.")

    def write(text: bytes) -> None:
        sys.stdout.buffer.write(text)
        sys.stdout.buffer.flush()

    with (
        done_when_the_reader_leaves(),
        suppress(KeyboardInterrupt),
        Peer(group, name, config=settings, order=order, closed=closed, state=state) as own,
    ):
        gc.freeze()  # what was loaded stays, so no collection need look at it
        lines: EventLines = JsonLines() if as_json else TextLines(own.order, name)
        talk = PeerConversation(own, lines, read_json if as_json else read_text, write)
        if sys.stdin is None:
            talk.said_all.set()
        else:
            talk.listen_to(sys.stdin.fileno())
        try:
            talk.run(leave=leave)
        finally:
            refused = refused_sentence(own.counts())
            if refused:
                say(refused)
