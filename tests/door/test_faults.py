"""Points where a test can stop the job: off by default, each once, each used by the crash matrix."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

from precede.streaming import faults
from precede.streaming.history.tables import TABLES
from tests.door.command import ROOT

NAMED = set(re.findall(r"^    (\w+\.\w+)(?: |$)", faults.__doc__ or "", re.MULTILINE))

PASSES = """
from precede.streaming.faults import around, reach
for number in range(3):
    reach("order.open")
    reach("order.out")
    print(number, flush=True)
print(*around(lambda rows: iter(rows), "deliveries")([7]), flush=True)
"""


def test_without_the_variable_nothing_is_in_the_way() -> None:
    def function() -> None:
        """The code of a worker."""

    assert faults.around(function, "order") is function  # type: ignore[arg-type, comparison-overlap]
    faults.reach("order.open")


def start(fault: str) -> "subprocess.Popen[str]":
    """A process that passes each point of `PASSES` three times."""
    return subprocess.Popen(
        [sys.executable, "-c", PASSES],
        cwd=ROOT,
        env=os.environ | {faults.VARIABLE: fault},
        stdout=subprocess.PIPE,
        text=True,
    )


def test_a_process_stays_at_its_pass_of_the_point_until_it_may_go_on(tmp_path: Path) -> None:
    process = start(f"order.open:2:{tmp_path}")
    assert process.stdout is not None
    deadline = time.monotonic() + 20
    while not (tmp_path / "reached").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert process.poll() is None
    assert process.stdout.readline() == "0\n", "it stops within its second pass"
    (tmp_path / "go").touch()
    assert process.stdout.read().split() == ["1", "2", "7"]
    assert process.wait(10) == 0
    assert int((tmp_path / "reached").read_text()) == process.pid


def test_the_passes_of_all_processes_count_together(tmp_path: Path) -> None:
    (tmp_path / "go").touch()
    processes = [start(f"order.out:5:{tmp_path}") for _ in range(2)]
    assert [process.wait(20) for process in processes] == [0, 0]
    assert int((tmp_path / "reached").read_text()) in [process.pid for process in processes]
    assert {path.name for path in tmp_path.glob("pass-*")} == {f"pass-{number}" for number in range(1, 6)}


def test_every_point_is_in_the_sources_and_is_played_by_the_crash_matrix() -> None:
    sources = "".join(path.read_text() for path in (ROOT / "streaming").rglob("*.py") if path.name != "faults.py")
    reached = set(re.findall(r'faults\.reach\("([\w.]+)"\)', sources))
    around = re.findall(r'faults\.around\(.*, ("order"|table)\)', sources)
    assert sorted(around) == ['"order"', "table"]
    assert reached | {f"{name}.{when}" for name in ("order", *TABLES) for when in ("work", "worked")} == NAMED
    played = "".join(
        (ROOT / "tests" / "faults" / name).read_text() for name in ("cases.py", "process_cases.py", "scene.py")
    )
    assert set(re.findall(r'"(\w+\.\w+)"', played)) == NAMED
