"""`precede peer` in processes of its own, spoken to over its standard input and output."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Any

from tests.door.command import ROOT

SECONDS = 20.0


class PeerProcess:
    """One `precede peer`; its lines are kept in `seen`."""

    def __init__(self, name: str, url: str, folder: Path, *flags: str | Path, group: str = "travel") -> None:
        self.name = name
        state = [] if "--state" in flags else ["--state", folder / name]
        command = [sys.executable, "-m", "precede", "peer", group, name, "--segment", url, *state, *flags]
        self.running = subprocess.Popen(
            [str(part) for part in command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=ROOT,
            env=os.environ,
        )
        self.seen: list[str] = []
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.running.stdout is not None
        for line in self.running.stdout:
            self._lines.put(line.decode().removesuffix("\n"))

    def say(self, line: str | bytes) -> None:
        """A line of its input."""
        assert self.running.stdin is not None
        self.running.stdin.write((line if isinstance(line, bytes) else line.encode()) + b"\n")
        self.running.stdin.flush()

    def tell(self, data: Any, **more: Any) -> None:
        """A line of its input, in JSON."""
        self.say(json.dumps({"data": data, **more}))

    def until(self, met: Callable[[str], bool]) -> str:
        """The first line, seen or to come, that meets this; fails if none comes in time."""
        found = next(filter(met, self.seen), None)
        deadline = monotonic() + SECONDS
        while found is None:
            try:
                line = self._lines.get(timeout=max(0.0, deadline - monotonic()))
            except queue.Empty:
                raise AssertionError(f"{self.name} printed only {self.seen}") from None
            self.seen.append(line)
            found = line if met(line) else None
        return found

    def event(self, name: str, **wanted: Any) -> dict[str, Any]:
        """The first event of this name with these fields."""

        def met(line: str) -> bool:
            found = json.loads(line)
            return found["event"] == name and all(found.get(field) == value for field, value in wanted.items())

        found: dict[str, Any] = json.loads(self.until(met))
        return found

    def delivered(self, data: Any) -> dict[str, Any]:
        """The record with this data, once it is delivered."""
        line = self.until(lambda line: json.loads(line).get("record", {}).get("data") == data)
        found: dict[str, Any] = json.loads(line)["record"]
        return found

    def end_of_input(self) -> None:
        assert self.running.stdin is not None
        self.running.stdin.close()

    def stop(self, number: int = signal.SIGINT) -> tuple[int, str]:
        """Send a signal, and wait for the end; returns the exit status and what it said to standard error."""
        self.running.send_signal(number)
        return self.ended()

    def ended(self) -> tuple[int, str]:
        """Wait for the end; returns the exit status and what it said to standard error."""
        status = self.running.wait(SECONDS)
        self._reader.join(SECONDS)
        while not self._lines.empty():
            self.seen.append(self._lines.get())
        assert self.running.stderr is not None
        with self.running.stderr as said:
            return status, said.read().decode()

    def close(self) -> None:
        """End it in any case."""
        self.running.kill()
        self.running.wait()
        for file in (self.running.stdin, self.running.stdout, self.running.stderr):
            if file is not None:
                with suppress(BrokenPipeError):
                    file.close()
