"""The engines of precede beside the plain loop: the same kernel with no state, no dead letters, no owner and no token.

They are started by their command lines, one at a time, on one broker, and read the same topics.
"""

from functools import partial
from statistics import median

from bench.figures import Figure, Report, by_turns
from bench.peers.engines import PLAIN, PROCESS, SPARK
from bench.peers.ground import Ground
from bench.peers.measures import Backlog, Steady, backlog, killed, steady
from bench.peers.reference import Sequences
from bench.stage import Stage
from precede.streaming.settings import Settings

MANY = 100_000
GROUPS = 1_000
TO_PLAIN = 0.85
MANY_TO_FEW = 0.6
P50_MS_MAX, P99_MS_MAX = 20.0, 60.0
CORES_MAX, IDLE_CORES_MAX = 0.25, 0.02
FIRST_S_MAX, FIRST_AFTER_KILL_S_MAX = 1.5, 3.0


def run(stage: Stage, quick: bool) -> Report:
    """The process engine has the targets. Spark is measured beside it, except in a quick run."""
    count, repeats, seconds = (5_000, 1, 2) if quick else (1_000_000, 3, 20)
    ground = Ground(stage, print)
    ours = [PROCESS] if quick else [PROCESS, SPARK]
    few, many = ground.backlog(GROUPS, count), ground.backlog(MANY, count)
    figures = _to_plain(ground, ours, *few, repeats=repeats)
    figures += _many(ground, few, many, repeats)
    for name in (PLAIN, *ours):
        for per_s in (200,) if quick else (1_000, 5_000):
            found = steady(ground, name, per_s, seconds, *((1, 2) if quick else ()))
            figures += _steady(name, per_s, found, alone=per_s <= 1_000)
    if not quick:  # nothing would be left of so short a backlog
        figures += [_killed(ground, name, *few) for name in ours]
    return Report(
        "engines",
        f"{count:,} messages of {GROUPS:,} and {MANY:,} groups, 30 % out of order, every sequence checked; "
        f"steady rates in order, {seconds} s each",
        figures,
    )


def _to_plain(ground: Ground, ours: list[str], raw: Settings, wanted: Sequences, *, repeats: int) -> list[Figure]:
    """Rates on a backlog, per second and per second of processor time, as ratios to the plain loop."""
    found: dict[str, list[Backlog]] = {name: [] for name in (PLAIN, *ours)}
    by_turns({name: partial(_rate, ground, name, raw, wanted, runs) for name, runs in found.items()}, repeats)
    return [
        Figure(
            what=f"{name} to the {PLAIN}, {what}",
            value=round(
                median(
                    getattr(mine, field) / getattr(plain, field)
                    for mine, plain in zip(found[name], found[PLAIN], strict=True)
                ),
                3,
            ),
            target=TO_PLAIN if name == PROCESS else None,
            sides={side: round(median(getattr(one, field) for one in found[side])) for side in (name, PLAIN)},
            sides_unit=what,
        )
        for name in ours
        for field, what in (("per_s", "messages/s"), ("per_cpu_s", "messages per CPU second"))
    ]


def _many(
    ground: Ground, few: tuple[Settings, Sequences], many: tuple[Settings, Sequences], repeats: int
) -> list[Figure]:
    """The rate with many groups to that with few; `order-query` has the same of Spark."""
    sides = {f"{groups:,} groups": raw for groups, raw in ((GROUPS, few), (MANY, many))}
    found = by_turns({side: partial(_rate, ground, PROCESS, *raw, []) for side, raw in sides.items()}, repeats)
    ratios = [slow / fast for fast, slow in zip(*found.values(), strict=True)]
    return [
        Figure(
            what=f"{PROCESS}, {MANY:,} groups to {GROUPS:,}",
            value=round(median(ratios), 3),
            target=MANY_TO_FEW,
            sides={side: round(median(rates)) for side, rates in found.items()},
        )
    ]


def _rate(ground: Ground, name: str, raw: Settings, wanted: Sequences, runs: list[Backlog]) -> float:
    """Messages per second through a backlog; the run is added to the list."""
    found = backlog(ground, name, raw, wanted)
    assert found.sequence == "right", f"{name}: {found.sequence}"
    runs.append(found)
    return found.per_s


def _steady(name: str, per_s: int, found: Steady, *, alone: bool) -> list[Figure]:
    """The figures of a rate and, if this run stands alone for them, those that no rate changes."""
    at = f"{name}, {per_s:,} messages/s"
    values = [
        (f"{at}: p50", found.p50_ms, "ms", P50_MS_MAX),
        (f"{at}: p99", found.p99_ms, "ms", P99_MS_MAX),
        (f"{at}: cores", found.cores, "cores", CORES_MAX),
    ]
    if alone:
        values += [
            (f"{name}, no messages: cores", found.idle_cores, "cores", IDLE_CORES_MAX),
            (f"{name}: first record after the start", found.first_s, "s", FIRST_S_MAX),
        ]
    return [
        Figure(
            what=what,
            value=round(value, 4),
            unit=unit,
            target=target if name == PROCESS else None,
            more_is_better=False,
        )
        for what, value, unit, target in values
    ]


def _killed(ground: Ground, name: str, raw: Settings, wanted: Sequences) -> Figure:
    found = killed(ground, name, raw, wanted)
    assert found.sequence == "right", f"{name} after kill -9: {found.sequence}"
    return Figure(
        what=f"{name}: first record after kill -9",
        value=round(found.first_s, 3),
        unit="s",
        target=FIRST_AFTER_KILL_S_MAX if name == PROCESS else None,
        more_is_better=False,
    )
