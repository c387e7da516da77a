"""`precede broker`: the embedded Kafka broker alone."""

import signal
from pathlib import Path
from typing import Annotated

import typer

from precede.command_options import say


def broker(
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="The port to listen on. Default: a free port.")
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Keep the topics here. Default: they are deleted with the broker."),
    ] = None,
) -> None:
    """Run a real Kafka broker on this machine until Ctrl-C.

    Its address is printed to standard output as soon as it answers.

    Example:

      precede broker --port 9092 --data kafka/
    """
    from precede.ingest.extras import need
    from precede.local.embedded_broker import Broker
    from precede.udfs.errors import Refused

    need("broker", "precede broker")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # SIGTERM stops it as Ctrl-C does
    try:
        with Broker(port, data, say=lambda sentence: say(f"{sentence} ...")) as running:
            typer.echo(running.bootstrap)
            say(f"Kafka answers at {running.bootstrap}; Ctrl-C stops it.")
            status = running.wait()
    except KeyboardInterrupt:
        say("Stopped.")
    else:
        raise Refused(f"The broker stopped by itself, with status {status}.")
