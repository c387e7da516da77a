"""CONTRIBUTING's recipe for a new order, followed word by word in a copy of the repository."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from precede.udfs.orders import ORDERS

ROOT = Path(__file__).parent.parent.parent
COPIED = ("udfs", "ingest", "streaming", "precede", "tests", "bench", "pyproject.toml")
STEP = re.compile(
    r"^For the \w+ step, (at the end of )?`([\w/]+\.py)`:\n\n```python\n(.*?)^```$", re.MULTILINE | re.DOTALL
)


def steps() -> list[tuple[bool, str, str]]:
    """The page's additions: whether to append to an existing file, the file, and the code."""
    page = (ROOT / "CONTRIBUTING.md").read_text()
    return [(bool(at_the_end), path, code) for at_the_end, path, code in STEP.findall(page)]


def register(init: Path, module: str, class_: str) -> None:
    """Import the class, and add it at the end of the tuple."""
    text = init.read_text()
    text = text.replace("\n\nORDERS", f"\nfrom precede.udfs.orders.{module} import {class_}\n\nORDERS")
    text, found = re.subn(r"for order in \(([^)]*)\)", rf"for order in (\1, {class_})", text)
    assert found == 1, "the tuple of udfs/orders/__init__.py differs from the recipe"
    init.write_text(text)


@pytest.fixture(scope="module")
def followed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the repository with the steps applied."""
    copy = tmp_path_factory.mktemp("recipe") / "copy"
    copy.mkdir()
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, copy / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, copy / name)
    for at_the_end, path, code in steps():
        file = copy / path
        assert file.exists() == at_the_end, f"{path} should not exist yet, or should"
        file.write_text(f"{file.read_text()}\n\n{code}" if at_the_end else code)
        if file.parent.name == "orders":
            found = re.search(r"^class (\w+)\(Order\):", code, re.MULTILINE)
            assert found is not None
            register(file.parent / "__init__.py", file.stem, found[1])
    return copy


def run(copy: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A Python process that imports only the copy."""
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=copy,
        env=os.environ | {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_recipe_shows_an_order_its_law_and_its_tests() -> None:
    assert [path for _, path, _ in steps()] == [
        "udfs/orders/thread.py",
        "tests/simulation.py",
        "tests/kernel/test_thread.py",
    ]
    assert "thread" not in ORDERS, "the example must be a new order"


def test_an_order_written_by_the_recipe_delivers_1_2_3(followed: Path) -> None:
    program = """
import json
from precede.udfs.holdback import Holdback

kernel = Holdback(order="thread")
for offset, seq in enumerate((3, 2, 1)):
    record = {"group": "g", "sender": "a", "seq": seq, "after": []}
    kernel.receive(json.dumps(record).encode(), b"g", 0, offset, 10 * offset)
print([json.loads(one)["seq"] for one in kernel.ordered])
"""
    done = run(followed, "-c", program)
    assert (done.stdout, done.stderr) == ("[1, 2, 3]\n", "")


def test_the_laws_run_over_an_order_written_by_the_recipe(followed: Path) -> None:
    tests = [f"tests/kernel/{name}.py" for name in ("test_laws", "test_arrive", "test_thread")]
    done = run(followed, "-m", "pytest", "-q", "-rA", "-k", "thread or every_order_has", *tests)
    assert done.returncode == 0, done.stdout + done.stderr
    for law in ("what_has_all_it_needs", "what_is_held_names", "the_same_log_gives_the_same", "arrive_answers"):
        assert re.search(rf"^PASSED \S*test_{law}\w*\[thread\]", done.stdout, re.MULTILINE), f"{law} did not run"
    assert "test_thread.py::test_an_answer_waits" in done.stdout
