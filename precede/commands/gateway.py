"""`precede gateway`: carries between segments and the log."""

import signal
from pathlib import Path
from typing import Annotated

import typer

from precede.command_options import Bootstrap, Config, load_settings, say


def gateway(
    segment: Annotated[
        list[str] | None,
        typer.Option(
            metavar="URL",
            help="A segment, as udp://239.255.70.80:17080%eth0; may be given several times. Default: PRECEDE_SEGMENT.",
        ),
    ] = None,
    segment_key: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="The key that all peers of the segments have. Default: PRECEDE_SEGMENT_KEY, else none."
        ),
    ] = None,
    bootstrap: Bootstrap = None,
    state: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="What was heard and is not in the log yet; each gateway needs its own. Default: PRECEDE_GATEWAY, else "
            "your state folder.",
        ),
    ] = None,
    metrics: Annotated[
        str | None,
        typer.Option(metavar="PORT", help="Port, or host:port, of /metrics and /health. Default: PRECEDE_METRICS."),
    ] = None,
    config: Config = None,
) -> None:
    """Carry between network segments, whose peers hear each other directly, and the log.

    What peers say goes up byte for byte; what the log has of others goes down. Several gateways may serve one segment,
    with no agreement between them. While Kafka is away, what is heard is kept on disk. Ctrl-C publishes what it can,
    and stops; what is left goes up after the next start.

    Examples:

      precede gateway --segment udp://239.255.70.80:17080%eth0 --bootstrap localhost:9092

      precede gateway --segment udp://239.255.70.80:17080%eth0 --segment udp://239.255.70.81:17080%eth1
    """
    settings = load_settings(
        config,
        segment=",".join(segment) if segment else None,
        segment_key=segment_key,
        bootstrap=bootstrap,
        gateway=state,
        metrics=metrics,
    )
    from precede.gateway.run import Gateway
    from precede.ingest.service.running import Announcer
    from precede.udfs.errors import PrecedeError

    announcer = Announcer(say if settings.log_format == "text" else typer.echo, settings.log_format)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # until the gateway handles it
    try:
        Gateway(settings, announcer).run()
    except KeyboardInterrupt:
        return
    except PrecedeError as refusal:
        announcer.refused(refusal)
        raise
