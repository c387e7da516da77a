"""The small programs under examples/ run, and say what their texts promise."""

import subprocess
import sys

from tests.door.command import ROOT


def run(name: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, f"examples/{name}.py"],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        timeout=30,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    return done.stdout.decode().splitlines()


def test_the_kernel_alone_orders_four_messages_and_names_what_is_missing() -> None:
    assert run("order_messages") == [
        "arrives  bob: Me! Mountains or sea?",
        "arrives  eli: Mountains.",
        "arrives  ann: Who is in for a trip?",
        "    1  ann: Who is in for a trip?",
        "    2  bob: Me! Mountains or sea?",
        "    3  eli: Mountains.",
        "arrives  chen: Dara is right.",
        "chen:1 is held; missing: ['dara:1']",
    ]


def test_behind_lossy_gateways_nothing_is_delivered_that_misses_what_it_follows() -> None:
    said = run("lossy_gateways")
    assert said[0].startswith("1000 said, ")
    assert said[2].endswith("messages")
