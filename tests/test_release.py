"""`make release`, rehearsed in a repository of its own: which files name the version, and what is refused."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from precede import __version__
from tests.test_tidy import ROOT, TRACKED


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """What is tracked here, as one commit of a repository of its own."""
    copy = tmp_path / "checkout"
    for path in TRACKED:
        target = copy / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix in (".md", ".toml", ".yml", ".yaml") or path.name in ("__init__.py", "release.py"):
            target.write_bytes(path.read_bytes())
    for words in (["init", "-q"], ["config", "user.name", "r"], ["config", "user.email", "r"], ["add", "-A"]):
        subprocess.run(["git", *words], cwd=copy, check=True)
    subprocess.run(["git", "commit", "-qm", "all"], cwd=copy, check=True)
    return copy


def release(checkout: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(checkout / "deploy" / "release.py"), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)


def test_a_rehearsed_release_shows_the_version_everywhere_and_changes_nothing(checkout: Path) -> None:
    log = checkout / "CHANGELOG.md"
    log.write_text(log.read_text().replace(f"## [{__version__}]", "## [9.8.7] - unreleased\n\n## [0.0.1]", 1))
    subprocess.run(["git", "commit", "-qam", "the next one"], cwd=checkout, check=True)
    done = release(checkout, "9.8.7", "--dry")
    assert (done.returncode, done.stderr) == (0, "")
    added = [line for line in done.stdout.splitlines() if line.startswith("+") and "9.8.7" in line]
    for line in (
        '+version = "9.8.7"', '+__version__ = "9.8.7"', "+version: 9.8.7", "+appVersion: 9.8.7",
        "+    image: precede:9.8.7",
    ):  # fmt: skip
        assert line in added
    assert any(re.fullmatch(r"\+## \[9\.8\.7\] - \d{4}-\d\d-\d\d", line) for line in added)
    for words in (["status", "--porcelain"], ["tag", "--list"]):
        assert subprocess.check_output(["git", *words], cwd=checkout) == b""


def test_no_place_that_names_the_version_is_forgotten(checkout: Path) -> None:
    log = checkout / "CHANGELOG.md"
    log.write_text(log.read_text().replace(f"## [{__version__}]", "## [9.8.7] - unreleased\n\n## [0.0.1]", 1))
    places = [path for path in TRACKED if path.suffix in (".py", ".yml", ".yaml", ".toml")]
    named = [path for path in places if re.search(rf"(?<![\d.]){re.escape(__version__)}(?![\d.])", path.read_text())]
    spec = (checkout / "deploy" / "release.py").read_text()
    assert [str(path.relative_to(ROOT)) for path in named if f'"{path.relative_to(ROOT)}"' not in spec] == []


@pytest.mark.parametrize(
    ("version", "sentence"),
    [
        ("1.2", "'1.2' is no version: write it as 1.2.3."),
        ("7.7.7", "CHANGELOG.md has no section `## [7.7.7] - unreleased`: write what changed."),
    ],
)
def test_what_is_no_release_is_refused_in_a_sentence(checkout: Path, version: str, sentence: str) -> None:
    done = release(checkout, version)
    assert (done.returncode, done.stderr) == (1, f"{sentence}\n")


def test_a_release_needs_all_changes_committed(checkout: Path) -> None:
    (checkout / "README.md").write_text("something else")
    done = release(checkout, __version__)
    assert (done.returncode, done.stderr.count("not committed")) == (1, 1)
