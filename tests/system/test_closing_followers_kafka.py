"""Closing a follower from another thread over a real broker: every way of reading, with and without the broker."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from time import monotonic, sleep
from typing import Any

import pytest

import precede
from bench.small_job import SmallJob, send
from precede.ingest.kafka import topics
from precede.local.embedded_broker import Broker
from precede.reading.following import Follower
from precede.streaming.settings import Settings
from tests.records import conversation
from tests.system.stream import own_topics

WAYS: dict[str, dict[str, Any]] = {
    "committed": {},
    "one group": {"group": "group-1"},
    "kafka-python": {"client": "kafka-python"},
    "live": {"live": True},
    "consumer group": {"consumer_group": "closing"},
}


def made(broker: Broker) -> Settings:
    """Topics with some messages in them, all ordered."""
    settings = Settings(bootstrap=broker.bootstrap, partitions=2, **own_topics())
    topics.ensure(broker.bootstrap, settings.topics())
    job = SmallJob(settings)
    send(settings, conversation(60, groups=3, twice=0))
    job.drain()
    job.close()
    return settings


@pytest.fixture(scope="module")
def settings(broker: Broker) -> Settings:
    return made(broker)


class Reading:
    """A thread that reads a follower until an error ends it."""

    def __init__(self, follower: Follower) -> None:
        self.follower = follower
        self.came = 0
        self.error: Exception | None = None
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        try:
            while True:
                self.came += self.follower.poll(60.0) is not None
        except (precede.PrecedeError, RuntimeError) as error:
            self.error = error

    def wait_for(self, count: int) -> None:
        deadline = monotonic() + 30
        while self.came < count:
            assert self.error is None
            assert monotonic() < deadline, f"only {self.came} came"
            sleep(0.05)

    def end(self) -> float:
        """Close the follower; how long that took."""
        began = monotonic()
        self.follower.close()
        took_s = monotonic() - began
        self._thread.join(1.0)
        assert not self._thread.is_alive()
        return took_s


@pytest.mark.parametrize("way", WAYS)
def test_a_thread_that_waits_for_messages_ends_when_another_closes_its_follower(settings: Settings, way: str) -> None:
    reading = Reading(precede.follow(config=settings, **WAYS[way]))
    reading.wait_for(1)
    sleep(1.0)  # now it waits
    assert reading.end() <= 1.0
    assert type(reading.error) is precede.Closed
    with pytest.raises(precede.Closed):
        reading.follower.poll(0)


@pytest.fixture
def own_broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


def test_closing_takes_a_second_while_the_broker_is_away_too(own_broker: Broker) -> None:
    settings = made(own_broker)
    readings = {way: Reading(precede.follow(config=settings, **more)) for way, more in WAYS.items()}
    for reading in readings.values():
        reading.wait_for(1)
    sleep(1.0)
    own_broker.kill()
    sleep(1.0)
    took_s = {way: reading.end() for way, reading in readings.items()}
    assert {way: one_s for way, one_s in took_s.items() if one_s > 1.0} == {}
