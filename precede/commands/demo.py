"""`precede demo`: broker, stream and a lively group on this machine, with a view of what is held back and why."""

import signal
from typing import Annotated

import typer


def demo(
    seconds: Annotated[
        float, typer.Option(min=1, metavar="N", help="How long the group talks; then what is on its way still arrives.")
    ] = 60,
    seed: Annotated[int, typer.Option(help="Another seed is another day on the network.")] = 7,
) -> None:
    """See it all work: a Kafka broker, the streaming job, and a group whose messages arrive late, twice and out of
    order.

    The first start fetches the jars of Kafka and Spark. Everything it writes stays in a folder that the summary
    names, with commands to look at it. Ctrl-C ends it early, with the same summary.

    Example:

      precede demo --seconds 30
    """
    from precede.ingest.extras import need

    need("spark", "precede demo")
    from precede.demo.stage import perform

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # SIGTERM ends it as Ctrl-C does
    perform(seconds, seed)
