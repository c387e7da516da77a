"""Peers and segments at one table: on a loopback segment of their own, each with a state of its own."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import precede
from tests.door.segment_links import loopback_url

SECONDS = 10.0


class Table:
    """Peers at one table, each with a state of its own."""

    def __init__(self, opened: ExitStack, folder: Path) -> None:
        self.url = loopback_url()
        self.folder = folder
        self._opened = opened

    def peer(self, name: str, group: str = "travel", **more: Any) -> precede.Peer:
        more.setdefault("state", self.folder / name)
        more.setdefault("patience_s", 3)
        return self._opened.enter_context(precede.Peer(group, name, segment=self.url, **more))

    def segment(self, name: str, **more: Any) -> precede.Segment:
        more.setdefault("state", self.folder / name)
        return self._opened.enter_context(precede.Segment(self.url, name, **more))


def until(met: Callable[[], bool]) -> None:
    deadline = monotonic() + SECONDS
    while not met():
        assert monotonic() < deadline
        sleep(0.01)


def offered(segment: precede.Segment, group: str) -> None:
    until(lambda: group in [one.group for one in segment.discover(wait_s=0.05)])


def kill(peer: precede.Peer) -> None:
    """End it as kill -9 would: nothing more is sent or written."""
    process = peer._process
    process._runner.close()
    process._keeper._monitor.stop()
    process._keeper.close = lambda **_: None  # type: ignore[method-assign]
    process._opened.close()
