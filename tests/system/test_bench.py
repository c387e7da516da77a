"""The benchmarks at their smallest sizes run and measure something; `make bench` measures the speed."""

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from bench.__main__ import BENCHMARKS
from bench.figures import Results

pytestmark = pytest.mark.nightly

HOME = Path(__file__).resolve().parent.parent.parent
LONG = {"idle", "neighbour", "places"}
"""These watch a job for minutes, even at their smallest."""


@pytest.mark.timeout(600)
def test_every_benchmark_still_measures_all_its_figures(tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    names = [name for name in BENCHMARKS if name not in LONG]
    command = [sys.executable, "-m", "bench", *names, "--quick", "--json", str(path)]
    done = subprocess.run(command, cwd=HOME, capture_output=True, text=True, check=False, timeout=590)
    assert done.returncode == 0, done.stderr
    reports = msgspec.json.decode(path.read_bytes(), type=Results).reports
    assert set(reports) == set(names)
    for report in reports.values():
        assert report.figures
        assert all(figure.value > 0 for figure in report.figures), report
