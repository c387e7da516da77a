"""The job as a process of its own, and everything that can be done to it and to what it stands on."""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil

from streaming.faults import VARIABLE
from tests.system.stream import Stream

WAIT_S = 240.0


class Running:
    """A job's process and what it has said so far; where a fault is asked for, it stops at that point."""

    def __init__(self, stream: Stream, *, fault: str | None = None, folder: Path | None = None) -> None:
        self.folder = folder
        variables = {} if fault is None else {VARIABLE: f"{fault}:{folder}"}
        self.process = stream.start(variables)
        self.said: list[str] = []
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said.append(line.rstrip())

    # ── waiting ───────────────────────────────────────────────────────────────────────────────────────────────────

    def hears(self, words: str, seconds: float = WAIT_S) -> None:
        self.until(lambda: any(words in line for line in self.said), f"“{words}”", seconds)

    def until(self, true: Callable[[], bool], what: str, seconds: float = WAIT_S) -> None:
        deadline = time.monotonic() + seconds
        while not true():
            assert self.process.poll() is None, f"the job ended: {self.said}"
            assert time.monotonic() < deadline, f"waited {seconds} s for {what}: {self.said}"
            time.sleep(0.1)

    def reaches(self) -> int:
        """Wait until it stands at its point; the process that does."""
        assert self.folder is not None
        reached = self.folder / "reached"
        self.until(lambda: reached.exists() and reached.read_text() != "", "the fault")
        return int(reached.read_text())

    def goes_on(self) -> None:
        assert self.folder is not None
        (self.folder / "go").touch()

    def ends(self, seconds: float = WAIT_S) -> int:
        return self.process.wait(seconds)

    # ── doing it harm ─────────────────────────────────────────────────────────────────────────────────────────────

    def below(self, name: str) -> list[psutil.Process]:
        """Its processes of that name: java, or python."""
        with suppress(psutil.NoSuchProcess):
            return [one for one in psutil.Process(self.process.pid).children(recursive=True) if name in one.name()]
        return []

    def kill_driver(self) -> None:
        """The Python process that publishes, alone; what it started finds out by itself."""
        self.process.kill()
        self.process.wait(30)

    def kill_jvm(self) -> None:
        for one in self.below("java"):
            one.kill()

    def kill_worker(self, pid: int) -> None:
        """The worker that stands at the point; where it is not a worker that does, one of them."""
        workers = [one.pid for one in self.below("python") if not one.children()]
        assert workers, "there are no Python workers"
        os.kill(pid if pid in workers else workers[0], signal.SIGKILL)

    def kill(self) -> None:
        """kill -9 for the driver, its JVM and its Python workers."""
        if self.process.poll() is None:
            whole = [*psutil.Process(self.process.pid).children(recursive=True), psutil.Process(self.process.pid)]
            for one in whole:
                with suppress(psutil.NoSuchProcess):
                    one.kill()
        self.process.wait(30)

    def stop(self) -> None:
        """As an operator does; a job that ended by itself has been stopped already."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.kill()
