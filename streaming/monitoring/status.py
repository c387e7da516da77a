"""The status line that the job prints while it runs: what was processed, what is held, how far behind it is."""

import time
from collections.abc import Collection
from typing import Any

from precede.ingest.kafka import reading
from precede.streaming.monitoring.retention_monitor import ALARM, RetentionMonitor
from precede.streaming.order.counts import JobCounts
from precede.streaming.settings import Settings
from precede.udfs.errors import Unreachable

EVERY_S = 5.0


class StatusLine:
    """The numbers of the line, set by the job."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.counts = JobCounts()
        self.written = 0
        self.batches: dict[str, int] = {}
        """The last finished batch of each query."""
        self.retention: RetentionMonitor | None = None
        """Where the raw topic has a retention."""
        self.lacks_states = False
        """Whether the state topic lacks changes; without ticks it may do so for long."""
        self.is_kafka_away = False
        """While no broker answers it is not asked how far the log reaches, since that takes seconds."""
        self.partitions: Collection[int] = ()
        """The raw partitions of the job."""
        self._reported = (0, 0, 0, 0, 0)
        self._reported_at = 0.0

    def line_if_due(self) -> str | None:
        """A line, if a number changed since the last one and that was long enough ago."""
        now = time.monotonic()
        counts = self.counts  # a batch that has only ticks changes none of these numbers
        numbers = (counts.delivered, counts.dead, counts.duplicates, counts.held_now, self.written)
        if numbers == self._reported or now - self._reported_at < EVERY_S:
            return None
        self._reported, self._reported_at = numbers, now
        return self.line(time.strftime("%H:%M:%S"))

    def line(self, begin: str) -> str:
        """All numbers in one line."""
        counts = self.counts
        parts = []
        if self.settings.only != "history":
            parts += [
                f"{counts.batches:,} batches",
                f"{counts.read:,} read",
                f"{counts.delivered:,} delivered",
                f"{counts.held_now:,} held",
                f"{counts.dead:,} dead letters",
                f"{counts.duplicates:,} duplicates",
            ]
            behind = self._behind()
            if behind is not None:
                parts.append(f"{behind:,} behind")
            if self.retention is not None and self.retention.used >= ALARM:
                parts.append(f"{self.retention.used:.0%} of the raw topic's retention used up by what is not ordered")
            if self.lacks_states and self.settings.tick_s == 0:
                parts.append("changed states wait for later records, for there are no ticks")
        if self.settings.only != "order":
            parts.append(f"{self.written:,} in Delta")
        return f"{begin}: {', '.join(parts)}."

    def facts(self) -> dict[str, Any]:
        """The same numbers for a program, without those that the broker would have to be asked for."""
        counts = self.counts
        batches = {name: batch for name, batch in self.batches.items() if name != "order"}
        history = {} if self.settings.only == "order" else {"in_delta": self.written, "history_batches": batches}
        if self.settings.only == "history":
            return history
        return {
            "query": "order",
            "batch": self.batches.get("order"),
            "batches": counts.batches,
            "read": counts.read,
            "delivered": counts.delivered,
            "held": counts.held_now,
            "gaps": counts.gaps_now,
            "dead_letters": counts.dead,
            "duplicates": counts.duplicates,
        } | history

    def _behind(self) -> int | None:
        """Raw records not yet processed; None before the first batch and while the broker is away."""
        if not self.counts.next or self.is_kafka_away:
            return None
        settings = self.settings
        try:
            ends = reading.ends_of(settings.bootstrap, settings.raw_topic, self.partitions)
        except Unreachable:
            return None
        return sum(self.counts.lag(ends).values())
