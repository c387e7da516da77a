"""`python -m bench [NAME ...] [--quick] [--json FILE]`: measure, print, keep.

`python -m bench beside COMMIT` measures this tree beside another commit (bench/beside.py).
"""

import argparse
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

# Set before Spark's gateway starts: workers must import the same code as this process.
os.environ.setdefault("PYTHONHASHSEED", "0")

from rich.console import Console

from bench import (
    beside,
    checking,
    driver,
    engines,
    exactly_once,
    figures,
    growth,
    history,
    idle,
    jobs,
    latency,
    live,
    machine,
    neighbour,
    order_query,
    orders,
    partitions,
    places,
    replay,
    resting,
    restore,
    state,
    state_topic,
)
from bench.figures import Report
from bench.segment import suite as peers
from bench.stage import Stage

BENCHMARKS: dict[str, Callable[[Stage, bool], Report]] = {
    "replay": replay.run,
    "orders": orders.run,
    "growth": growth.run,
    "checking": checking.run,
    "state": state.run,
    "order-query": order_query.run,
    "partitions": partitions.run,
    "state-topic": state_topic.run,
    "exactly-once": exactly_once.run,
    "restore": restore.run,
    "latency": latency.run,
    "live": live.run,
    "history": history.run,
    "neighbour": neighbour.run,
    "idle": idle.run,
    "engines": engines.run,
    "resting": resting.run,
    "peers": peers.run,
    "jobs": jobs.run,
    "driver": driver.run,
    "places": places.run,
}
RESULTS = Path(__file__).with_name("figures.json")


def main() -> int:
    """Run the chosen benchmarks, or all; returns 1 if a target is missed, ignoring figures without meaning."""
    if sys.argv[1:2] == ["beside"]:
        return beside.main(sys.argv[2:])
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description="precede against the plain ways, as ratios. `python -m bench beside COMMIT` compares two commits.",
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"any of {', '.join(BENCHMARKS)}; all by default")
    parser.add_argument(
        "--quick", action="store_true", help="the smallest sizes, to see that everything runs; the figures mean nothing"
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="where to save the figures (without --quick: bench/figures.json)"
    )
    asked = parser.parse_args()
    unknown = set(asked.names) - set(BENCHMARKS)
    if unknown:
        parser.error(f"there is no benchmark {min(unknown)}; choose from {', '.join(BENCHMARKS)}")
    path = asked.json or (None if asked.quick else RESULTS)
    console = Console(width=max(140, Console().width))
    about = machine.describe()
    console.print(" · ".join(about.values()))
    missed = []
    with Stage() as stage:
        for name in asked.names or BENCHMARKS:
            before, began = machine.load(), time.monotonic()
            report = BENCHMARKS[name](stage, asked.quick)
            report.load_before, report.seconds = before, round(time.monotonic() - began, 1)
            figures.show(report, console)
            console.print(f"{report.seconds:.0f} s, load before it {before}\n")
            if path is not None:
                figures.keep(path, about, report)
            missed += [f"{name}: {figure.what}" for figure in report.figures if figure.reached is False]
    console.print(f"Missed: {'; '.join(missed)}" if missed else "All targets reached.")
    return 1 if missed and not asked.quick else 0


if __name__ == "__main__":
    sys.exit(main())
