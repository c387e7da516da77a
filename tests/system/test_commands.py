"""The commands together, as a user would run them: broker, send, run, tail and held."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from precede.ingest.producer import Publisher
from precede.local.embedded_broker import Broker
from tests.door.command import ROOT, lines, precede

Command = Callable[..., bytes]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("commands")


@pytest.fixture(scope="module")
def command(broker: Broker, place: Path) -> Command:
    """Run a command on topics and folders of this file; returns its output."""
    variables = {
        "PRECEDE_BOOTSTRAP": broker.bootstrap,
        "PRECEDE_CHECKPOINT": str(place / "checkpoint"),
        "PRECEDE_CACHE": str(place / "cache"),
        "PRECEDE_DELTA": str(place / "delta"),
        "PRECEDE_STATE": str(place / "senders.json"),
    }
    topics = ("raw", "ordered", "dead_letter", "progress")
    variables |= {f"PRECEDE_{name.upper()}_TOPIC": f"commands.{name}" for name in topics}

    def run(*arguments: str) -> bytes:
        done = precede(*arguments, variables=variables, seconds=200)
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout

    return run


@pytest.fixture(scope="module")
def state_file(place: Path) -> Path:
    return place / "by-file" / "senders.json"


@pytest.fixture(scope="module")
def sent_by_file(
    command: Command, broker: Broker, place: Path, state_file: Path
) -> "subprocess.CompletedProcess[bytes]":
    """The job has run once over all messages of this file; returns what the last `send` said."""
    command("send", "travel", "bob", "--after", "ann:1", "I do.")
    command("send", "travel", "ann", "Who comes along?")
    command("send", "travel", "eli", "--after", "zoe:7", "So do I.")
    with Publisher(broker.bootstrap, topic="commands.raw") as publisher:
        publisher.publish("lines", b'{"group":"lines",\n"sender":"ann",\r\n"seq":1,"after":[]}')
    config = place / "precede.toml"
    config.write_text(f'bootstrap = "{broker.bootstrap}"\nraw_topic = "commands.raw"\nstate = "{state_file}"\n')
    sent = precede("send", "lines", "bob", "hello", "--after", "ann:1", "--config", config)
    command("run", "--engine", "process", "--once")
    return sent


@pytest.mark.usefixtures("sent_by_file")
def test_what_is_sent_is_ordered_followed_and_what_must_wait_is_named(command: Command) -> None:
    told = command("tail", "travel", "--from-beginning", "--count", "2").decode().splitlines()
    assert [line.split("  ")[:3] for line in told] == [
        ["travel 1", "ann:1", '"Who comes along?"'],
        ["travel 2", "bob:1 after ann:1", '"I do."'],
    ]
    held = lines(command("held", "travel", "--json"))
    assert [(one["sender"], one["seq"], one["missing"]) for one in held] == [("eli", 1, [["zoe", 0, 7]])]


def test_a_record_with_line_breaks_is_one_line_and_the_state_file_may_be_named_in_the_settings_file(
    command: Command, sent_by_file: "subprocess.CompletedProcess[bytes]", state_file: Path
) -> None:
    assert (sent_by_file.returncode, sent_by_file.stdout) == (0, b"bob:1\n")
    assert state_file.exists()
    told = lines(command("tail", "lines", "--from-beginning", "--count", "2", "--json"))
    assert [one["sender"] for one in told] == ["ann", "bob"]


def test_the_broker_says_where_it_is_and_ends_at_ctrl_c_with_0(tmp_path: Path) -> None:
    arguments = [sys.executable, "-m", "precede", "broker", "--data", str(tmp_path / "kafka")]
    with subprocess.Popen(arguments, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        bootstrap = running.stdout.readline().strip()
        taken = precede("broker", "--port", bootstrap.split(":")[1])
        refused = precede("broker", "--data", tmp_path / "kafka")
        ended = precede("tail", "--seconds", "1", "--bootstrap", bootstrap)
        os.kill(running.pid, signal.SIGINT)
        assert running.wait(40) == 0
    assert (taken.returncode, taken.stderr.count(b"\n")) == (1, 1)
    assert b"is not available" in taken.stderr
    assert (refused.returncode, refused.stderr.count(b"\n")) == (1, 1)
    assert b"Another broker runs" in refused.stderr
    assert (ended.returncode, ended.stderr.count(b"\n")) == (0, 1)
    assert ended.stderr.startswith(b"Waiting for the topic precede.ordered")


ENDLESS = [["tail"], ["run", "--bootstrap", "127.0.0.1:1"], ["broker"]]


@pytest.fixture(scope="module")
def endless(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> "Iterator[dict[str, subprocess.Popen[bytes]]]":
    """Commands that go on for ever, side by side, after nine seconds."""
    running = {
        arguments[0]: subprocess.Popen(
            [sys.executable, "-m", "precede", *arguments],
            cwd=tmp_path_factory.mktemp(arguments[0]),
            stderr=subprocess.PIPE,
            env=at_home() | {"PRECEDE_BOOTSTRAP": broker.bootstrap},
        )
        for arguments in ENDLESS
    }
    time.sleep(9)
    yield running
    for one in running.values():
        one.kill()


@pytest.mark.parametrize("name", [arguments[0] for arguments in ENDLESS])
def test_ctrl_c_ends_what_goes_on_for_ever_with_0_and_no_traceback(
    endless: "dict[str, subprocess.Popen[bytes]]", name: str
) -> None:
    running = endless[name]
    assert running.poll() is None
    running.send_signal(signal.SIGINT)
    said = running.communicate(timeout=40)[1].decode()
    assert running.returncode == 0, said
    assert "Traceback" not in said


def at_home() -> dict[str, str]:
    """An environment that finds precede from any folder."""
    return os.environ | {"PYTHONPATH": str(ROOT)}


def test_the_demo_ends_by_itself_with_a_summary_and_commands_that_work(tmp_path: Path) -> None:
    arguments = [sys.executable, "-m", "precede", "demo", "--seconds", "6"]
    done = subprocess.run(arguments, cwd=tmp_path, env=at_home(), capture_output=True, timeout=280, check=False)
    told = done.stdout.decode()
    assert (done.returncode, done.stderr) == (0, b""), told
    for line in ("Positions contiguous +yes", "Replay gives the same bytes +yes", "Still held +0", "Dead letters +0"):
        assert re.search(line, told), told
    delivered = re.search(r"contiguous +yes, 1 to (\d+)", told)
    written = re.search(r"Rows in Delta +(\d+)", told)
    assert delivered is not None
    assert written is not None
    assert delivered[1] == written[1]
    shown = [line.strip() for line in told.splitlines() if line.startswith("  ") and "precede-demo" in line]
    assert len(shown) == 2
    for line in shown:
        again = subprocess.run(
            line, shell=True, cwd=tmp_path, env=at_home(), capture_output=True, timeout=60, check=False
        )
        assert again.returncode == 0
        assert again.stdout.count(b"\n") >= int(delivered[1]) - 1
