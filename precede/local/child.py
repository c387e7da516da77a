"""A command that runs as long as this process, out of reach of the terminal's Ctrl-C (see child_guard.py)."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

GUARD = Path(__file__).with_name("child_guard.py")
STOP_S_MAX = 30


class Child:
    """Its output goes into a log file; `stop` lets it finish its current work."""

    def __init__(self, command: list[str], *, log: Path, environment: Mapping[str, str]) -> None:
        self.log = log
        with log.open("ab") as sink:
            self._guard = subprocess.Popen(
                [sys.executable, "-I", "-S", str(GUARD), "", *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=sink,
                env=dict(environment),
                start_new_session=True,
            )
        assert self._guard.stdout is not None
        self.pid = int(self._guard.stdout.readline())

    @property
    def ended(self) -> bool:
        return self._guard.poll() is not None

    @property
    def last_log_line(self) -> str:
        """The last line of its output."""
        lines = self.log.read_text(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "it printed nothing")

    def stop(self) -> None:
        if not self.ended:
            os.kill(self.pid, signal.SIGTERM)
        try:
            self._guard.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            os.kill(self.pid, signal.SIGKILL)
            self._guard.wait()
        for pipe in (self._guard.stdin, self._guard.stdout):
            assert pipe is not None
            pipe.close()
