"""When ticks are due; that they reach the log is tested with a broker."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest

from precede.streaming.job.ticker import Ticker
from precede.streaming.settings import Settings


@pytest.fixture
def moments(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The clock, which the test moves."""
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def pauses(settings: Settings, now: list[float], held: int, seen: Sequence[tuple[int, ...]]) -> list[float]:
    """The time between two ticks, one after the other, as long as these numbers are seen."""
    ticks = Ticker(settings, [])
    found = []
    for numbers in seen:
        began = now[0]
        last = ticks._last
        while ticks._last == last:
            ticks.tick_if_due(held, numbers)
            now[0] += 0.25
        now[0] = ticks._last
        found.append(now[0] - began)
    return found


def test_while_messages_are_held_ticks_come_at_an_even_pace(moments: list[float]) -> None:
    settings = Settings(bootstrap="127.0.0.1:1", tick_s=1.0)
    assert pauses(settings, moments, 3, [(1,)] * 6) == [0, 1, 1, 1, 1, 1]
    assert pauses(settings, moments, 0, [(1,)] * 3) == [0, 10, 10]


def test_in_a_store_ticks_become_seldom_while_nothing_else_comes_and_are_soon_back(moments: list[float]) -> None:
    settings = Settings(bootstrap="127.0.0.1:1", checkpoint="s3a://bucket/checkpoint", tick_s=1.0)
    assert pauses(settings, moments, 3, [(1,)] * 9) == [0, 1, 2, 4, 8, 16, 32, 60, 60]
    assert pauses(settings, moments, 3, [(1,)] * 5 + [(2,)] * 4) == [0, 1, 2, 4, 8, 1, 1, 2, 4]
    assert pauses(settings, moments, 0, [(1,)] * 5) == [0, 10, 20, 40, 60]


def test_ticks_never_stop_however_long_nothing_comes(moments: list[float]) -> None:
    settings = Settings(bootstrap="127.0.0.1:1", checkpoint="s3a://bucket/checkpoint", tick_s=1.0)
    assert pauses(settings, moments, 3, [(1,)] * 2_000)[-1] == 60


@pytest.mark.parametrize(
    ("given", "pause_ms"),
    [({}, 0), ({"checkpoint": "s3a://b/c"}, 5_000), ({"checkpoint": "s3a://b/c", "trigger_ms": 0}, 0)],
)
def test_in_a_store_batches_are_some_seconds_apart_unless_a_setting_says_otherwise(
    given: dict[str, object], pause_ms: int
) -> None:
    assert Settings(**given).pause_ms == pause_ms  # type: ignore[arg-type]
