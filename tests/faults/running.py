"""The job as a separate process, and everything that can be done to it and its surroundings."""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil

from precede.streaming.faults import VARIABLE
from tests.system.stream import RUN, Stream

WAIT_S = 240.0


class Running:
    """A job's process and its output so far; with a fault it stops at that point."""

    def __init__(
        self,
        stream: Stream,
        *,
        fault: str | None = None,
        folder: Path | None = None,
        variables: dict[str, str] | None = None,
        program: tuple[str, ...] = ("-c", RUN),
    ) -> None:
        self.folder = folder
        faults = {} if fault is None else {VARIABLE: f"{fault}:{folder}"}
        self.process = stream.start(faults | (variables or {}), program)
        self.left: list[psutil.Process] = []
        """Processes that survive when only the driver is killed."""
        self.inputs: list[int] = []
        self.frozen: list[psutil.Process] = []
        self.said: list[str] = []
        self.listener = threading.Thread(target=self._listen, daemon=True)
        self.listener.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said.append(line.rstrip())

    # ── waiting ───────────────────────────────────────────────────────────────────────────────────────────────────

    def wait_for_output(self, words: str, seconds: float = WAIT_S) -> None:
        self.until(lambda: any(words in line for line in self.said), f"“{words}”", seconds)

    def until(self, true: Callable[[], bool], what: str, seconds: float = WAIT_S) -> None:
        deadline = time.monotonic() + seconds
        while not true():
            assert self.process.poll() is None, f"the job ended: {self.said}"
            assert time.monotonic() < deadline, f"waited {seconds} s for {what}: {self.said}"
            time.sleep(0.1)

    def reaches(self) -> int:
        """Wait until it stops at its point; returns the process there."""
        assert self.folder is not None
        reached = self.folder / "reached"
        self.until(lambda: reached.exists() and reached.read_text() != "", "the fault")
        return int(reached.read_text())

    def goes_on(self) -> None:
        assert self.folder is not None
        (self.folder / "go").touch()

    def ends(self, seconds: float = WAIT_S) -> int:
        return self.process.wait(seconds)

    # ── injecting faults ──────────────────────────────────────────────────────────────────────────────────────────

    def below(self, name: str) -> list[psutil.Process]:
        """Its processes of that name: java or python."""
        with suppress(psutil.NoSuchProcess):
            return [one for one in psutil.Process(self.process.pid).children(recursive=True) if name in one.name()]
        return []

    def freeze(self) -> None:
        """Suspend driver and JVM, until they are killed or resumed."""
        self.frozen = [psutil.Process(self.process.pid), *self.below("java")]
        for one in self.frozen:
            one.suspend()

    def thaw(self) -> None:
        """Resume the live processes."""
        while self.frozen:
            with suppress(psutil.NoSuchProcess):
                self.frozen.pop().resume()

    def kill_driver(self) -> None:
        """Kill only the Python process that publishes; its children notice by themselves."""
        self.process.kill()
        self.process.wait(30)

    def kill_driver_alone(self) -> psutil.Process:
        """Kill the driver unnoticed: the JVM would end with its input, so that is kept open."""
        (jvm,) = self.below("java")
        self.left = [jvm, *jvm.children(recursive=True)]
        self.inputs.append(os.open(f"/proc/{jvm.pid}/fd/0", os.O_WRONLY))
        self.kill_driver()
        return jvm

    def kill_jvm(self) -> None:
        for one in self.below("java"):
            one.kill()

    def workers(self) -> list[int]:
        """Python processes below the JVM, except the one that forks the others."""
        found = []
        for one in [one for jvm in self.below("java") for one in jvm.children(recursive=True)]:
            with suppress(psutil.NoSuchProcess):  # they come and go
                if not one.children():
                    found.append(one.pid)
        return found

    def kill_worker(self, pid: int) -> None:
        """The worker that is stopped at the point."""
        assert pid in self.workers(), "no worker is stopped at the point"
        os.kill(pid, signal.SIGKILL)

    def kill_idle_worker(self) -> None:
        """A worker that the order query will use again."""
        workers = self.workers()
        assert workers, "there are no Python workers"
        os.kill(workers[0], signal.SIGKILL)

    @staticmethod
    def is_worker(pid: int, *, below: psutil.Process) -> bool:
        """Whether it is alive and works for this JVM."""
        return below.is_running() and pid in [one.pid for one in below.children(recursive=True)]

    def kill(self) -> None:
        """kill -9 for the driver, its JVM and its Python workers."""
        if self.process.poll() is None:
            whole = [*psutil.Process(self.process.pid).children(recursive=True), psutil.Process(self.process.pid)]
            for one in whole:
                with suppress(psutil.NoSuchProcess):
                    one.kill()
        for one in self.left:
            with suppress(psutil.NoSuchProcess):
                one.kill()
        while self.inputs:
            os.close(self.inputs.pop())
        self.process.wait(30)

    def stop(self) -> None:
        """Stop it as an operator does; a job that has ended needs no stop."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.kill()
