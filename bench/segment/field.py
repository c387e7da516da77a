"""Several peers as processes on one network: started together, told to begin at one time, and asked what they saw."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from bench.segment.speaker import Found, Task
from tests.door.segment_links import free_port
from tests.segments.network import Network

HOME = Path(__file__).resolve().parent.parent.parent
HEAD_START_S = 0.3
CUT, CUT_S = 1.0, 5.0


@contextmanager
def started(tasks: list[Task], *, network: Network | None = None) -> "Iterator[list[subprocess.Popen[str]]]":
    """The processes, until they are told to end."""
    processes: list[subprocess.Popen[str]] = []
    try:
        for task in tasks:
            command = [sys.executable, "-m", "bench.segment.speaker", msgspec.json.encode(task).decode()]
            if network is not None:
                command = network.command(task.name, command)
            processes.append(
                subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=HOME)
            )
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def perform(
    tasks: list[Task], *, network: Network | None = None, meanwhile: Callable[[float], None] | None = None
) -> list[Found]:
    """Let all say what they are to say; returns what each saw. `meanwhile` is called with the time of the beginning."""
    with started(tasks, network=network) as processes:
        for process in processes:
            assert _line(process) == "ready"
        begin_s = time.monotonic() + HEAD_START_S
        _tell(processes, str(begin_s))
        if meanwhile is not None:
            meanwhile(begin_s)
        said = sum(int(_line(process)) for process in processes)
        _tell(processes, str(said))
        found = [msgspec.json.decode(_line(process), type=Found) for process in processes]
        _tell(processes, "end")
        for process in processes:
            process.wait(10)
    return found


def tasks(peers: int, *, interface: str = "lo", **more: Any) -> list[Task]:
    """The same task for each of these peers, at an address that no one else uses."""
    url = f"udp://239.255.70.80:{free_port()}%{interface}"
    return [Task(url=url, name=f"peer-{number}", peers=peers, is_first=number == 0, **more) for number in range(peers)]


def _tell(processes: "list[subprocess.Popen[str]]", line: str) -> None:
    for process in processes:
        assert process.stdin is not None
        process.stdin.write(line + "\n")
        process.stdin.flush()


def _line(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    line = process.stdout.readline().strip()
    assert line, "a peer ended"
    return line
