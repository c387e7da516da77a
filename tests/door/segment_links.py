"""Segments on the loopback interface, for tests: each test has a port of its own."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from precede.ingest.segment.address import SegmentAddress, read_address
from precede.ingest.segment.link import Link, open_link
from precede.ingest.segment.runner import SegmentRunner
from precede.udfs.peers.events import Delivered, Event, Joined, Offered
from precede.udfs.records.messages import Id, Message

LOOPBACK = "lo"
GROUP = "G"


def free_port() -> int:
    """A UDP port that nobody uses."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.bind(("127.0.0.1", 0))
        found: int = one.getsockname()[1]
        return found


def loopback_url() -> str:
    """The address of a segment of one's own, of which no datagram leaves this machine."""
    return f"udp://239.255.70.80:{free_port()}%{LOOPBACK}"


class Told:
    """What one link was told, by kinds."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def of(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def joined(self) -> bool:
        return bool(self.of(Joined))

    @property
    def offered(self) -> list[str]:
        return [event.info.group for event in self.of(Offered)]

    @property
    def delivered(self) -> list[Id]:
        found = [one.record for one in self.of(Delivered)]
        return [(one.sender, one.epoch, one.seq) for one in found if isinstance(one, Message)]  # type: ignore[misc]


class Linked:
    """A runner with links by name, and what each was told."""

    def __init__(self, url: str) -> None:
        self.address: SegmentAddress = read_address(url)
        self.runner = SegmentRunner()
        self.links: dict[str, Link] = {}
        self.told: dict[str, Told] = {}

    def open(self, name: str, *, key: bytes | None = None, **more: Any) -> Link:
        told = self.told[name] = Told()
        link = self.links[name] = open_link(self.address, name, told.events.extend, key=key, **more)
        self.runner.add(link)
        return link

    def create(self, name: str, **options: Any) -> None:
        with self.runner.use(self.links[name]) as now_ms:
            self.links[name].segment.create(GROUP, options, now_ms)

    def join(self, name: str) -> None:
        assert self.runner.wait_until(lambda _now_ms: GROUP in self.told[name].offered, 5)
        with self.runner.use(self.links[name]) as now_ms:
            self.links[name].segment.join(GROUP, now_ms)
        assert self.runner.wait_until(lambda _now_ms: self.told[name].joined, 5)

    def say(self, name: str, data: bytes = b'"hello"', **more: Any) -> Id:
        with self.runner.use(self.links[name]) as now_ms:
            return self.links[name].segment.send(GROUP, data, now_ms=now_ms, **more)

    def until_delivered(self, name: str, id_: Id, timeout_s: float = 5.0) -> bool:
        return self.runner.wait_until(lambda _now_ms: id_ in self.told[name].delivered, timeout_s)


@contextmanager
def linked(url: str | None = None) -> Iterator[Linked]:
    """A runner on a segment of its own, ended with the block."""
    found = Linked(loopback_url() if url is None else url)
    try:
        yield found
    finally:
        found.runner.close()
