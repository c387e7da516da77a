"""The demo of peers: two segments on loopback, a gateway on each, the job behind them, and a group that talks.

Each peer is a process that hears the others of its segment directly, and loses a part of what it hears. Nothing leaves
this machine.
"""

import json
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread
from typing import Any

from rich.console import Console, Group
from rich.panel import Panel
from rich.table import Table

from precede.demo.conversation import GROUP, MEMBERS, PAUSE_S, Script
from precede.demo.stage import child_environment, new_folder, progress_line, stage
from precede.demo.view import DrawnPicture, PrintedLines
from precede.local.child import Child
from precede.reading.delivery import Delivery
from precede.reading.following import Follower, follow
from precede.streaming.settings import Settings
from precede.terminal_text import plain, safe_text
from precede.udfs.errors import Refused
from precede.udfs.records.messages import Id

LOSS = 0.1
SEGMENTS = {"near": "239.255.70.81", "far": "239.255.70.82"}
START_S_MAX = 60.0
DRAIN_S_MAX = 60.0
HURRY_S_MAX = 10.0  # after Ctrl-C
STEP_S = 0.03
END_S_MAX = 10.0
LINES_MIN = 8


# ── what is watched ───────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass
class WatchedPeer:
    """One peer, by what its process tells."""

    name: str
    segment: str
    delivered: dict[Id, str] = field(default_factory=dict)
    """What was delivered, in its order, with its text."""
    held: int = 0
    """How often a message had to wait for another one long enough to be shown."""
    longest_ms: float = 0.0
    members: list[str] = field(default_factory=list)


@dataclass
class PeerWatch:
    """Everything seen so far."""

    peers: dict[str, WatchedPeer]
    answered: dict[Id, Id] = field(default_factory=dict)
    """Which message each one answers."""
    log: list[Delivery] = field(default_factory=list)
    """The messages of the ordered topic."""
    positions: list[int | None] = field(default_factory=list)
    """The positions of all its records."""

    def take(self, delivery: Delivery) -> None:
        """The log delivers a record."""
        self.positions.append(delivery.position)
        if delivery.kind == "message":
            self.log.append(delivery)

    @property
    def agreed(self) -> int:
        """How many messages all peers and the log have."""
        ids = {_id_of(one) for one in self.log}
        for peer in self.peers.values():
            ids &= peer.delivered.keys()
        return len(ids)

    @property
    def is_complete(self) -> bool:
        """Whether every peer has exactly what the log has."""
        ids = {_id_of(one) for one in self.log}
        return all(peer.delivered.keys() == ids for peer in self.peers.values())

    @property
    def is_contiguous(self) -> bool:
        return self.positions == list(range(1, len(self.positions) + 1))

    @property
    def is_lawful(self) -> bool:
        """Whether every answer comes after what it answers, at each peer and in the log."""
        orders = [[_id_of(one) for one in self.log], *(list(peer.delivered) for peer in self.peers.values())]
        places = [{id_: number for number, id_ in enumerate(order)} for order in orders]
        return all(
            place[question] < place[answer]
            for place in places
            for answer, question in self.answered.items()
            if answer in place and question in place
        )


def _id_of(delivery: Delivery) -> Id:
    return delivery.sender or "", delivery.epoch, delivery.seq or 0


# ── the peers, each a process ─────────────────────────────────────────────────────────────────────────────────────────


class PeerProcess:
    """Tells what it was told into a `WatchedPeer`; it ends with this process, because its input does."""

    def __init__(
        self, watched: WatchedPeer, group: str, url: str, loss: float, folder: Path, environment: Mapping[str, str]
    ) -> None:
        self.watched = watched
        self.ids: dict[str, Id] = {}
        """The ids of the own messages, by their text."""
        self.log = folder / f"{watched.name}.log"
        state = str(folder / f"{watched.name}.state")
        arguments = [group, watched.name, "--segment", url, "--state", state, "--order", "s_b", "--json", "--leave"]
        with self.log.open("ab") as sink:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "precede.demo.lossy", str(loss), "peer", *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=sink,
                text=True,
                env=dict(environment),
                start_new_session=True,  # out of reach of the terminal's Ctrl-C
            )
        self._reader = Thread(target=self._read, name=f"output of {watched.name}", daemon=True)
        self._reader.start()

    @property
    def is_running(self) -> bool:
        """Whether it runs, and what it says is read."""
        return self._process.poll() is None and self._reader.is_alive()

    @property
    def is_in(self) -> bool:
        """Whether its own view has it."""
        return self.watched.name in self.watched.members

    def say(self, text: str, after: list[Id]) -> None:
        """Say something, perhaps as an answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"data": text, "after": after}) + "\n")
        self._process.stdin.flush()

    def close(self) -> None:
        """Let it leave, and end it if it does not."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(END_S_MAX)
        except subprocess.TimeoutExpired:
            self._process.terminate()
            self._process.wait()
        self._reader.join(END_S_MAX)
        self._process.stdout.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._take(json.loads(line))

    def _take(self, event: dict[str, Any]) -> None:
        watched = self.watched
        match event["event"]:
            case "delivered":
                record = event["record"]
                id_ = record["sender"], record.get("epoch", 0), record["seq"]
                if record["sender"] == watched.name:
                    self.ids[record["data"]] = id_
                watched.delivered[id_] = record["data"]
                watched.longest_ms = max(watched.longest_ms, event["waited_ms"])
            case "held":
                watched.held += 1
            case "view":
                watched.members = event["members"]


class Talk:
    """Plays the script: a line is said once its sender has heard the line that it answers."""

    def __init__(self, peers: dict[str, PeerProcess], watch: PeerWatch, seed: int) -> None:
        self._peers = peers
        self.watch = watch
        self._random = random.Random(seed)  # noqa: S311 (a play that can be repeated, not a secret)
        self._script: Script[str] = Script(self._random)
        self._next_s = 0.0
        self._pending: list[tuple[str, str, Id]] = []
        """Answers whose own id is not known yet: sender, text and what they answer."""
        self.said = 0

    def play(self, now_s: float) -> None:
        """Say what is due."""
        while self._next_s <= now_s:
            self._next_s += self._random.uniform(*PAUSE_S)
            self._speak()
        self.note_ids()

    def note_ids(self) -> None:
        """Note which message each answer answers, as far as their ids are known."""
        still = []
        for sender, text, question in self._pending:
            id_ = self._peers[sender].ids.get(text)
            if id_ is None:
                still.append((sender, text, question))
            else:
                self.watch.answered[id_] = question
        self._pending = still

    def _speak(self) -> None:
        lines, texts = self._script.thread()
        line = lines[len(texts)]
        after: list[Id] = []
        if line.answers is not None:
            asker = lines[line.answers].sender
            question = self._peers[asker].ids.get(texts[line.answers])
            if question is None or question not in self._peers[line.sender].watched.delivered:
                return  # its sender has not heard it yet
            after = [question]
        self.said += 1
        text = f"{line.text} [{self.said}]"
        texts.append(text)
        self._peers[line.sender].say(text, after)
        self._pending += [(line.sender, text, question) for question in after]


# ── the view: panels in a terminal, lines elsewhere ───────────────────────────────────────────────────────────────────


def open_peers_view(console: Console, watch: PeerWatch) -> "PeersInLines | PeersInPanels":
    return PeersInPanels(console, watch) if console.is_terminal else PeersInLines(console, watch)


class PeersInLines(PrintedLines):
    """Prints a line for each message of the log, with how many peers have it by then."""

    def __init__(self, console: Console, watch: PeerWatch) -> None:
        super().__init__(console)
        self._watch = watch
        self._printed = 0

    def show(self, state: str) -> None:
        """Refresh. `state` says in a few words what happens."""
        self._print_state(state)
        for one in self._watch.log[self._printed :]:
            have = sum((one.sender, one.epoch, one.seq) in peer.delivered for peer in self._watch.peers.values())
            self._print_line(f"log {one.position:<4} at {have} peers  {_told(one)}")
        self._printed = len(self._watch.log)


class PeersInPanels(DrawnPicture):
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


# ── the run ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def perform(seconds: float, seed: int) -> None:
    """Run the demo; raises Refused if peers and log do not agree."""
    console = Console()
    folder = new_folder()
    watch = PeerWatch({name: WatchedPeer(name, segment) for name, segment in MEMBERS.items()})
    talk: Talk | None = None
    cut_short = False
    try:
        with ExitStack() as stack:
            broker, job = stack.enter_context(stage(console, folder, "process"))
            urls = {name: f"udp://{host}:{_port(seed)}%lo" for name, host in SEGMENTS.items()}
            gateways = stack.enter_context(_gateways(console, broker.bootstrap, urls, folder))
            ordered = follow(config=Settings(bootstrap=broker.bootstrap))
            stack.callback(ordered.close)
            peers = stack.enter_context(_peers(console, watch, urls, folder))
            talk = Talk(peers, watch, seed)
            view = open_peers_view(console, watch)
            stack.enter_context(view)
            cut_short = _play(talk, [job, *gateways], ordered, view, seconds)
    except KeyboardInterrupt:
        cut_short = True
    if talk is None or not talk.said:
        console.print("Stopped before the conversation began.", highlight=False)
        return
    _print_summary(console, watch, talk.said, folder, cut_short=cut_short)


def _port(seed: int) -> int:
    """Demos that run at the same time should not hear each other."""
    return 17_100 + (seed + time.time_ns() // 1_000) % 900


@contextmanager
def _gateways(console: Console, bootstrap: str, urls: dict[str, str], folder: Path) -> Iterator[list[Child]]:
    """A gateway on each segment."""
    started: list[Child] = []
    try:
        with progress_line(console) as say:
            say("Starting two gateways")
            for name, url in urls.items():
                arguments = ["--segment", url, "--bootstrap", bootstrap, "--state", str(folder / f"gateway-{name}")]
                command = [sys.executable, "-m", "precede.demo.lossy", str(LOSS), "gateway", *arguments]
                log = folder / f"gateway-{name}.log"
                started.append(Child(command, log=log, environment=child_environment()))
        yield started
    finally:
        for gateway in started:
            gateway.end()


@contextmanager
def _peers(console: Console, watch: PeerWatch, urls: dict[str, str], folder: Path) -> Iterator[dict[str, PeerProcess]]:
    """All peers, once each of them is in the group."""
    started: dict[str, PeerProcess] = {}
    try:
        with progress_line(console) as say:
            for watched in watch.peers.values():
                say(f"{watched.name} enters the group on the segment {watched.segment}")
                peer = PeerProcess(watched, GROUP, urls[watched.segment], LOSS, folder, child_environment())
                started[watched.name] = peer
                _wait(lambda peer=peer: peer.is_in, peer)  # type: ignore[misc]
            say("Waiting until all see each other")
            for peer in started.values():
                _wait(lambda peer=peer: len(peer.watched.members) == len(watch.peers), peer)  # type: ignore[misc]
        yield started
    finally:
        for peer in started.values():
            peer.close()


def _wait(met: Callable[[], bool], peer: PeerProcess) -> None:
    until = time.monotonic() + START_S_MAX
    while not met():
        if not peer.is_running or time.monotonic() > until:
            raise Refused(f"The peer {peer.watched.name} does not get into the group; its log is {peer.log}.")
        time.sleep(STEP_S)


def _play(
    talk: Talk,
    children: list[Child],
    ordered: Follower,
    view: PeersInLines | PeersInPanels,
    seconds: float,
) -> bool:
    """Talk, and wait until peers and log have everything; returns whether Ctrl-C cut it short."""
    watch, cut_short = talk.watch, False
    begun_s = time.monotonic()

    def step(state: str) -> None:
        for child in children:
            if child.ended:
                raise Refused(f"A process ended by itself: {child.last_log_line} (its log is {child.log})")
        while (delivery := ordered.poll(STEP_S)) is not None:
            watch.take(delivery)
        talk.note_ids()
        view.show(state)

    try:
        while (now_s := time.monotonic() - begun_s) < seconds:
            talk.play(now_s)
            step(f"The group talks, and each loses {LOSS:.0%} of what it hears")
    except KeyboardInterrupt:
        cut_short = True
    until = time.monotonic() + (HURRY_S_MAX if cut_short else DRAIN_S_MAX)
    while time.monotonic() < until and not (len(watch.log) >= talk.said and watch.is_complete):
        step("What is on its way still arrives")
    return cut_short


def _print_summary(console: Console, watch: PeerWatch, said: int, folder: Path, *, cut_short: bool) -> None:
    table = Table.grid(padding=(0, 2))
    peers = watch.peers.values()
    for name, value in (
        ("Messages sent", f"{said}, by {len(watch.peers)} peers on {len(SEGMENTS)} segments"),
        ("In the log", f"{len(watch.log)}, through {len(SEGMENTS)} gateways"),
        ("At each peer", ", ".join(f"{peer.name} {len(peer.delivered)}" for peer in peers)),
        ("Longest wait at a peer", f"{max(peer.longest_ms for peer in peers) / 1_000:.1f} s"),
        ("Peers and log agree", "yes" if watch.is_complete else "no"),
        ("Answers after questions", "yes, at each peer and in the log" if watch.is_lawful else "no"),
        ("Positions contiguous", f"yes, 1 to {len(watch.positions)}" if watch.is_contiguous else "no"),
    ):
        table.add_row(name, value)
    console.print()
    console.print(table, highlight=False)
    console.print()
    agreed = watch.is_lawful and watch.is_contiguous and ((watch.is_complete and len(watch.log) == said) or cut_short)
    if not agreed:
        raise Refused(f"Peers and log did not agree; see the logs in {folder}.")
