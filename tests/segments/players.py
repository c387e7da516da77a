"""The processes of a test on segments: `precede peer --json`, driven line by line, and commands beside them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Any

HOME = Path(__file__).resolve().parent.parent.parent


class Running:
    """A command, and the lines it has printed so far; standard error goes into a file."""

    def __init__(self, name: str, command: list[str], log: Path) -> None:
        self.name = name
        self.log = log
        self.lines: list[str] = []
        with log.open("ab") as sink:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=sink, text=True, cwd=HOME
            )
        self._reader = Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.take(line)

    def take(self, line: str) -> None:
        """A line was printed."""
        self.lines.append(line)

    @property
    def is_running(self) -> bool:
        return self.process.poll() is None

    def kill(self, how: int = signal.SIGKILL) -> None:
        """End it at once, or send it another signal."""
        os.kill(self.process.pid, how)

    def close(self) -> None:
        """End it, if it still runs."""
        if self.is_running:
            self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._reader.join(10)
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()

    def why(self) -> str:
        """The end of what it said on standard error."""
        return f"{self.name}: {self.log.read_text(errors='replace')[-2_000:]}"


class Player(Running):
    """A peer of one group."""

    def __init__(self, name: str, command: list[str], log: Path, before: Player | None = None) -> None:
        """`before` is the process that was killed: some of what that delivered is told again."""
        self.events: list[dict[str, Any]] = []
        self.texts: list[str] = []
        """What was delivered, as its data."""
        self._told_before: set[str] = set()
        if before is not None:
            self.texts += before.texts
            self._told_before |= set(before.texts)
        self.ids: dict[str, list[Any]] = {}
        """The id of each delivered message."""
        self.members: list[str] = []
        self.is_synced = False
        super().__init__(name, command, log)

    def take(self, line: str) -> None:
        event = json.loads(line)
        self.events.append(event)
        match event["event"]:
            case "delivered" if event["record"].get("kind", "message") == "message" and "data" in event["record"]:
                record = event["record"]
                self.ids[record["data"]] = [record["sender"], record.get("epoch", 0), record["seq"]]
                if record["data"] not in self._told_before:
                    self.texts.append(record["data"])
            case "view":
                self.members = event["members"]
            case "synced":
                self.is_synced = True

    def say(self, text: str, *after: list[Any], to: list[str] | None = None) -> None:
        """Tell it to say this, to all or to these."""
        assert self.process.stdin is not None
        line = {"data": text, "after": list(after)} | ({} if to is None else {"to": to})
        self.process.stdin.write(json.dumps(line) + "\n")
        self.process.stdin.flush()

    def end_of_input(self) -> None:
        """With `--leave` it leaves once everybody has what it said."""
        assert self.process.stdin is not None
        self.process.stdin.close()


def lossy(share: float, *arguments: str | Path) -> list[str]:
    """A command of precede that loses this share of what it receives, and ends with this process."""
    return [sys.executable, "-m", "tests.segments.lossy", str(share), *map(str, arguments)]


def until(met: Callable[[], bool], limit_s: float, why: Callable[[], str], *, every_s: float = 0.02) -> None:
    """Wait for something; fails at the limit, and says why."""
    end = time.monotonic() + limit_s
    while not met():
        assert time.monotonic() < end, f"not within {limit_s:.0f} s: {why()}"
        time.sleep(every_s)
