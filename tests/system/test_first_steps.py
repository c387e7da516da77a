"""What a newcomer copies from the README: the program of a member does what it says, and ends."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from precede.local.embedded_broker import Broker
from precede.udfs.records.wire import encode_message
from tests.door.command import ROOT
from tests.system.stream import Stream

PROGRAM = re.compile(r"^```python\n(import precede\n\nwith precede\.Member\(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", ["README.md", "docs/start.md"])
def test_the_member_of_the_page_answers_ann_once_and_ends(broker: Broker, tmp_path: Path, page: str) -> None:
    stream = Stream(broker.bootstrap, tmp_path)
    stream.send([(b"travel", encode_message("travel", "ann", 0, 1, after=[], data="Who comes along?"))])
    stream.once()
    found = PROGRAM.search((ROOT / page).read_text())
    assert found is not None
    settings = stream.settings
    topics = {
        name: getattr(settings, name) for name in ("raw_topic", "ordered_topic", "progress_topic", "control_topic")
    }
    variables = {f"PRECEDE_{name.upper()}": value for name, value in topics.items()}
    variables |= {"PRECEDE_BOOTSTRAP": str(settings.bootstrap), "PRECEDE_STATE": str(tmp_path / "bob.json")}
    done = subprocess.run(
        [sys.executable, "-c", found[1]],
        cwd=ROOT,
        env=os.environ | variables,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "1 ann Who comes along?\n"), done.stderr
    stream.once()
    (ordered,) = stream.ordered().values()
    assert [re.search(rb'"sender":"(\w+)"', record)[1] for record in ordered] == [b"ann", b"bob"]  # type: ignore[index]
