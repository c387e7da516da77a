"""This machine: what is installed, Java, jars, folders, keys, and the port of the metrics."""

import secrets
import select
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from precede.doctor.findings import Finding, note, ok, stop, tried
from precede.ingest.extras import need
from precede.ingest.segment.address import DEFAULT_URL, SegmentAddress, read_addresses
from precede.ingest.segment.link import read_segment_key
from precede.ingest.segment.sockets import SegmentSocket
from precede.ingest.service.running import host_and_port
from precede.ingest.signing import key_in
from precede.streaming.places import place
from precede.streaming.places.place import LocalPlace, Place, make_writable
from precede.streaming.settings import Settings
from precede.streaming.spark import jars
from precede.streaming.spark.jars import java
from precede.udfs.errors import PrecedeError, Refused

ECHO_S = 1.0


def check_machine(settings: Settings) -> Iterator[Finding]:
    """All that can be checked without Kafka."""
    if settings.runs_without_spark:
        yield ok("The engine is this process: neither Java nor Spark is needed.")
    else:
        yield from _spark(settings)
    yield from _folders(settings)
    yield from _keys(settings)
    yield from _metrics(settings)
    yield from _segments(settings)


def _spark(settings: Settings) -> Iterator[Finding]:
    yield from tried(lambda: need("spark", "precede run"), "The packages for Spark and Delta are installed.")
    try:
        yield ok(f"Java: {java()}.")
        for configuration in settings.jar_configurations:
            yield _jars(*jars.lacking(configuration, home=settings.jars_home))
    except PrecedeError as error:
        yield stop(str(error))


def _jars(folder: Path, missing: int) -> Finding:
    if missing:
        return note(f"{missing} jars are not in {folder} yet: the first start fetches them, which needs the network.")
    return ok(f"The jars are in {folder}.")


def _folders(settings: Settings) -> Iterator[Finding]:
    names = ["cache"] if settings.runs_without_spark else ["checkpoint"]
    if not settings.runs_without_spark and settings.only != "order":
        names.append("delta")
    for name in names:
        folder = place.at(getattr(settings, name))
        is_local = isinstance(folder, LocalPlace)
        yield from tried(
            lambda name=name, folder=folder: _try_to_write(settings, name, folder),  # type: ignore[misc]
            f"The {name} folder {folder} is writable{'' if is_local else ', and lets one of several create a file'}.",
        )
    if settings.gateway is not None:
        folder = LocalPlace(Path(settings.gateway).expanduser())
        yield from tried(lambda: make_writable("gateway", folder), f"The gateway folder {folder} is writable.")


def _try_to_write(settings: Settings, name: str, folder: Place) -> None:
    if not isinstance(folder, LocalPlace):
        from precede.streaming.spark import session

        session.reach_stores(settings)
    make_writable(name, folder)


def _keys(settings: Settings) -> Iterator[Finding]:
    if settings.service_key is None:
        yield note("There is no service_key: in groups with keys that name a service the job gives up on nothing.")
    else:
        yield from tried(lambda: key_in(settings.service_key), f"The service key is in {settings.service_key}.")
    if settings.key is not None:
        yield from tried(
            lambda: key_in(settings.key), f"The key that commands and members sign with is in {settings.key}."
        )
    segment_key = settings.segment_key
    if segment_key is not None:
        yield from tried(lambda: read_segment_key(segment_key), f"The key of the segments is in {segment_key}.")


def _metrics(settings: Settings) -> Iterator[Finding]:
    if settings.metrics is None:
        yield note("The setting metrics is not set: there is no /metrics, /ready and /live.")
        return
    host, port = host_and_port(settings.metrics)
    try:
        with socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET):
            yield ok(f"The job can listen at {settings.metrics}.")
    except OSError as error:
        yield stop(
            f"The setting metrics is {settings.metrics}, but nothing can listen there: {error.strerror}; if a job runs "
            "here already, that is why, else choose another port or address."
        )


def _segments(settings: Settings) -> Iterator[Finding]:
    """Where a segment was chosen: whether what is sent there comes back."""
    if settings.segment == DEFAULT_URL:
        return
    for address in read_addresses(settings.segment):
        yield from tried(lambda address=address: _try_segment(address), f"The segment {address} carries datagrams.")  # type: ignore[misc]


def _try_segment(address: SegmentAddress) -> None:
    """Send a datagram that means nothing to peers, and wait until it comes back."""
    mark = secrets.token_bytes(32)
    opened = SegmentSocket(address)
    try:
        opened.send(mark)
        deadline = time.monotonic() + ECHO_S
        while (left_s := deadline - time.monotonic()) > 0:
            select.select([opened], [], [], left_s)
            if opened.receive() == mark:
                return
    finally:
        opened.close()
    raise Refused(
        f"What is sent to the segment {address} does not come back: the network drops multicast, or a firewall does; "
        "let it through, or name another interface."
    )
