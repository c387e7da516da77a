"""The verdicts of benchmarks and of the soak; `make bench` and `make soak` do the measuring."""

import io
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from bench import __main__ as bench
from bench import soak
from bench.figures import Figure, Report


@pytest.mark.parametrize(
    ("value", "more", "status", "said"),
    [
        (0.5, [], 0, "All targets reached."),
        (0.4, [], 1, "Missed: flood: the others beside it"),
        (0.4, ["--quick"], 0, "Missed: flood: the others beside it"),
    ],
)
def test_a_missed_target_ends_with_1_unless_the_figures_mean_nothing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    value: float,
    more: list[str],
    status: int,
    said: str,
) -> None:
    report = Report("flood", "a few messages", [Figure(what="the others beside it", value=value, target=0.5)])
    monkeypatch.setattr(bench, "BENCHMARKS", {"flood": lambda _stage, _quick: report})
    monkeypatch.setattr(sys, "argv", ["bench", "flood", "--json", str(tmp_path / "figures.json"), *more])
    assert bench.main() == status
    assert said in capsys.readouterr().out


def verdict(late: dict[str, Any], *, drained: bool = True, problems: tuple[str, ...] = ()) -> bool:
    """The samples of a soak in which nothing changed from early to late, except this."""
    early: dict[str, Any] = {"memory_mb": 500, "state_kb": 100, "held": 20, "lag": 10, "latency_ms": (50, 90)}
    samples = [soak.Sample(at=at / 100, **(early | (late if at >= 80 else {}))) for at in range(100)]
    reader: Any = SimpleNamespace(count=1, problems=problems)
    sender: Any = SimpleNamespace(expected=1, told="", per_s=100)
    return soak._verdict(Console(file=io.StringIO()), samples, reader, sender, drained, 600)


def test_a_soak_that_stays_as_it_was_holds() -> None:
    assert verdict({})


@pytest.mark.parametrize(
    "late",
    [
        {"memory_mb": 560},
        {"state_kb": 130},
        {"held": 41},
        {"lag": 1_001},
        {"latency_ms": (80, 90)},
        {"latency_ms": (50, 190)},
        {"latency_ms": None},
    ],
)
def test_a_soak_in_which_one_thing_grows_or_nothing_comes_out_does_not_hold(late: dict[str, Any]) -> None:
    assert not verdict(late)


def test_a_soak_that_lost_something_or_has_a_hole_does_not_hold() -> None:
    assert not verdict({}, drained=False)
    assert not verdict({}, problems=("b'room-1': position 3 came after 1",))
