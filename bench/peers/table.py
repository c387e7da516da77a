"""The figures of all engines as tables: as measured, and as ratios to one of them."""

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from bench.figures import Lookup
from bench.peers.measures import Backlog, Killed, Steady


class Measured(msgspec.Struct):
    """All figures of one engine; what was not measured, or failed, is None."""

    backlog: Backlog | None = None
    steady: Steady | None = None
    killed: Killed | None = None
    problems: list[str] = []


class Column(NamedTuple):
    part: str
    """The field of Measured, and below it the one of that part."""
    field: str
    form: str

    def of(self, one: Measured) -> float | None:
        part = getattr(one, self.part)
        return None if part is None else float(getattr(part, self.field))


COLUMNS = {
    "messages/s": Column("backlog", "per_s", "{:,.0f}"),
    "per CPU second": Column("backlog", "per_cpu_s", "{:,.0f}"),
    "p50 ms": Column("steady", "p50_ms", "{:.0f}"),
    "p99 ms": Column("steady", "p99_ms", "{:.0f}"),
    "cores": Column("steady", "cores", "{:.2f}"),
    "idle cores": Column("steady", "idle_cores", "{:.3f}"),
    "MB, steady": Column("steady", "rss_mb", "{:,.0f}"),
    "MB, backlog": Column("backlog", "rss_mb", "{:,.0f}"),
    "first record s": Column("steady", "first_s", "{:.1f}"),
    "after kill -9 s": Column("killed", "first_s", "{:.1f}"),
}


def measured(engines: Mapping[str, Measured]) -> Lookup:
    """The figures themselves, and whether the sequence was right."""
    rows = [
        [name, *(_cell(column.of(one), column.form) for column in COLUMNS.values()), _sequence(one)]
        for name, one in engines.items()
    ]
    return Lookup("As measured", ["", *COLUMNS, "sequence"], rows)


def ratios(engines: Mapping[str, Measured], base: str) -> Lookup:
    """Each figure divided by that of the base."""
    rows = []
    for name, one in engines.items():
        cells = []
        for column in COLUMNS.values():
            mine, theirs = column.of(one), column.of(engines[base])
            cells.append("-" if mine is None or not theirs else f"{mine / theirs:.2f}")
        rows.append([name, *cells])
    title = f"As ratios to the {base}: more is better in the first two columns, less in all others"
    return Lookup(title, ["", *COLUMNS], rows)


def _cell(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)


def _sequence(one: Measured) -> str:
    runs = [(what, run.sequence) for what, run in (("backlog", one.backlog), ("killed", one.killed)) if run]
    if runs and not one.problems and all(sequence == "right" for _, sequence in runs):
        return "right"
    said = [f"{what}: {sequence.partition(':')[0]}" for what, sequence in runs]
    return "; ".join([*said, *one.problems]) or "-"
