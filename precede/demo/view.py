"""How the demo is shown: a live view in a terminal, plain lines elsewhere."""

import time
from collections.abc import Callable, Iterator
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from precede.demo.conversation import MEMBERS
from precede.demo.watch import Arrival, DemoWatch
from precede.reading.delivery import Delivery
from precede.terminal_text import plain, safe_text
from precede.udfs.engine.held import Held
from precede.udfs.records.messages import Id

COLOURS = dict(zip(MEMBERS, ("cyan", "yellow", "magenta", "green", "bright_blue"), strict=True))
FRESH_S = 2.0  # how long a new delivery is highlighted
LINES_MIN = 18
FRAMES_PER_S = 8


# ── what both demos share ─────────────────────────────────────────────────────────────────────────────────────────────


class PrintedLines:
    """Prints lines, and what the demo does whenever that changes."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._state = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def _print_state(self, state: str) -> None:
        if state != self._state:
            self._console.print(f"{state} ...", highlight=False, markup=False)
        self._state = state

    def _print_line(self, text: str) -> None:
        self._console.print(safe_text(text), soft_wrap=True)


class DrawnPicture:
    """Draws a picture in the terminal, over and over."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, auto_refresh=False, vertical_overflow="crop")
        self._drawn_s = 0.0

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def _draw(self, picture: Callable[[], Group]) -> None:
        """Draw this, unless that was done a moment ago."""
        now_s = time.monotonic()
        if now_s - self._drawn_s >= 1 / FRAMES_PER_S:
            self._drawn_s = now_s
            self._live.update(picture(), refresh=True)


# ── the demo of the job ───────────────────────────────────────────────────────────────────────────────────────────────


def open_view(console: Console, watch: DemoWatch) -> "PlainView | LiveView":
    return LiveView(console, watch) if console.is_terminal else PlainView(console, watch)


def short(id_: Id) -> str:
    return f"{id_[0]}:{id_[2]}"


class PlainView(PrintedLines):
    """Prints one line for each event."""

    def __init__(self, console: Console, watch: DemoWatch) -> None:
        super().__init__(console)
        self._watch = watch

    def arrived(self, arrival: Arrival) -> None:
        """A record arrived in the raw topic."""
        if arrival.fate == "copy":
            self._line("arrived", arrival.id, "again: an exact copy, dropped")
        elif arrival.fate == "held":
            missing = [held.missing for held in self._watch.held() if (held.sender, held.epoch, held.seq) == arrival.id]
            self._line("arrived", arrival.id, f"held, waits for {', '.join(map(short, missing[0]))}: {arrival.text}")
        else:
            freed = f" (releases {arrival.freed})" if arrival.freed else ""
            self._line("arrived", arrival.id, f"{arrival.text}{freed}")

    def delivered(self, delivery: Delivery) -> None:
        """The stream delivered a record."""
        if delivery.kind == "message":
            waited = f" (held {delivery.held_ms / 1000:.1f} s)" if delivery.released_offset != delivery.offset else ""
            self._line(f"delivered {delivery.position}", _id_of(delivery), f"{delivery.data}{waited}")

    def show(self, state: str, seconds: float) -> None:  # noqa: ARG002 (a line is written once, without a counter)
        """Refresh. `state` says in a few words what the demo has been doing for `seconds`."""
        self._print_state(state)

    def _line(self, event: str, id_: Id, text: str) -> None:
        self._print_line(f"{event:<14}{short(id_):<9}{text}")


class LiveView(DrawnPicture):
    """Three panels: arrived messages, held messages and their missing ids, and delivered messages as a tree."""

    def __init__(self, console: Console, watch: DemoWatch) -> None:
        super().__init__(console)
        self._watch = watch
        self._delivered_s: dict[Id, float] = {}

    def arrived(self, arrival: Arrival) -> None:
        pass  # the watch has what the view draws

    def delivered(self, delivery: Delivery) -> None:
        self._delivered_s[_id_of(delivery)] = time.monotonic()

    def show(self, state: str, seconds: float) -> None:
        self._draw(lambda: self._picture(f"{state}, {seconds:.0f} s"))

    def _picture(self, state: str) -> Group:
        lines = max(LINES_MIN, self._console.height - 4)
        held = self._watch.held()
        held_lines = max(4, min(len(held), lines // 2 - 2))
        left = Group(
            Panel(self._arrivals(lines - held_lines - 4), title="arrived in the log", border_style="blue"),
            Panel(
                _held_table(held[:held_lines], self._watch, held_lines),
                title=f"held back: {len(held)}",
                border_style="red",
            ),
        )
        right = Panel(
            self._trees(lines - 2),
            title="delivered, under what it answers (+ time held)",
            border_style="green",
            height=lines,
        )
        body = Table.grid(expand=True, padding=(0, 1))
        body.add_column(ratio=5)
        body.add_column(ratio=6)
        body.add_row(left, right)
        return Group(self._headline(state), body)

    def _headline(self, state: str) -> Text:
        watch = self._watch
        return Text.assemble(
            ("precede ", "bold"),
            f"{state}   arrived {len(watch.arrivals)}   delivered {len(watch.deliveries)}   "
            f"had to wait {len(watch.waited)}   copies dropped {watch.holdback.duplicates}",
            no_wrap=True,
            overflow="ellipsis",
        )

    def _arrivals(self, lines: int) -> Table:
        table = _rows(8, 8, None)
        recent = self._watch.arrivals[-lines:]
        for arrival in recent:
            fate = {"copy": ("a copy", "dim"), "held": ("held", "red"), "delivered": ("", "")}[arrival.fate]
            note = Text(*fate) if not arrival.freed else Text(f"frees {arrival.freed}", "green")
            table.add_row(_name(arrival.id), note, safe_text(arrival.text, "dim" if arrival.fate == "copy" else ""))
        for _ in range(lines - len(recent)):
            table.add_row()
        return table

    def _trees(self, lines: int) -> Group:
        """The most recent threads that fit, oldest first."""
        chosen: list[list[Delivery]] = []
        room = lines
        for thread in self._threads():
            if len(thread) > room:
                break
            chosen.insert(0, thread)
            room -= len(thread)
        return Group(*(self._tree(thread) for thread in chosen))

    def _threads(self) -> Iterator[list[Delivery]]:
        """Delivered messages by thread, the most recent thread first."""
        root_of: dict[Id, Id] = {}
        threads: dict[Id, list[Delivery]] = {}
        for delivery in self._watch.deliveries:
            if delivery.kind != "message":
                continue
            id_ = _id_of(delivery)
            root = root_of[id_] = root_of[delivery.after[0]] if delivery.after else id_
            thread = threads.pop(root, [])
            thread.append(delivery)
            threads[root] = thread  # moved to the end: a dict keeps insertion order
        return reversed(threads.values())

    def _tree(self, thread: list[Delivery]) -> Tree:
        nodes: dict[Id, Tree] = {}
        root = Tree(self._label(thread[0]), guide_style="dim")
        nodes[_id_of(thread[0])] = root
        for delivery in thread[1:]:
            nodes[_id_of(delivery)] = nodes[delivery.after[0]].add(self._label(delivery))
        return root

    def _label(self, delivery: Delivery) -> Text:
        id_ = _id_of(delivery)
        fresh = time.monotonic() - self._delivered_s.get(id_, 0.0) < FRESH_S
        waited = f" +{delivery.held_ms / 1000:.1f} s" if delivery.released_offset != delivery.offset else ""
        return Text.assemble(
            (f"{delivery.position} ", "dim"),
            _name(id_),
            (waited, "red"),
            (f" {plain(str(delivery.data))}", "bold" if fresh else ""),
            no_wrap=True,
            overflow="ellipsis",
        )


def _held_table(held: list[Held], watch: DemoWatch, lines: int) -> Table:
    table = _rows(8, 21, None)
    now_ms = time.time() * 1000
    for one in held:
        id_ = (one.sender, one.epoch, one.seq)
        waits = Text.assemble("waits ", _name(one.missing[0]), f" {max(0.0, now_ms - one.since_ms) / 1000:.1f} s")
        table.add_row(_name(id_), waits, safe_text(watch.texts.get(id_, "")))
    for _ in range(lines - len(held)):
        table.add_row()
    return table


def _rows(*widths: int | None) -> Table:
    table = Table.grid(expand=True, padding=(0, 1))
    for width in widths:
        table.add_column(width=width, no_wrap=True, overflow="ellipsis", ratio=1 if width is None else None)
    return table


def _name(id_: Id) -> Text:
    return safe_text(short(id_), COLOURS.get(id_[0], ""))


def _id_of(delivery: Delivery) -> Id:
    return delivery.sender or "", delivery.epoch, delivery.seq or 0
