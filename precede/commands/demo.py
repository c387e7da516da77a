"""`precede demo`: broker, stream and a lively group on this machine, with a view of what is held back and why."""

import signal
from typing import Annotated

import typer

from precede.command_options import Engine


def demo(
    seconds: Annotated[
        float,
        typer.Option(
            min=1, metavar="N", help="How long the group talks; messages that are on their way then still arrive."
        ),
    ] = 60,
    seed: Annotated[int, typer.Option(help="Another seed gives other delays and losses.")] = 7,
    engine: Annotated[
        Engine, typer.Option(help="What orders: Spark, or one process, which starts in a second and writes no history.")
    ] = Engine.spark,
    peers: Annotated[
        bool,
        typer.Option(
            "--peers", help="Peers on two segments of loopback, gateways to the log, and one process that orders it."
        ),
    ] = False,
) -> None:
    """See it all work: a Kafka broker, the streaming job, and a group whose messages arrive late, twice and out of
    order.

    The first run fetches the jars of Kafka, and those of Spark where they are needed. Everything that is written stays
    in a folder that the summary names, with commands to look at it. Ctrl-C ends the demo early, with the same summary.

    Examples:

      precede demo --seconds 30

      precede demo --engine process

      precede demo --peers
    """
    from precede.ingest.extras import need

    if peers or engine is Engine.process:
        need("broker", "precede demo without Spark")
    else:
        need("spark", "precede demo")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # SIGTERM stops it as Ctrl-C does
    if peers:
        from precede.demo.peers import perform as perform_peers

        perform_peers(seconds, seed)
        return
    from precede.demo.stage import perform

    perform(seconds, seed, engine.value)
