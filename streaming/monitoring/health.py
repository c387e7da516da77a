"""Whether the job is healthy, as its page says: queries report progress, Kafka answers, and monitors work.

A query reports progress when a batch ends. While there is nothing to do it reports every ten seconds, or at each
trigger. A query that is stuck, that fails repeatedly, or that takes longer than that to start, does not.
"""

import time
from collections.abc import Iterable

import msgspec

from precede.ingest.service.broker_monitor import silent_s, trouble_with
from precede.ingest.service.monitor import troubles
from precede.streaming.job.watch import QueryWatch

SILENT_S_MAX = 120.0
"""How long a query may be silent beyond its trigger interval; the largest batch and a restart take less."""


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
        since_s = now - max(watch.progress_at, began_at)
        queries[watch.name] = QueryHealth(
            watch.running, watch.batch if watch.batch >= 0 else None, round(since_s, 1) if watch.progress_at else None
        )
        if watch.done:
            continue
        if not watch.progress_at:
            problems.append(f"The {watch.name} query has not begun yet.")
        elif since_s > SILENT_S_MAX + watch.every_s:
            problems.append(f"The {watch.name} query has been silent for {since_s:.0f} s.")
        elif not watch.running:
            problems.append(f"The {watch.name} query has stopped and will be started again.")
    away_s = silent_s(kafka_answered_at)
    away = trouble_with(kafka_answered_at)
    problems += [*([] if away is None else [away]), *troubles()]
    if not queries:
        problems.append(f"The job is starting: {step}.")
    return Health(not problems, problems, queries, None if away_s is None else round(away_s, 1))
