"""`make release VERSION=1.2.3`: writes the version everywhere, dates the changelog, commits, tags, and makes dist/.

Nothing leaves this machine: the last line says what to push. `--dry` does all but dist/ in a copy of the repository,
and shows what would change.
"""

import argparse
import re
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

VERSION = re.compile(r"\d+\.\d+\.\d+")

PLACES = {
    "pyproject.toml": r'(?m)^(version = ")[^"]+(")',
    "precede/__init__.py": r'(?m)^(__version__ = ")[^"]+(")',
    "deploy/chart/Chart.yaml": r"(?m)^((?:version|appVersion): )\S+()",
    "docker-compose.yml": r"(image: precede:)\S+()",
    "docs/how-to/deploy.md": r"(\bprecede:)\d+\.\d+\.\d+()",
}
"""The files that name the version, and the text before and behind it."""


class ReleaseError(Exception):
    """Why there is no release; the text is for the person who asked for one."""


def git(root: Path, *words: str) -> str:
    return subprocess.run(["git", *words], cwd=root, check=True, capture_output=True, text=True).stdout


def check(root: Path, version: str) -> None:
    """Raise ReleaseError where a release would not be what it says."""
    if not VERSION.fullmatch(version):
        raise ReleaseError(f"{version!r} is no version: write it as 1.2.3.")
    if git(root, "status", "--porcelain"):
        raise ReleaseError("There are changes that are not committed: commit them, or put them aside.")
    if git(root, "tag", "--list", f"v{version}"):
        raise ReleaseError(f"The version {version} is released already: choose the next one.")
    if not re.search(rf"^## \[{re.escape(version)}\] - unreleased$", changelog(root), re.MULTILINE):
        raise ReleaseError(f"CHANGELOG.md has no section `## [{version}] - unreleased`: write what changed.")


def changelog(root: Path) -> str:
    return (root / "CHANGELOG.md").read_text()


def write(root: Path, version: str, day: str) -> None:
    """The version in every file that names it, and the day in the changelog."""
    for name, pattern in PLACES.items():
        path = root / name
        text, count = re.subn(pattern, rf"\g<1>{version}\g<2>", path.read_text())
        if not count:
            raise ReleaseError(f"{name} does not name the version where deploy/release.py looks for it.")
        path.write_text(text)
    text = changelog(root).replace(f"## [{version}] - unreleased", f"## [{version}] - {day}")
    (root / "CHANGELOG.md").write_text(text)


def commit(root: Path, version: str) -> None:
    git(root, "commit", "--quiet", "--all", "--message", f"Release {version}")
    git(root, "tag", "--annotate", f"v{version}", "--message", f"precede {version}")


def rehearse(version: str, day: str) -> None:
    """The same in a copy, which is shown and thrown away."""
    with tempfile.TemporaryDirectory(prefix="precede-release-") as folder:
        copy = Path(folder) / "precede"
        git(ROOT, "clone", "--quiet", "--no-hardlinks", str(ROOT), str(copy))
        for setting in ("user.name", "user.email"):
            git(copy, "config", setting, "release")
        write(copy, version, day)
        commit(copy, version)
        print(git(copy, "show", "--stat", "--patch", f"v{version}"))


def main() -> int:
    parser = argparse.ArgumentParser(prog="make release", description=__doc__)
    parser.add_argument("version")
    parser.add_argument("--dry", action="store_true", help="in a copy, which is thrown away")
    asked = parser.parse_args()
    day = f"{datetime.now(UTC):%Y-%m-%d}"
    try:
        check(ROOT, asked.version)
        if asked.dry:
            rehearse(asked.version, day)
            print(f"Nothing was changed. `make release VERSION={asked.version}` does this, and then makes dist/.")
            return 0
        write(ROOT, asked.version, day)
        commit(ROOT, asked.version)
        subprocess.run(["make", "dist"], cwd=ROOT, check=True)
    except ReleaseError as error:
        print(error, file=sys.stderr)
        return 1
    print("Look at dist/, then: git push --follow-tags, and publish what is in dist/ (docs/internals/releasing.md).")
    return 0


if __name__ == "__main__":
    sys.exit(main())
