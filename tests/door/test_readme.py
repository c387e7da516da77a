"""The README's example of the kernel runs, and prints the output shown below it."""

import re
import subprocess
import sys

from tests.door.command import ROOT

README = (ROOT / "README.md").read_text()
PROGRAM, SAID = re.findall(r"^```python\n(.*?)^```\n.*?^```text\n(.*?)^```", README, re.MULTILINE | re.DOTALL)[0]


def test_the_kernel_in_the_readme_runs_and_says_what_stands_beneath_it() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        timeout=30,
        check=False,
    )
    assert (done.returncode, done.stderr.decode()) == (0, "")
    assert done.stdout.decode() == SAID


def test_the_kernel_in_the_readme_is_the_example() -> None:
    example = (ROOT / "examples" / "order_messages.py").read_text()
    assert example.endswith(PROGRAM)
