"""What the job says of a store that fails, and when the store is asked at all."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from precede.streaming.monitoring.query_keeper import QueryKeeper
from precede.streaming.places.place import LocalPlace, Place
from precede.streaming.spark import store_monitor
from precede.streaming.spark.store_monitor import StoreMonitor


class Shown:
    """A watch of two places in one store, whose answer is set, and what it says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.trouble: str | None = None
        self.asked = 0
        self.said: list[str] = []
        monkeypatch.setattr(LocalPlace, "trouble", lambda _place: self._answer())
        monkeypatch.setattr(LocalPlace, "location", property(lambda place: f"s3a://bucket{place.path}"))
        self.query = QueryKeeper("order", self._never, self._say, 60.0, lambda *_: None, 5.0)
        places: list[Place] = [LocalPlace(Path("/checkpoint")), LocalPlace(Path("/delta"))]
        self.watch = StoreMonitor(places, [self.query], self._say)

    def look(self, *, silent_s: float) -> None:
        self.query.progress_at = time.monotonic() - silent_s
        self.watch._began_at = self.query.progress_at
        self.watch.look_if_silent()

    def _answer(self) -> str | None:
        self.asked += 1
        return self.trouble

    def _say(self, sentence: str, **_about: Any) -> None:
        self.said.append(sentence)

    @staticmethod
    def _never() -> Any:
        raise AssertionError("nothing starts here")


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> Shown:
    return Shown(monkeypatch)


def test_a_store_is_not_asked_while_queries_make_progress(shown: Shown) -> None:
    shown.trouble = "it takes no connections"
    shown.look(silent_s=store_monitor.SILENT_S + 4.0)
    assert (shown.asked, shown.said) == (0, [])
    shown.look(silent_s=store_monitor.SILENT_S + 6.0)
    assert shown.asked == 1, "one place stands for its store"


def test_a_failing_store_is_told_once_and_so_is_its_return(shown: Shown) -> None:
    shown.trouble = "it does not answer"
    for _ in range(3):
        shown.look(silent_s=60.0)
    fails = "The store s3a://bucket fails: it does not answer; nothing is lost, and the job continues when it works."
    assert shown.said == [fails]
    shown.trouble = None
    shown.look(silent_s=1.0)
    shown.look(silent_s=1.0)
    assert shown.said == [fails, "The store s3a://bucket works again."]
    assert shown.asked == 4


def test_a_slow_batch_with_a_store_that_works_says_nothing(shown: Shown) -> None:
    shown.look(silent_s=600.0)
    shown.query.done = True
    shown.look(silent_s=600.0)
    assert (shown.asked, shown.said) == (1, [])
