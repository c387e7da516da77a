"""An engine under measurement: its whole tree of processes is counted, stopped and killed."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import psutil
import pytest

from bench.peers.process import Running

# A parent that does nothing and a child that uses a core, ignores SIGTERM and has 100 MB.
TREE = """\
import subprocess, sys, time
child = 'import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); full = bytearray(100 << 20)'
child += chr(10) + 'print("on", flush=True)' + chr(10) + 'while True: pass'
print(subprocess.Popen([sys.executable, "-c", child], stdout=sys.stdout).pid, flush=True)
time.sleep(600)
"""


@pytest.fixture
def tree(tmp_path: Path) -> Running:
    running = Running([sys.executable, "-c", TREE], dict(os.environ), tmp_path, tmp_path / "log")
    until = time.monotonic() + 30
    while "on" not in running.said_last():
        assert time.monotonic() < until, running.said_last()
        time.sleep(0.02)
    return running


def child_of(running: Running) -> psutil.Process:
    return psutil.Process(int(running.said_last().split()[0]))


def test_processor_time_and_memory_are_those_of_the_whole_tree(tree: Running) -> None:
    cores = tree.cores(0.5)
    tree.kill()
    assert cores > 0.1, "the child is always busy"
    assert tree.rss_mb > 100


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_nothing_of_the_tree_is_left(tree: Running, end: str) -> None:
    child = child_of(tree)
    getattr(tree, end)()
    assert tree.ended
    assert not child.is_running()
    getattr(tree, end)()  # as the end of a block does after a kill
