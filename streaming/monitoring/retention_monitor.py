"""How much of the raw topic's retention the job lags behind, asked for in a thread that a stuck job does not block.

What Kafka deletes before it is ordered is lost. So the operator is told when the oldest record that is not ordered yet
has used up half of the time, or of the space, for which the topic keeps records.
"""

import time
from collections.abc import Callable, Mapping
from contextlib import closing

from precede.ingest.kafka.reading import TopicReader
from precede.ingest.kafka.topics import Retention
from precede.ingest.service.monitor import PASSING, Monitor
from precede.streaming.settings import Settings

EVERY_S = 10.0
ANSWER_S = 2.0
TENTHS = range(9, 0, -1)
ALARM = 0.5


class RetentionMonitor:
    """How much of the retention is used up, in tenths."""

    def __init__(self, settings: Settings, retention: Retention, reached: Callable[[], Mapping[int, int]]) -> None:
        """`reached` gives the next offset of each partition that is processed."""
        self.used = 0.0
        self._settings = settings
        self._retention = retention
        self._reached = reached
        self._has_warned = False
        self._monitor = Monitor(
            "retention-monitor",
            self._look,
            opens=lambda: closing(TopicReader(settings.bootstrap)),
            every_s=EVERY_S,
            first_s=EVERY_S,
            undone=f"nothing warns before {settings.raw_topic} loses what is not ordered yet",
            passing=(*PASSING, KeyError),  # the topic does not exist just now
        )

    def start(self) -> None:
        self._monitor.start()

    def stop(self) -> None:
        self._monitor.stop()

    def warning_if_due(self) -> str | None:
        """A sentence when half is used up, once each time."""
        used = self.used
        is_due = used >= ALARM and not self._has_warned
        self._has_warned = used >= ALARM
        if not is_due:
            return None
        return (
            f"What is not ordered yet has used up {used:.0%} of the time or space for which {self._settings.raw_topic} "
            f"keeps records ({self._retention}): give the job more cores, or the topic a longer retention, before "
            "messages are lost."
        )

    def _look(self, reader: TopicReader) -> None:
        self.used = self._ask(reader)

    def _ask(self, reader: TopicReader) -> float:
        topic, reached = self._settings.raw_topic, self._reached()
        ends = reader.ends(topic, reached, ANSWER_S)
        behind = {at: next_offset for at, next_offset in reached.items() if max(next_offset, ends[at][0]) < ends[at][1]}
        return max(self._used_space(behind, ends), self._used_time(reader, behind))

    def _used_space(self, behind: Mapping[int, int], ends: Mapping[int, tuple[int, int]]) -> float:
        """Once Kafka has deleted something, the topic is full, and offsets tell how much of it is not ordered yet."""
        if self._retention.bytes is None:
            return 0.0
        shares = [(ends[at][1] - next_offset) / (ends[at][1] - ends[at][0]) for at, next_offset in behind.items()
                  if ends[at][0] > 0]  # fmt: skip
        return min(1.0, max(shares, default=0.0))

    def _used_time(self, reader: TopicReader, behind: Mapping[int, int]) -> float:
        """The largest tenth of the retention that the oldest record which is not ordered has reached."""
        if self._retention.ms is None or not behind:
            return 0.0
        now_ms = time.time() * 1000
        for tenth in TENTHS:
            since_ms = int(now_ms - self._retention.ms * tenth / 10)
            younger = reader.offsets_at(self._settings.raw_topic, behind, since_ms, ANSWER_S)
            if any(younger[at] is None or next_offset < younger[at] for at, next_offset in behind.items()):  # type: ignore[operator]
                return tenth / 10
        return 0.0
