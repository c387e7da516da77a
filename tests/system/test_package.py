"""What `pip install precede` gives: one package, and commands that need no Spark."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import precede
from precede.local.embedded_broker import Broker
from tests.door.command import ROOT, ids, lines, raw
from tests.system.test_following_kafka import Output

pytestmark = pytest.mark.nightly  # test_without_extras.py tries every command without building a wheel

MEGABYTES_MAX = 60


def elsewhere() -> dict[str, str]:
    """The environment of a user without a checkout of this repository."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


class Installed:
    """A fresh environment with the wheel in it and no extra."""

    def __init__(self, folder: Path) -> None:
        self.wheel = build(folder / "wheel")
        self.home = folder / "environment"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", self.home], check=True)
        self.python = self.home / "bin" / "python"
        pip: list[str | Path] = [
            sys.executable,
            "-m",
            "pip",
            "--python",
            self.python,
            "--disable-pip-version-check",
            "install",
            "-q",
        ]
        pinned: list[str | Path] = ["--constraint", ROOT / "constraints.txt"]
        subprocess.run([*pip, *pinned, self.wheel], check=True, cwd=folder, env=elsewhere())

    def run(self, *arguments: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        """Run `precede` with these arguments, without access to this repository."""
        return subprocess.run(
            [self.home / "bin" / "precede", *arguments],
            input=given,
            capture_output=True,
            cwd=self.home,
            env=elsewhere(),
            timeout=60,
            check=False,
        )


def build(folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet", "--no-deps"]
    copy = folder.with_name("source")  # the build writes into its source folder
    tracked = subprocess.check_output(["git", "ls-files", "-z"], cwd=ROOT, text=True).split("\0")
    for name in filter(None, tracked):
        target = copy / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_symlink():
            target.symlink_to((ROOT / name).readlink())
        elif (ROOT / name).is_file():
            target.write_bytes((ROOT / name).read_bytes())
    subprocess.run([*command, "--no-build-isolation", "--wheel-dir", folder, copy], check=True)
    return next(folder.glob("precede-*.whl"))


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return Installed(tmp_path_factory.mktemp("package"))


def test_the_wheel_holds_one_top_level_package(installed: Installed) -> None:
    names = zipfile.ZipFile(installed.wheel).namelist()
    assert {name.split("/")[0] for name in names} == {"precede", f"precede-{precede.__version__}.dist-info"}
    resources = ("jars.sha256", "ivy.xml", "WholeFiles.scala")
    chart = [path.relative_to(ROOT / "deploy") for path in (ROOT / "deploy" / "chart").rglob("*") if path.is_file()]
    for needed in ("udfs/holdback.py", *(f"streaming/spark/{name}" for name in resources), *chart):
        assert f"precede/{needed}" in names


def test_an_installation_without_extras_stays_small(installed: Installed) -> None:
    packages = next((installed.home / "lib").glob("python3*")) / "site-packages"
    size = sum(path.stat().st_size for path in packages.rglob("*") if path.is_file() and path.suffix != ".pyc")
    assert size < MEGABYTES_MAX * 1_000_000
    assert not list(packages.glob("pyspark*"))


def test_replay_needs_no_extra(installed: Installed) -> None:
    done = installed.run("replay", "-", given=raw("bob", 1, ["ann", 0, 1]) + b"\n" + raw("ann", 1) + b"\n")
    assert (done.returncode, done.stderr) == (0, b"")
    assert ids(done.stdout) == [("ann", 1), ("bob", 1)]


def test_run_says_at_once_what_to_install(installed: Installed) -> None:
    done = installed.run("run", "--bootstrap", "127.0.0.1:1")
    assert done.returncode == 1
    assert done.stderr.decode() == (
        "precede run needs pyspark, which is not installed: pip install 'precede[spark]'. Without Spark, "
        "`precede run --engine process` orders on this machine, and writes no history.\n"
    )


@pytest.mark.parametrize(
    ("arguments", "extra"),
    [
        (["demo"], "spark"),
        (["broker"], "broker"),
        (["held", "--checkpoint", "checkpoints"], "spark"),
        (["key", "new.pem"], "keys"),
        (["compare", "--plot", "picture.svg", "-"], "plot"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else value,
)
def test_what_lacks_an_extra_says_which(installed: Installed, arguments: list[str], extra: str) -> None:
    done = installed.run(*arguments, given=raw("ann", 1) + b"\n")
    assert done.returncode == 1
    assert f"pip install 'precede[{extra}]'." in done.stderr.decode()


def test_the_engine_of_one_process_needs_no_extra(installed: Installed, broker: Broker) -> None:
    topics = ("raw", "ordered", "dead_letter", "progress", "control")
    config = installed.home / "engine.toml"
    config.write_text(
        f'bootstrap = "{broker.bootstrap}"\nengine = "process"\nonly = "order"\nmetrics = "0"\n'
        + "".join(f'{name}_topic = "{installed.home.parent.name}.{name}"\n' for name in topics)
    )
    run = ("run", "--once", "--config", str(config))
    assert installed.run(*run).stdout.startswith(b"Metrics and health are at port ")
    sent = installed.run("send", "g", "ann", "Who comes along?", "--config", str(config), "--state", "senders.json")
    assert sent.returncode == 0
    done = installed.run(*run)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"1 delivered" in done.stdout.splitlines()[-1]


def test_tail_follows_a_broker_without_any_extra(installed: Installed, broker: Broker) -> None:
    output = Output(broker)
    output.write(1, 2, 3)
    config = installed.home / "precede.toml"
    config.write_text(f'bootstrap = "{broker.bootstrap}"\nordered_topic = "{output.topic}"\n')
    done = installed.run("tail", "g", "--json", "--from-beginning", "--count", "3", "--config", str(config))
    assert (done.returncode, done.stderr) == (0, b"")
    assert [record["position"] for record in lines(done.stdout)] == [1, 2, 3]
