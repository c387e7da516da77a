"""`python -m bench.peers [NAME ...] [--messages N] [--json FILE]`: the engines, one after the other, as a table."""

import argparse
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

# As in the job: what is ordered must not depend on it, and two runs are alike.
os.environ.setdefault("PYTHONHASHSEED", "0")

from rich.console import Console

from bench import figures, machine
from bench.figures import Report
from bench.peers import engines, measures, programs, table
from bench.peers.ground import Ground
from bench.peers.measures import Stuck
from bench.peers.table import Measured
from bench.stage import Stage
from precede.udfs.errors import Refused

GROUPS = 1_000
One = TypeVar("One")


def main() -> int:
    """Measure and print; returns 1 if an engine that promises the sequence did not keep it."""
    if sys.argv[1:] == ["pin"]:
        programs.pin()
        return 0
    asked = _asked()
    names = asked.names or engines.USUAL
    console = Console(width=max(180, Console().width))
    description = machine.describe()
    console.print(" · ".join(description.values()))
    before, began = machine.load(), time.monotonic()
    with Stage() as stage:
        try:
            found = _measure(Ground(stage, _say), names, asked)
        except Refused as refusal:
            print(refusal, file=sys.stderr)
            return 2
    base = engines.PLAIN if engines.PLAIN in found else names[0]
    report = Report(
        "peers",
        f"{asked.messages:,} messages of {GROUPS:,} groups, 30 % out of order, 1 % repeated; then {asked.per_s:,} "
        f"messages/s in order for {asked.seconds} s",
        [],
        [table.measured(found), table.ratios(found, base)],
    )
    report.load_before, report.seconds = before, round(time.monotonic() - began, 1)
    figures.show(report, console)
    for name in found:
        console.print(f"{name}: {engines.ENGINES[name].about}")
    console.print(f"{report.seconds:.0f} s, load before it {before}")
    if asked.json is not None:
        figures.keep(asked.json, description, report)
    return 1 if any(_wrong(name, one) for name, one in found.items()) else 0


def _asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.peers", description="precede's engines and other engines, on one broker, one by one."
    )
    names = ", ".join(f"'{name}'" if " " in name else name for name in engines.ENGINES)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"any of {names}; all but the 10 ms one by default")
    parser.add_argument("--messages", type=int, default=2_000_000, help="of the backlogs; 2,000,000 unless given")
    parser.add_argument("--per-s", type=int, default=1_000, help="messages per second at the steady rate; 1,000")
    parser.add_argument("--seconds", type=int, default=30, help="how long the steady rate is measured; 30")
    parser.add_argument("--warm", type=int, metavar="SECONDS", help="time to warm up before; each engine's own")
    parser.add_argument("--only", choices=("backlog", "steady", "killed"), help="one of the three measurements")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where the figures are kept; nowhere unless given")
    asked = parser.parse_args()
    unknown = set(asked.names) - set(engines.ENGINES)
    if unknown:
        parser.error(f"there is no engine {min(unknown)}; choose from {names}")
    return asked


def _measure(ground: Ground, names: list[str], asked: argparse.Namespace) -> dict[str, Measured]:
    found = {name: Measured() for name in names}
    raw, wanted = ground.backlog(GROUPS, asked.messages)
    _say(f"The sequence that must come out has the digest {wanted.digest()}")
    for name, one in found.items():
        if asked.only in (None, "backlog"):
            one.backlog = _tried(name, one, "backlog", partial(measures.backlog, ground, name, raw, wanted))
        if asked.only in (None, "steady"):
            steady = partial(measures.steady, ground, name, asked.per_s, asked.seconds, asked.warm)
            one.steady = _tried(name, one, "steady", steady)
        if asked.only in (None, "killed"):
            one.killed = _tried(name, one, "killed", partial(measures.killed, ground, name, raw, wanted))
    return found


def _tried(name: str, one: Measured, what: str, measure: Callable[[], One]) -> One | None:
    """The figures; an engine that fails is noted, and the others are measured all the same."""
    try:
        figures = measure()
    except Stuck as problem:
        one.problems.append(f"{what}: failed")
        _say(f"{name}, {what}: {problem}")
        return None
    _say(f"{name}, {what}: {figures}")
    return figures


def _wrong(name: str, one: Measured) -> bool:
    """The plain loop keeps no state, so after a kill it cannot be right."""
    killed = one.killed is not None and one.killed.sequence != "right" and name != engines.PLAIN
    return bool(one.problems) or killed or (one.backlog is not None and one.backlog.sequence != "right")


def _say(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
