"""Every command where only `pip install precede` was done: it works, or one sentence names the extra that it needs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from precede.command_line import COMMANDS
from precede.ingest.producer import Publisher
from precede.local.embedded_broker import Broker
from tests.door.command import ROOT, raw
from tests.system.stream import own_topics

Run = Callable[..., "subprocess.CompletedProcess[bytes]"]

WORKS = {
    "check": (["check"], 0, "olds"),
    "compare": (["compare", "-"], 0, "s_b"),
    "dead-letters": (["dead-letters"], 0, "malformed"),
    "gateway": (["gateway", "--help"], 0, "Usage: precede gateway"),
    "groups": (["groups"], 0, "travel"),
    "held": (["held"], 0, "Nothing is held."),
    "peer": (["peer", "--help"], 0, "Usage: precede peer"),
    "replay": (["replay", "-"], 0, '"position":1'),
    "run": (["run", "--engine", "process", "--once"], 0, "Done: "),
    "send": (["send", "travel", "ann", "Who comes along?"], 0, "ann:"),
    "tail": (["tail", "--from-beginning", "--count", "1"], 0, "travel 1  ann:1"),
    "why": (["why", "travel", "ann:1"], 0, "was delivered at position 1"),
}
"""What they say, and the status with which they end."""

NEED = {
    "broker": (["broker"], "precede broker", "broker"),
    "bundle": (["bundle", "folder"], "precede bundle", "spark"),
    "demo": (["demo"], "precede demo", "spark"),
    "key": (["key", "new.pem"], "A key", "keys"),
}
"""What they say needs something, and the extra that has it."""

NEED_FOR_MORE = [
    (["demo", "--engine", "process"], "precede demo without Spark", "broker"),
    (["demo", "--peers"], "precede demo without Spark", "broker"),
    (["run"], "precede run", "spark"),
    (["compare", "--plot", "picture.svg", "-"], "A picture", "plot"),
    (["dead-letters", "--delta", "folder"], "Reading Delta tables", "delta"),
    (["groups", "--delta", "folder"], "Reading Delta tables", "delta"),
    (["held", "--checkpoint", "folder"], "precede held --checkpoint", "spark"),
]
"""Options that need more than the command does without them."""


def brought(name: str) -> dict[str, Distribution]:
    """A distribution, and all that it brings where no extra is asked for."""
    found: dict[str, Distribution] = {}
    pending = [name]
    while pending:
        if (one := pending.pop().lower()) not in found:
            found[one] = distribution(one)
            needed = map(Requirement, found[one].requires or [])
            pending += [need.name for need in needed if need.marker is None or need.marker.evaluate({"extra": ""})]
    return found


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, broker: Broker) -> Run:
    """Runs `precede` in an environment that has only what precede itself needs: links to what is installed here."""
    home = tmp_path_factory.mktemp("bare")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", home], check=True)
    packages = next((home / "lib").glob("python3*")) / "site-packages"
    (packages / "precede").symlink_to(ROOT / "precede")
    for name, one in brought("precede").items():
        for top in {path.parts[0] for path in one.files or [] if path.parts[0] != ".." and name != "precede"}:
            (packages / top).symlink_to(Path(str(one.locate_file(top))))
    variables = {f"PRECEDE_{name.upper()}": topic for name, topic in own_topics().items()}
    variables |= {"PRECEDE_BOOTSTRAP": broker.bootstrap, "PRECEDE_STATE": str(home / "senders.json")}
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | variables

    (home / "process.toml").write_text('engine = "process"\n')

    def run(*arguments: str) -> subprocess.CompletedProcess[bytes]:
        command = [str(home / "bin" / "python"), "-m", "precede", *arguments]
        given = raw("ann", 1) + b"\n"
        return subprocess.run(
            command, input=given, capture_output=True, cwd=home, env=environment, timeout=60, check=False
        )

    assert run("run", "--engine", "process", "--once").returncode == 0  # makes the topics
    assert run("send", "travel", "ann", "Who comes along?").returncode == 0
    with Publisher(broker.bootstrap, topic=variables["PRECEDE_RAW_TOPIC"]) as publisher:
        publisher.publish_raw(b"travel", b"no JSON")
    assert run("run", "--engine", "process", "--once").returncode == 0
    return run


def test_the_environment_has_nothing_of_any_extra(run: Run) -> None:
    done = run("run")
    assert b"pyspark, which is not installed" in done.stderr


def test_every_command_is_tried_without_extras() -> None:
    assert {*WORKS, *NEED, "doctor"} == set(COMMANDS)


@pytest.mark.parametrize("command", WORKS)
def test_a_command_works_without_extras(run: Run, command: str) -> None:
    arguments, status, said = WORKS[command]
    done = run(*arguments)
    assert done.returncode == status, done.stderr.decode()
    assert said in (done.stdout + done.stderr).decode()


@pytest.mark.parametrize(("arguments", "purpose", "extra"), [*NEED.values(), *NEED_FOR_MORE], ids=str)
def test_what_a_command_lacks_is_named_with_its_extra(run: Run, arguments: list[str], purpose: str, extra: str) -> None:
    done = run(*arguments)
    said = done.stderr.decode()
    assert (done.returncode, done.stdout, said.count("\n")) == (1, b"", 1), said
    assert said.startswith(f"{purpose} needs ")
    assert f", which is not installed: pip install 'precede[{extra}]'." in said


def test_doctor_goes_through_its_checks_for_either_engine(run: Run) -> None:
    """What needs an extra is one line, and the checks behind it follow."""
    spark, process = run("doctor"), run("doctor", "--config", "process.toml")
    lines = spark.stdout.decode().splitlines()
    assert [line for line in lines if line.startswith("stop ")] == [
        "stop  precede run needs pyspark, which is not installed: pip install 'precede[spark]'."
    ]
    assert (spark.returncode, spark.stderr, process.returncode, process.stderr) == (1, b"", 0, b"")
    for done in (spark, process):
        assert b"The raw partitions 0-3 belong to a job with the engine process" in done.stdout
    assert b"Nothing would stop a start." in process.stdout
