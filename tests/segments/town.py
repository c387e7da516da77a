"""A town: a broker and the job, segments with gateways, and peers, each a process of its own at a place of a network.

        segment1 ── bridge ── ann, bob, ..., gateway1a, gateway1b ─┐
                                                                    ├─ backbone ── broker, job
        segment2 ── bridge ── eve, fay, ..., gateway2a, gateway2b ─┘

A town may do without the log, and then has no gateways. A part of a segment's peers may stand behind a second bridge,
`far`, whose link to the first can be cut. Where no network can be made, all share loopback; a segment is cut off by
stopping its gateways, and those that stand far by stopping them.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from random import randrange
from typing import Any

from precede.local.embedded_broker import Broker
from precede.streaming.spark import jars
from tests.segments.network import Network, why_not
from tests.segments.players import HOME, Player, Running, lossy, until

LOG_ADDRESS = "10.70.9.1"
START_S_MAX = 90.0


class Town:
    """Everything, for the duration of the context."""

    def __init__(
        self,
        folder: Path,
        *,
        segments: int = 2,
        gateways: int = 2,
        loss: float = 0.0,
        has_log: bool = True,
        silent_ms: int = 60_000,
    ) -> None:
        """`silent_ms` is how long a member may say nothing before the job puts it out."""
        self.folder = folder
        self._silent_ms = silent_ms
        self.loss = loss
        self.has_log = has_log
        self.job: Running | None = None
        self._far: set[str] = set()
        self.segments = range(1, segments + 1)
        self.gateways: dict[tuple[int, str], Running] = {}
        self.players: dict[str, Player] = {}
        self._gateway_names = "abcdef"[:gateways]
        self._hosts = count(11)
        self._port = randrange(17_200, 19_000)
        self._stack = ExitStack()
        self.network: Network | None = None
        self.bootstrap = ""

    def __enter__(self) -> Town:
        try:
            self._start()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _start(self) -> None:
        if not why_not():
            self.network = self._stack.enter_context(Network())
            self.network.bridge("backbone")
            for number in self.segments:
                self.network.bridge(f"segment{number}")
                self.network.bridge(f"far{number}")
                self.network.split(f"segment{number}", f"far{number}")
        if not self.has_log:
            return
        jars.ensure("broker", say=print)  # from inside a network of its own nothing can be fetched
        if self.network is not None:
            self.network.place("log", backbone=LOG_ADDRESS)
            broker = self._run("broker", "log", [sys.executable, "-m", "tests.segments.broker_inside", LOG_ADDRESS])
            until(lambda: bool(broker.lines) or not broker.is_running, START_S_MAX, broker.why)
            assert broker.lines, broker.why()
            self.bootstrap = broker.lines[0].strip()
        else:
            self.bootstrap = self._stack.enter_context(Broker()).bootstrap
        settings = self.folder / "job.toml"
        settings.write_text(f"silent_ms = {self._silent_ms}\n")
        options = ["--bootstrap", self.bootstrap, "--engine", "process", "--cache", str(self.folder / "cache")]
        self.job = self._run("job", "log", lossy(0, "run", *options, "--config", settings))
        for segment in self.segments:
            for letter in self._gateway_names:
                self.start_gateway(segment, letter)

    def url(self, segment: int, *, far: bool = False) -> str:
        """The address of a segment, for who is on it."""
        interface = "lo" if self.network is None else f"far{segment}" if far else f"segment{segment}"
        return f"udp://239.255.70.{80 + segment}:{self._port}%{interface}"

    def start_gateway(self, segment: int, letter: str) -> Running:
        """A gateway begins, or begins again with what it kept."""
        name = f"gateway{segment}{letter}"
        if self.network is not None and (segment, letter) not in self.gateways:
            host = next(self._hosts)
            links = {f"segment{segment}": f"10.70.{segment}.{host}", "backbone": f"10.70.9.{host}"}
            self.network.place(name, **links)
        options = ["--segment", self.url(segment), "--bootstrap", self.bootstrap, "--state", str(self.folder / name)]
        running = self._run(name, name, lossy(self.loss, "gateway", *options))
        self.gateways[segment, letter] = running
        return running

    def peer(self, segment: int, name: str, group: str, *options: str, far: bool = False) -> Player:
        """A peer begins, or begins again with what it kept."""
        if self.network is not None and name not in self.players:
            bridge = f"far{segment}" if far else f"segment{segment}"
            self.network.place(name, **{bridge: f"10.70.{segment}.{next(self._hosts)}"})
        if far:
            self._far.add(name)
        state = str(self.folder / f"{name}.state")
        arguments = [group, name, "--segment", self.url(segment, far=far), "--state", state, "--json", *options]
        command = self._in(name, lossy(self.loss, "peer", *arguments))
        before = self.players.get(name)
        player = self.players[name] = Player(name, command, self.folder / f"{name}.log", before)
        self._stack.callback(player.close)
        return player

    def cut_off(self, segment: int) -> None:
        """No gateway of this segment reaches the log."""
        for (its, letter), gateway in self.gateways.items():
            if its == segment and self.network is not None:
                self.network.cut(f"gateway{segment}{letter}", "backbone")
            elif its == segment and gateway.is_running:
                gateway.kill(signal.SIGSTOP)

    def heal(self, segment: int) -> None:
        """They reach it again."""
        for (its, letter), gateway in self.gateways.items():
            if its == segment and self.network is not None:
                self.network.heal(f"gateway{segment}{letter}", "backbone")
            elif its == segment and gateway.is_running:
                gateway.kill(signal.SIGCONT)

    def part(self, segment: int) -> None:
        """Those that stand far, and the others of this segment, hear each other no longer."""
        self._parting(segment, is_cut=True)

    def rejoin(self, segment: int) -> None:
        """They hear each other again."""
        self._parting(segment, is_cut=False)

    def _parting(self, segment: int, *, is_cut: bool) -> None:
        if self.network is not None:
            do = self.network.cut if is_cut else self.network.heal
            do(f"segment{segment}", f"far{segment}")
            return
        for name in self._far:
            if self.players[name].is_running:
                self.players[name].kill(signal.SIGSTOP if is_cut else signal.SIGCONT)

    def ask(self, *arguments: str) -> list[dict[str, Any]]:
        """What a command of precede says of the log, a JSON object a line."""
        command = self._in("log", [sys.executable, "-m", "precede", *arguments, "--bootstrap", self.bootstrap])
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, cwd=HOME, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    def follow(self, group: str) -> Running:
        """The ordered topic of a group, as it grows."""
        arguments = ["tail", group, "--from-beginning", "--json", "--bootstrap", self.bootstrap]
        return self._run(f"tail {group}", "log", lossy(0, *arguments))

    def why(self) -> str:
        """The last words of all that runs."""
        running = [self.job, *self.gateways.values(), *self.players.values()]
        return "\n".join(one.why() for one in running if one is not None)

    def _in(self, place: str, command: list[str]) -> list[str]:
        return command if self.network is None else self.network.command(place, command)

    def _run(self, name: str, place: str, command: list[str]) -> Running:
        running = Running(name, self._in(place, command), self.folder / f"{name.replace(' ', '-')}.log")
        self._stack.callback(running.close)
        return running
