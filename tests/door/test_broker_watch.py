"""The thread that asks Kafka how far topics reach; without a broker."""

from __future__ import annotations

import threading
import time

import pytest

from precede.streaming.job import broker_watch, settings
from precede.streaming.job.broker_watch import BrokerWatch

asked: list[float] = []
has_asked_again = threading.Event()


def no_token() -> tuple[str, float]:
    asked.append(time.monotonic())
    if len(asked) == 3:
        has_asked_again.set()
    raise OSError("the token server is away")


def test_who_gets_no_token_at_first_asks_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_watch, "EVERY_S", 0.01)
    known = {"sasl_token_provider": f"{__name__}:no_token", "security_protocol": "SASL_PLAINTEXT"}
    watch = BrokerWatch(settings.load({"bootstrap": "127.0.0.1:1", **known}, {}))
    watch.start()
    try:
        assert has_asked_again.wait(5)
    finally:
        began = time.monotonic()
        watch.stop()
    assert time.monotonic() - began < broker_watch.ANSWER_S
