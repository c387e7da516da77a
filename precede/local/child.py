"""A command that runs as long as this process, out of reach of the terminal's Ctrl-C; and its guard.

    python child.py FOLDER COMMAND...

The guard is this file as a program of its own, which imports nothing of precede. Its standard input is a pipe from the
parent. The pipe closes when the parent ends, even by kill -9, on every system; then the command is stopped. When the
command has ended, FOLDER is removed unless it is the empty string.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

GUARD = Path(__file__)
STOP_S_MAX = 30
PATIENCE_S = 20
PR_SET_PDEATHSIG = 1  # from Linux's <sys/prctl.h>


class Child:
    """Its output goes into a log file; `end` lets it finish its current work."""

    def __init__(
        self,
        command: list[str],
        *,
        log: Path,
        environment: Mapping[str, str] | None = None,
        folder: Path | None = None,
        keeps: Sequence[int] = (),
    ) -> None:
        """The folder is removed when it has ended; the guard keeps the descriptors in `keeps` open until then."""
        self.log = log
        with log.open("ab") as sink:
            self.guard = subprocess.Popen(
                [sys.executable, "-I", "-S", str(GUARD), "" if folder is None else str(folder), *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=sink,
                env=environment,
                pass_fds=keeps,
                start_new_session=True,
            )
        assert self.guard.stdout is not None
        self.pid = int(self.guard.stdout.readline())

    @property
    def ended(self) -> bool:
        return self.guard.poll() is not None

    @property
    def last_log_line(self) -> str:
        """The last line of its output."""
        lines = self.log.read_text(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "it printed nothing")

    def end(self, how: signal.Signals = signal.SIGTERM) -> None:
        if not self.ended:
            os.kill(self.pid, how)
        try:
            self.guard.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            os.kill(self.pid, signal.SIGKILL)
            self.guard.wait()
        for pipe in (self.guard.stdin, self.guard.stdout):
            assert pipe is not None
            pipe.close()


# ── the guard ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def end_with_guard() -> None:
    """On Linux, end the command even if the guard is killed with -9; other systems cannot guarantee that."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def stop(command: subprocess.Popen[bytes]) -> None:
    """Ask the command to end once, then kill it."""
    command.terminate()
    try:
        command.wait(PATIENCE_S)
    except subprocess.TimeoutExpired:
        command.kill()


def main() -> None:
    folder, *line = sys.argv[1:]
    # The guard has one thread at this point, so no lock can stay held in the child between fork and exec.
    command = subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=sys.stderr, preexec_fn=end_with_guard)  # noqa: PLW1509
    os.write(sys.stdout.fileno(), b"%d\n" % command.pid)

    def watch() -> None:
        sys.stdin.buffer.read()
        stop(command)

    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=stop, args=[command]).start())
    threading.Thread(target=watch, daemon=True).start()
    status = command.wait()
    if folder:
        shutil.rmtree(folder, ignore_errors=True)
    # Not sys.exit: the watching thread is blocked in a read.
    os._exit(status if status >= 0 else 128 - status)


if __name__ == "__main__":
    main()
