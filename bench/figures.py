"""Figures: what was measured, against what, and whether it reaches its target."""

import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median

import msgspec
from rich.console import Console
from rich.table import Table

Measure = Callable[[], float]


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """One figure; with `target` None it is only printed."""

    what: str
    value: float
    unit: str = "x"
    target: float | None = None
    more_is_better: bool = True
    sides: dict[str, float] = {}
    """The two sides of the ratio: their medians."""
    sides_unit: str = "messages/s"

    @property
    def reached(self) -> bool | None:
        if self.target is None:
            return None
        return self.value >= self.target if self.more_is_better else self.value <= self.target


class Lookup(msgspec.Struct, frozen=True):
    """A measured table that answers a question rather than meets a target."""

    title: str
    columns: list[str]
    rows: list[list[str]]


class Report(msgspec.Struct):
    """The results of one benchmark, with its sizes and load."""

    name: str
    sizes: str
    figures: list[Figure]
    lookups: list[Lookup] = []
    load_before: float = 0.0
    seconds: float = 0.0


def by_turns(sides: dict[str, Measure], repeats: int) -> dict[str, list[float]]:
    """Run each side once, then each again, so that other load on the machine affects all alike."""
    found: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(repeats):
        for name, measure in sides.items():
            found[name].append(measure())
            print(f"  {name}: {found[name][-1]:,.0f}", file=sys.stderr, flush=True)
    return found


def ratio(
    what: str,
    found: dict[str, list[float]],
    ours: str,
    theirs: str,
    *,
    target: float | None,
    more_is_better: bool = True,
    unit: str = "messages/s",
) -> Figure:
    """The median ratio of ours to theirs over the repeats."""
    ratios = [mine / plain for mine, plain in zip(found[ours], found[theirs], strict=True)]
    return Figure(
        what=what,
        value=round(median(ratios), 3),
        target=target,
        more_is_better=more_is_better,
        sides={side: round(median(found[side]), 3) for side in (ours, theirs)},
        sides_unit=unit,
    )


def show(report: Report, console: Console) -> None:
    """The report as text."""
    table = Table(title=f"{report.name}: {report.sizes}", title_justify="left", expand=False)
    for column in ("figure", "found", "target", "", "of"):
        table.add_column(column, justify="right" if column in ("found", "target") else "left")
    for figure in report.figures:
        sign = "at least" if figure.more_is_better else "at most"
        target = "" if figure.target is None else f"{sign} {figure.target:g} {figure.unit}"
        verdict = {True: "[green]pass[/]", False: "[red]miss[/]", None: ""}[figure.reached]
        sides = " · ".join(f"{side} {_number(value)}" for side, value in figure.sides.items())
        found = f"{_number(figure.value)} {figure.unit}"
        table.add_row(figure.what, found, target, verdict, f"{sides} {figure.sides_unit}" if sides else "")
    console.print(table if report.figures else f"{report.name}: {report.sizes}")
    for lookup in report.lookups:
        table = Table(title=lookup.title, title_justify="left")
        for column in lookup.columns:
            table.add_column(column, justify="right")
        for row in lookup.rows:
            table.add_row(*row)
        console.print(table)


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


class Results(msgspec.Struct):
    """The machine-readable file: the newest report of each benchmark."""

    machine: dict[str, str]
    reports: dict[str, Report]


def keep(path: Path, machine: dict[str, str], report: Report) -> None:
    """Put a report into the file; the reports of other benchmarks stay."""
    results = Results(machine, {})
    if path.exists():
        results.reports = msgspec.json.decode(path.read_bytes(), type=Results).reports
    results.reports[report.name] = report
    path.write_bytes(msgspec.json.format(msgspec.json.encode(results), indent=1) + b"\n")
