"""Asks Kafka every few seconds how far topics reach, in its own thread, which a stuck process does not block.

Of a topic that is not read to its end it also looks when the first record that was not read arrived: so old is what
waits there.
"""

import time
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import NamedTuple

from precede.ingest.kafka.access import Address
from precede.ingest.kafka.reading import FEW, TopicReader
from precede.ingest.service.monitor import PASSING, STOP_S, Monitor

EVERY_S = 5.0
ANSWER_S = 2.0
AWAY_S_MAX = 30.0
"""How long Kafka may be away."""


class Unread(NamedTuple):
    """What waited in a partition at the last look."""

    end: int
    """The offset after its last record."""
    oldest_ms: int
    """When the first record that was not read arrived."""


class BrokerMonitor:
    """The ends of the raw partitions, what waits in each topic, and when Kafka last answered."""

    def __init__(self, bootstrap: Address | str, raw_topic: str) -> None:
        self.bootstrap = bootstrap
        self.ends: dict[int, tuple[int, int]] = {}
        """First and next offset of the raw topic, by partition."""
        self.reached: dict[str, Callable[[], Mapping[int, int]]] = {}
        """By topic, what gives the next offset of each partition that this process reads."""
        self.unread: dict[str, dict[int, Unread]] = {}
        """By topic and partition; of the others nothing waits."""
        self.answered_at: float | None = None
        self._raw_topic = raw_topic
        self._monitor = Monitor(
            "broker-monitor",
            self._ask,
            opens=lambda: closing(TopicReader(bootstrap, fetches=FEW)),
            every_s=EVERY_S,
            undone="it is not known how far the topics reach",
            passing=(*PASSING, KeyError),  # the topic does not exist just now
        )

    def start(self) -> None:
        self._monitor.start()

    def stop(self, wait_s: float = STOP_S) -> None:
        self._monitor.stop(wait_s)

    def waited_s(self, topic: str, partition: int, next_offset: int) -> float:
        """How long the oldest record of a partition has waited that was not read up to this offset."""
        found = self.unread.get(topic, {}).get(partition)
        if found is None or next_offset >= found.end:
            return 0.0
        return max(0.0, time.time() - found.oldest_ms / 1000)

    def _ask(self, reader: TopicReader) -> None:
        topic = self._raw_topic
        self.ends |= reader.ends(topic, reader.partitions(topic, ANSWER_S), ANSWER_S)
        self.answered_at = time.monotonic()
        for name, reached in list(self.reached.items()):
            self.unread[name] = self._look(reader, name, reached)

    def _look(self, reader: TopicReader, topic: str, reached: Callable[[], Mapping[int, int]]) -> dict[int, Unread]:
        known = self.ends if topic == self._raw_topic else reader.ends(topic, reached(), ANSWER_S)
        ends = {at: end for at, (_, end) in known.items()}
        # Asked only now: what was read meanwhile does not wait any more.
        behind = {at: offset for at, offset in reached().items() if offset < ends.get(at, 0)}
        arrivals = reader.arrivals(topic, behind, ANSWER_S) if behind else {}
        return {at: Unread(ends[at], oldest_ms) for at, oldest_ms in arrivals.items()}


def silent_s(answered_at: float | None) -> float | None:
    """How long Kafka has been silent; None where it has not answered yet."""
    return None if answered_at is None else time.monotonic() - answered_at


def trouble_with(answered_at: float | None) -> str | None:
    """That Kafka has been away for long, as a sentence."""
    away_s = silent_s(answered_at)
    if away_s is None:
        return "Kafka has not answered yet."
    return f"Kafka has not answered for {away_s:.0f} s." if away_s > AWAY_S_MAX else None
