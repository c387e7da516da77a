"""Runs one command for as long as the parent process lives. A separate program that imports nothing of precede.

    python child_guard.py FOLDER COMMAND...

Its standard input is a pipe from the parent. The pipe closes when the parent ends, even by kill -9, on every system;
then the command is stopped. When the command has ended, FOLDER is removed unless it is the empty string.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import threading

PATIENCE_S = 20
PR_SET_PDEATHSIG = 1  # from Linux's <sys/prctl.h>


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
