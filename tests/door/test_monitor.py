"""Threads that look at something again and again: they outlive every error, and say what does not pass."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from precede.ingest.kafka.topics import Retention
from precede.ingest.service import broker_monitor, monitor
from precede.ingest.service.broker_monitor import BrokerMonitor
from precede.ingest.service.monitor import STOP_S, Monitor, troubles
from precede.streaming import settings
from precede.streaming.monitoring import retention_monitor
from precede.streaming.monitoring.retention_monitor import RetentionMonitor
from precede.streaming.monitoring.server import judge
from precede.streaming.order import ownership
from precede.streaming.order.ownership import OwnerMonitor
from precede.streaming.settings import Settings
from precede.udfs.errors import Unreachable


class Asked:
    """A token provider, and who asked it how often."""

    def __init__(self) -> None:
        self.count = 0
        self.has_asked_again = threading.Event()

    def __call__(self) -> tuple[str, float]:
        self.count += 1
        if self.count == 3:
            self.has_asked_again.set()
        raise OSError("the token server is away")


no_token = Asked()


def _broker(settings: Settings) -> Any:
    return BrokerMonitor(settings.bootstrap, settings.raw_topic)


def _retention(settings: Settings) -> Any:
    return RetentionMonitor(settings, Retention(1_000, None), dict)


def _owner(settings: Settings) -> Any:
    return OwnerMonitor(SimpleNamespace(settings=settings), lambda _: None)  # type: ignore[arg-type]


@pytest.mark.parametrize("make", [_broker, _retention, _owner])
def test_who_gets_no_token_at_first_asks_again(
    make: Callable[[Settings], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module, name in ((broker_monitor, "EVERY_S"), (retention_monitor, "EVERY_S"), (ownership, "IDLE_LOOK_S")):
        monkeypatch.setattr(module, name, 0.01)
    no_token.__init__()  # type: ignore[misc]
    known = {"sasl_token_provider": f"{__name__}:no_token", "security_protocol": "SASL_PLAINTEXT"}
    one = make(settings.load({"bootstrap": "127.0.0.1:1", **known}, {}))
    one.start()
    try:
        assert no_token.has_asked_again.wait(5)
        one.start()  # as a query does that starts again
    finally:
        began = time.monotonic()
        one.stop()
    assert time.monotonic() - began < STOP_S
    one.start()  # what has ended stays as it is


class Looks:
    """Looks that raise what is to be raised."""

    def __init__(self) -> None:
        self.raises: Exception | None = None
        self.opened = 0
        self._looked = threading.Condition()
        self._count = 0

    @contextmanager
    def open(self) -> Iterator[Looks]:
        self.opened += 1
        yield self

    def look(self, _client: Looks) -> None:
        with self._looked:
            self._count += 1
            self._looked.notify_all()
        if self.raises is not None:
            raise self.raises

    def wait_for_more(self, more: int = 3) -> None:
        with self._looked:
            until = self._count + more
            assert self._looked.wait_for(lambda: self._count >= until, 10)


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Iterator[Looks]:
    monkeypatch.setattr(monitor, "LAST_PAUSE_S", 0.01)
    looks = Looks()
    one = Monitor("test-monitor", looks.look, opens=looks.open, every_s=0.01, undone="nothing is tested")
    one.start()
    yield looks
    one.stop()
    assert not one.runs
    assert troubles() == []


def test_what_passes_is_not_said_and_the_client_is_kept(looks: Looks, caplog: pytest.LogCaptureFixture) -> None:
    looks.raises = Unreachable("No broker answers.")
    looks.wait_for_more()
    assert (troubles(), caplog.messages, looks.opened) == ([], [], 1)


def test_what_does_not_pass_is_said_once_and_shows_in_health_until_it_does(
    looks: Looks, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(monitor, "QUIET_S", 0.0)
    looks.raises = Unreachable("No broker answers.")
    looks.wait_for_more()
    sentence = "The thread test-monitor has failed for 0 s: No broker answers. Until it works again, nothing is tested."
    assert caplog.messages == [sentence]
    health = judge([], time.monotonic(), time.monotonic())
    assert sentence in health.problems
    looks.raises = None
    looks.wait_for_more()
    assert caplog.messages == [sentence, "The thread test-monitor works again."]
    assert sentence not in judge([], time.monotonic(), time.monotonic()).problems


def test_an_error_in_precede_is_said_with_its_traceback_and_the_thread_goes_on_with_a_new_client(
    looks: Looks, caplog: pytest.LogCaptureFixture
) -> None:
    looks.raises = ZeroDivisionError("division by zero")
    looks.wait_for_more()
    (record,) = caplog.records
    assert (record.levelno, record.name) == (logging.ERROR, "precede")
    assert record.exc_info is not None
    (trouble,) = troubles()
    why = "The thread test-monitor fails by an error in precede: ZeroDivisionError: division by zero."
    assert trouble == f"{why} Until it works again, nothing is tested."
    assert looks.opened >= 3
