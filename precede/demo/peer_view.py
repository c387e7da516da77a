"""How the demo of peers is shown: a live view in a terminal, plain lines elsewhere."""

from typing import Protocol, Self

from rich.console import Console, Group
from rich.panel import Panel
from rich.table import Table

from precede.demo.peer_watch import PeerWatch
from precede.demo.screen import Lines, Picture
from precede.reading.delivery import Delivery
from precede.terminal_text import plain, safe_text

LINES_MIN = 8


class PeersView(Protocol):
    """What both kinds of view can do."""

    def __enter__(self) -> Self: ...
    def __exit__(self, *_: object) -> None: ...

    def show(self, state: str) -> None:
        """Refresh. `state` says in a few words what happens."""


def open_view(console: Console, watch: PeerWatch) -> PeersView:
    return LiveView(console, watch) if console.is_terminal else PlainView(console, watch)


class PlainView(Lines):
    """Prints a line for each message of the log, with how many peers have it by then."""

    def __init__(self, console: Console, watch: PeerWatch) -> None:
        super().__init__(console)
        self._watch = watch
        self._printed = 0

    def show(self, state: str) -> None:
        self._print_state(state)
        for one in self._watch.log[self._printed :]:
            have = sum((one.sender, one.epoch, one.seq) in peer.delivered for peer in self._watch.peers.values())
            self._print_line(f"log {one.position:<4} at {have} peers  {_told(one)}")
        self._printed = len(self._watch.log)


class LiveView(Picture):
    """Two panels: the peers, and the end of the log."""

    def __init__(self, console: Console, watch: PeerWatch) -> None:
        super().__init__(console)
        self._watch = watch

    def show(self, state: str) -> None:
        self._draw(lambda: self._picture(state))

    def _picture(self, state: str) -> Group:
        watch = self._watch
        lines = max(LINES_MIN, self._console.height - len(watch.peers) - 9)
        agreed = f"{watch.agreed} messages are in the log and at all {len(watch.peers)} peers"
        return Group(
            Panel(self._peers(), title="peers, without a log between them", border_style="green"),
            Panel(self._log(lines), title="what the log made of it", border_style="blue"),
            safe_text(f"{state}; {agreed}"),
        )

    def _peers(self) -> Table:
        table = Table.grid(expand=True, padding=(0, 2))
        for width in (8, 12, 16, 12):
            table.add_column(width=width, no_wrap=True)
        table.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
        for peer in self._watch.peers.values():
            last = next(reversed(peer.delivered.items()), None)
            text = "" if last is None else f"{last[0][0]}: {last[1]}"
            count = f"{len(peer.delivered)} delivered"
            table.add_row(peer.name, peer.segment, count, f"{peer.held} waited", safe_text(plain(text)))
        return table

    def _log(self, lines: int) -> Table:
        table = Table.grid(expand=True, padding=(0, 2))
        table.add_column(width=6, justify="right")
        table.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
        shown = self._watch.log[-lines:]
        for one in shown:
            table.add_row(str(one.position), safe_text(_told(one)))
        for _ in range(lines - len(shown)):
            table.add_row()
        return table


def _told(delivery: Delivery) -> str:
    return f"{delivery.sender}: {plain(str(delivery.data))}"
