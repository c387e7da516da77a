"""Compares this tree's rates with those of another commit, measured alternately in one run.

    python -m bench beside COMMIT [NAME ...] [--rounds N] [--quick] [--json FILE]

The files of the commit go into a temporary folder. For each of the two trees a separate process runs
bench/one_side.py, with that tree's packages and benchmarks, wherever that commit has its modules. Both read the same
messages from one file. Each has its own broker and its own Spark, and only one of them works at a time: new, old, new,
old. The first rounds warm both up and do not count.

A rate of the stream is only as exact as the machine is quiet. So the total processor time of each side, with Spark, its
workers and the broker, is compared too: other load on the machine hardly affects it.
"""

import argparse
import io
import json
import os
import resource
import subprocess
import sys
import tarfile
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any, Self

import psutil
from rich.console import Console

from bench import figures, machine, traffic
from bench.figures import Lookup, Measure, Report, by_turns, ratio

ROOT = Path(__file__).resolve().parent.parent
ONE_SIDE = Path(__file__).with_name("one_side.py")
NEW = "this tree"
LEAST = 0.97
"""What a change that is not about speed may cost: less than the noise of the machine."""
ROUNDS = 9
WARM_ROUNDS = 2
GROUPS = 1_000

MEASURED = {
    "kernel": 200_000,
    "replay": 200_000,
    "order-query": 800_000,
    "exactly-once": 800_000,
}
"""The measurements, each with its number of messages; all but `replay` run in one process per tree."""

STREAM = ("order-query", "exactly-once")


class Failed(Exception):
    """One of the two trees could not be measured."""


class Side:
    """The process that measures one tree."""

    def __init__(self, name: str, tree: Path, messages: Path) -> None:
        self.name = name
        self.tree = tree
        self.messages = messages
        self.by_processor: dict[str, list[float]] = {}
        """Messages per second of processor time, for each measurement of the stream."""
        self._process: subprocess.Popen[str] | None = None

    def stream(self, what: str, count: int) -> float:
        """Measure the stream once; returns messages per second."""
        before = self._spent_s()
        rate = self.ask(what, count)
        self.by_processor.setdefault(what, []).append(count / max(self._spent_s() - before, 0.01))
        return rate

    def _spent_s(self) -> float:
        """The processor time of this side's process and of all its descendants, including ended ones."""
        own = psutil.Process((self._process or self._start()).pid)
        spent = [process.cpu_times() for process in (own, *own.children(recursive=True))]
        return float(sum(one.user + one.system + one.children_user + one.children_system for one in spent))

    def ask(self, what: str, count: int) -> float:
        """Measure once; returns messages per second."""
        process = self._process or self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        print(json.dumps([what, count]), file=process.stdin, flush=True)
        answer = process.stdout.readline()
        if not answer:
            raise Failed(f"{self.name} ended while {what} was measured; what it said last stands above.")
        rate: float = json.loads(answer)
        return rate

    def replay(self, count: int) -> float:
        """Messages per second of processor time of `precede replay`, from the start of its process to its end."""
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        command = [sys.executable, "-P", "-m", "precede", "replay", str(self.messages)]
        with TemporaryDirectory() as folder, (Path(folder) / "out").open("w+b") as out:
            done = subprocess.run(command, stdout=out, cwd=self.tree, env=self._environment(), check=False)
            out.seek(0)
            delivered = sum(1 for _ in out)
        if done.returncode != 0 or delivered != count:
            raise Failed(f"`precede replay` of {self.name} delivered {delivered:,} of {count:,} messages.")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return count / (after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)

    def _start(self) -> "subprocess.Popen[str]":
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(ONE_SIDE), str(self.tree), str(self.messages)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=self.tree,
            env=self._environment(),
        )
        return self._process

    def _environment(self) -> dict[str, str]:
        """An environment with only this tree's packages, even for Spark's workers; round one compiles both trees."""
        of_this_tree = {"PYTHONPATH": str(self.tree), "PYTHONPYCACHEPREFIX": str(self.messages.parent / "compiled")}
        inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        return inherited | of_this_tree | {"PYTHONHASHSEED": "0"}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        """Close its input: the process then ends its broker and its Spark, and itself."""
        if self._process is None:
            return
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def main(words: list[str]) -> int:
    """Measure, print, save; returns 1 if this tree is slower than allowed."""
    parser = argparse.ArgumentParser(prog="python -m bench beside", description="This tree beside another commit.")
    parser.add_argument("commit", help="any name that git has for it")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"any of {', '.join(MEASURED)}; all, if none is given")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"how often each is measured; {ROUNDS} unless given")
    parser.add_argument("--quick", action="store_true", help="few messages, once; the figures mean nothing")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where the figures are kept; nowhere unless given")
    asked = parser.parse_intermixed_args(words)
    unknown = set(asked.names) - set(MEASURED)
    if unknown:
        parser.error(f"there is no {min(unknown)}; choose from {', '.join(MEASURED)}")
    console = Console(width=max(140, Console().width))
    about = machine.describe()
    console.print(" · ".join(about.values()))
    before, began = machine.load(), time.monotonic()
    try:
        report = measure(asked.commit, asked.names or list(MEASURED), 1 if asked.quick else asked.rounds, asked.quick)
    except Failed as failure:
        print(failure, file=sys.stderr)
        return 2
    report.load_before, report.seconds = before, round(time.monotonic() - began, 1)
    figures.show(report, console)
    console.print(f"{report.seconds:.0f} s, load before it {before}\n")
    if asked.json is not None:
        figures.keep(asked.json, about, report)
    missed = [figure.what for figure in report.figures if figure.reached is False]
    console.print(f"Missed: {'; '.join(missed)}" if missed else "All targets reached.")
    return 1 if missed and not asked.quick else 0


def measure(commit: str, names: list[str], rounds: int, quick: bool) -> Report:
    """The chosen measurements, as ratios of this tree's rate to the commit's."""
    found: dict[str, dict[str, list[float]]] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="precede-beside-")))
        other = files_of(commit, folder / "tree")
        counts = {name: 2_000 if quick else MEASURED[name] for name in names}
        for count in sorted(set(counts.values())):
            (folder / f"{count}.jsonl").write_bytes(lines(count))
        trees = ((NEW, ROOT), (other, folder / "tree"))
        sides: dict[int, list[Side]] = {
            count: [stack.enter_context(Side(name, tree, folder / f"{count}.jsonl")) for name, tree in trees]
            for count in sorted(set(counts.values()))
        }
        for name, count in counts.items():
            print(name, file=sys.stderr)
            measures = {side.name: measured(side, name, count) for side in sides[count]}
            warmed = 1 if quick else WARM_ROUNDS
            by_turns(measures, warmed)
            found[name] = by_turns(measures, rounds)
            if name in STREAM:
                found[f"{name}, processor time"] = {
                    side.name: side.by_processor[name][warmed:] for side in sides[count]
                }
    return Report(
        f"beside {other}",
        f"{', '.join(f'{name} {count:,}' for name, count in counts.items())} messages of {GROUPS:,} groups, 30 % out "
        f"of order; rounds: {rounds}",
        [
            ratio(f"{name}, to {other}", of, NEW, other, target=LEAST if name in MEASURED else None)
            for name, of in found.items()
        ],
        [_table(found, other)],
    )


def files_of(commit: str, folder: Path) -> str:
    """Put the commit's files into the folder; returns its short name."""
    try:
        name = subprocess.check_output(
            ["git", "rev-parse", "--short", "--verify", f"{commit}^{{commit}}"],
            cwd=ROOT,
            text=True,
            stderr=subprocess.DEVNULL,
        ).strip()
        archive = subprocess.check_output(["git", "archive", "--format=tar", name], cwd=ROOT)
    except (OSError, subprocess.CalledProcessError) as error:
        raise Failed(f"git has no commit {commit} here.") from error
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(folder, filter="data")
    return name


def lines(count: int) -> bytes:
    """The messages that both trees read, one per line."""
    return b"\n".join(value for _, value in traffic.whole(GROUPS, count)) + b"\n"


def measured(side: Side, name: str, count: int) -> Measure:
    """A function that measures this once on that side."""
    if name == "replay":
        return partial(side.replay, count)
    return partial(side.stream if name in STREAM else side.ask, name, count)


def _table(found: dict[str, dict[str, list[float]]], other: str) -> Lookup:
    """The spread of the rounds: a ratio is no more exact than that."""
    rows: list[list[str]] = []
    for name, of in found.items():
        ratios = [new / old for new, old in zip(of[NEW], of[other], strict=True)]
        rows.append([name, *(f"{one:.2f}" for one in ratios), f"{_quartile(ratios, 1):.2f}-{_quartile(ratios, 3):.2f}"])
    numbers = [str(number + 1) for number in range(max(len(row) for row in rows) - 2)]
    return Lookup(
        "The ratio of each round, and between which the middle half of them lies", ["", *numbers, "half"], rows
    )


def _quartile(values: list[Any], number: int) -> float:
    """Not statistics.quantiles, which needs more than one value."""
    at = (len(values) - 1) * number / 4
    low, ordered = int(at), sorted(values)
    high = min(low + 1, len(ordered) - 1)
    return float(ordered[low] + (ordered[high] - ordered[low]) * (at - low))
