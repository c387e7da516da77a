"""`python -m bench beside COMMIT`: which tree is measured, and the verdict; speed needs a quiet machine."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from bench import beside
from bench.figures import Results

HOME = Path(__file__).resolve().parent.parent.parent
SAID = "precede/__init__.py"


def git(folder: Path, *words: str) -> str:
    who = ("-c", "user.name=ann", "-c", "user.email=ann@localhost", "-c", "commit.gpgsign=false")
    return subprocess.check_output(["git", *who, *words], cwd=folder, text=True).strip()


@pytest.fixture
def old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a commit whose precede delivers nothing, in its own repository."""
    folder = tmp_path / "repository"
    (folder / "precede").mkdir(parents=True)
    (folder / SAID).write_text("class Holdback:\n    pass\n")
    (folder / "precede" / "__main__.py").write_text("")
    git(folder, "init", "--quiet")
    git(folder, "add", "-A")
    git(folder, "commit", "--quiet", "-m", "one")
    monkeypatch.setattr(beside, "ROOT", folder)
    return git(folder, "rev-parse", "--short", "HEAD")


def test_the_files_of_a_commit_are_taken_as_it_has_them_and_not_as_they_are_now(old: str, tmp_path: Path) -> None:
    now = tmp_path / "repository" / SAID
    now.write_text("changed since")
    assert beside.files_of("HEAD", tmp_path / "tree") == old
    assert (tmp_path / "tree" / SAID).read_text() == "class Holdback:\n    pass\n"


def test_a_commit_that_is_not_there_is_named_in_a_sentence(old: str, tmp_path: Path) -> None:
    with pytest.raises(beside.Failed, match="no commit nowhere"):
        beside.files_of("nowhere", tmp_path / "tree")


@pytest.mark.parametrize("what", ["kernel", "replay"])
def test_each_side_is_measured_with_its_own_packages(old: str, tmp_path: Path, what: str) -> None:
    beside.files_of(old, tmp_path / "tree")
    messages = tmp_path / "messages.jsonl"
    messages.write_bytes(beside.lines(100))
    with beside.Side("new", HOME, messages) as new:
        assert beside.measured(new, what, 100)() > 0
    with beside.Side("old", tmp_path / "tree", messages) as broken, pytest.raises(beside.Failed, match="old"):
        beside.measured(broken, what, 100)()


def test_the_figures_are_ratios_to_the_commit_and_are_kept_where_that_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rates = {beside.NEW: iter([1.0, 1.0, 90.0, 80.0, 95.0]), "c0ffee": iter([1.0, 1.0, 100.0, 100.0, 100.0])}
    monkeypatch.setattr(beside, "files_of", lambda _commit, _folder: "c0ffee")
    monkeypatch.setattr(beside, "measured", lambda side, _what, _count: lambda: next(rates[side.name]))
    path = tmp_path / "figures.json"
    assert beside.main(["HEAD", "kernel", "--rounds", "3", "--json", str(path)]) == 1
    (report,) = msgspec.json.decode(path.read_bytes(), type=Results).reports.values()
    assert (report.name, report.figures[0].value) == ("beside c0ffee", 0.9), "the first two rounds only warm"
    assert report.lookups[0].rows == [["kernel", "0.90", "0.80", "0.95", "0.85-0.93"]]
    assert "Missed: kernel, to c0ffee" in capsys.readouterr().out


def test_the_processor_time_of_a_side_is_all_that_its_process_took_and_not_only_what_was_measured(
    tmp_path: Path,
) -> None:
    messages = tmp_path / "messages.jsonl"
    messages.write_bytes(beside.lines(20_000))
    with beside.Side("new", HOME, messages) as side:
        rate = side.stream("kernel", 20_000)
    (by_processor,) = side.by_processor["kernel"]
    assert 0 < by_processor < rate


def test_what_cannot_be_measured_is_refused_before_anything_starts(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        beside.main(["HEAD", "latency"])
    assert "there is no latency; choose from kernel, replay" in capsys.readouterr().err


def test_the_command_is_found_beside_the_other_benchmarks() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bench", "beside", "--help"], cwd=HOME, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0
    assert "This tree beside another commit" in done.stdout
