"""Peers, gateways, broker and job as processes on two segments, and the demo that shows them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.segments.players import HOME
from tests.segments.story import Plan, play

SURVIVORS = {"ann", "bob", "cem", "eve", "fay", "gus", "ivy", "joe"}


@pytest.mark.timeout(240)
def test_all_who_survive_have_what_the_log_has_in_a_lawful_order(tmp_path: Path) -> None:
    outcome = play(tmp_path, Plan("causal", talk_s=16))
    assert set(outcome.survivors) == SURVIVORS


@pytest.mark.timeout(180)
def test_the_demo_of_peers_ends_by_itself_and_peers_and_log_agree(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "precede", "demo", "--peers", "--seconds", "5"]
    environment = os.environ | {"PYTHONPATH": str(HOME)}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=170, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"Peers and log agree +yes", done.stdout)
    assert re.search(r"Answers after questions +yes", done.stdout)


@pytest.mark.timeout(180)
def test_ctrl_c_ends_the_demo_of_peers_with_its_summary(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "precede", "demo", "--peers", "--seconds", "100"]
    environment = os.environ | {"PYTHONPATH": str(HOME), "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True) as demo:
        assert demo.stdout is not None
        told = [next(line for line in demo.stdout if line.startswith("log "))]
        demo.send_signal(signal.SIGINT)
        told += demo.stdout
        assert demo.wait(60) == 0, told
    assert any("Messages sent" in line for line in told)
