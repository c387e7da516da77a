"""Whether the job is healthy, as the health endpoint reports it: every query reports progress, and Kafka answers.

A query reports progress when a batch ends. While there is nothing to do it reports every ten seconds, or at each
trigger. A query that is stuck, that fails repeatedly, or that takes longer than that to start, does not.
"""

import time
from collections.abc import Iterable

import msgspec

from precede.streaming.job.watch import QueryWatch

SILENT_S_MAX = 120.0
"""How long a query may be silent beyond its trigger interval; the largest batch and a restart take less."""

AWAY_S_MAX = 30.0
"""How long Kafka may be away: it is asked every five seconds."""


class QueryHealth(msgspec.Struct):
    """One query: whether it runs now, its last batch, and how long ago it reported progress."""

    running: bool
    batch: int | None
    silent_s: float | None


class Health(msgspec.Struct):
    """The answer; `problems` says in sentences why the job is not healthy."""

    healthy: bool
    problems: list[str]
    queries: dict[str, QueryHealth]
    kafka_silent_s: float | None


def judge(
    watches: Iterable[QueryWatch], began_at: float, kafka_answered_at: float | None, *, step: str = "it has just begun"
) -> Health:
    """The health now, by the process's clock; a query without any progress counts as silent since the job began.

    `step` says what a job does that has no queries yet.
    """
    now = time.monotonic()
    problems: list[str] = []
    queries: dict[str, QueryHealth] = {}
    for watch in watches:
        silent_s = now - max(watch.progress_at, began_at)
        queries[watch.name] = QueryHealth(
            watch.running, watch.batch if watch.batch >= 0 else None, round(silent_s, 1) if watch.progress_at else None
        )
        if watch.done:
            continue
        if not watch.progress_at:
            problems.append(f"The {watch.name} query has not begun yet.")
        elif silent_s > SILENT_S_MAX + watch.every_s:
            problems.append(f"The {watch.name} query has been silent for {silent_s:.0f} s.")
        elif not watch.running:
            problems.append(f"The {watch.name} query has stopped and will be started again.")
    away_s = None if kafka_answered_at is None else now - kafka_answered_at
    if away_s is None:
        problems.append("Kafka has not answered yet.")
    elif away_s > AWAY_S_MAX:
        problems.append(f"Kafka has not answered for {away_s:.0f} s.")
    if not queries:
        problems.append(f"The job is starting: {step}.")
    return Health(not problems, problems, queries, None if away_s is None else round(away_s, 1))
