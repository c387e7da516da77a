"""The page that follows one message through the rooms: what it names exists, and it never turns back."""

from __future__ import annotations

import ast
import re
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "internals" / "walk.md").read_text()
STEPS = re.findall(r"^\| `([\w/]+\.py)` \| `([\w.]+)` \|", PAGE, re.MULTILINE)
NAMED_BESIDE = [("udfs/engine/admission.py", "check"), ("udfs/engine/snapshot.py", "snapshot")]


def functions(path: Path) -> set[str]:
    """What a file defines: functions by their names, methods by class and name."""
    found: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{inner.name}" for inner in node.body if isinstance(inner, ast.FunctionDef)}
    return found


def test_every_function_on_the_way_of_a_message_exists() -> None:
    assert len(STEPS) > 15
    for path, name in [*STEPS, *NAMED_BESIDE]:
        assert f"`{path}`" in PAGE
        assert name in functions(ROOT / path), f"{path} has no {name}"


def test_the_way_of_a_message_has_no_turn_back() -> None:
    files = [path for path, _ in groupby(path for path, _ in STEPS)]
    assert len(files) == len(set(files)), "a file is visited again after the message has left it"
    rooms = [room for room, _ in groupby(path.partition("/")[0] for path in files)]
    assert rooms == ["precede", "ingest", "streaming", "udfs", "streaming", "ingest", "precede"]
