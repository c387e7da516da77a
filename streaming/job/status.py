"""The line a person reads while the job runs: what went through, what is held, how far behind it is."""

import time
from typing import Any

from precede.ingest.kafka import reading
from precede.streaming.job.settings import Settings
from precede.streaming.monitoring.counts import Counts
from precede.udfs.errors import Unreachable

EVERY_S = 5.0


class Status:
    """What the job knows of itself."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.counts = Counts()
        self.written = 0
        self.batches: dict[str, int] = {}
        """Of each query the last batch that is through."""
        self.is_away = False
        """Whether no broker answers: then it is not asked, for that takes seconds."""
        self._said = (0, 0, 0, 0, 0)
        self._said_at = 0.0

    def due(self) -> str | None:
        """A line, if something went on since the last one and that was a while ago."""
        now = time.monotonic()
        counts = self.counts  # a batch of nothing but ticks is no news
        news = (counts.delivered, counts.dead, counts.duplicates, counts.held_now, self.written)
        if news == self._said or now - self._said_at < EVERY_S:
            return None
        self._said, self._said_at = news, now
        return self.line(time.strftime("%H:%M:%S"))

    def line(self, begin: str) -> str:
        """Everything in one line."""
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
        if self.settings.only != "order":
            parts.append(f"{self.written:,} in Delta")
        return f"{begin}: {', '.join(parts)}."

    def facts(self) -> dict[str, Any]:
        """The same for a program, without what would have to be asked for."""
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
        """Raw records not yet through; unknown before the first batch, or while the broker is away."""
        following = self.counts.next
        if not following or self.is_away:
            return None
        settings = self.settings
        try:
            ends = reading.ends(settings.bootstrap, settings.raw_topic, max(following) + 1)
        except Unreachable:
            return None
        return sum(max(0, end - max(first, following.get(at, 0))) for at, (first, end) in enumerate(ends))
