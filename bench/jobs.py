"""Several jobs: two of two partitions each beside one of four, on one machine, with the engine process."""

from functools import partial
from statistics import median

from bench.figures import Figure, Report, by_turns
from bench.peers.engines import PROCESS, TWO_JOBS
from bench.peers.ground import Ground
from bench.peers.measures import Backlog, backlog
from bench.peers.reference import Sequences
from bench.stage import Stage
from precede.streaming.settings import Settings

GROUPS = 1_000


def run(stage: Stage, quick: bool) -> Report:
    """A backlog through one job and through two; every sequence is checked."""
    count, repeats = (5_000, 1) if quick else (1_000_000, 3)
    ground = Ground(stage, print)
    raw, wanted = ground.backlog(GROUPS, count)
    found: dict[str, list[Backlog]] = {PROCESS: [], TWO_JOBS: []}
    by_turns({name: partial(_rate, ground, name, raw, wanted, runs) for name, runs in found.items()}, repeats)
    figures = [
        Figure(
            what=f"{TWO_JOBS} to one, {what}",
            value=round(median(getattr(two, field) / getattr(one, field) for one, two in _pairs(found)), 3),
            sides={side: round(median(getattr(one, field) for one in runs)) for side, runs in found.items()},
            sides_unit=what,
        )
        for field, what in (("per_s", "messages/s"), ("per_cpu_s", "messages per CPU second"))
    ]
    return Report("jobs", f"{count:,} messages of {GROUPS:,} groups in 4 raw partitions, 30 % out of order", figures)


def _pairs(found: dict[str, list[Backlog]]) -> "zip[tuple[Backlog, Backlog]]":
    return zip(found[PROCESS], found[TWO_JOBS], strict=True)


def _rate(ground: Ground, name: str, raw: Settings, wanted: Sequences, runs: list[Backlog]) -> float:
    found = backlog(ground, name, raw, wanted)
    assert found.sequence == "right", f"{name}: {found.sequence}"
    runs.append(found)
    return found.per_s
