"""Times and durations in the words that a person says."""

import datetime

SECOND, MINUTE, HOUR, DAY = 1_000, 60_000, 3_600_000, 86_400_000
DATED_FROM_MS = 30 * DAY
"""What is longer ago than this is named by its date."""

_UNITS = ((DAY, "day"), (HOUR, "hour"), (MINUTE, "minute"))


def lasting(ms: float) -> str:
    """A duration, for example `12 s` or `3 minutes`."""
    if ms < 1:
        return "less than 1 ms"
    if ms < SECOND:
        return f"{round(ms)} ms"
    if ms < 2 * MINUTE:
        return f"{round(ms / SECOND)} s"
    unit_ms, unit = next((size, name) for size, name in _UNITS if ms >= 2 * size)
    return f"{round(ms / unit_ms)} {unit}s"


def ago(then_ms: int, now_ms: float) -> str:
    """When something happened, for example `3 minutes ago`."""
    past_ms = now_ms - then_ms
    if past_ms < SECOND:
        return "just now"
    if past_ms >= DATED_FROM_MS:
        return f"on {date(then_ms)}"
    return f"{lasting(past_ms)} ago"


def ahead(then_ms: int, now_ms: float) -> str:
    """When something will happen, for example `in 14 minutes`."""
    return "with the next tick" if then_ms - now_ms < SECOND else f"in {lasting(then_ms - now_ms)}"


def date(ms: int) -> str:
    """A moment as a date with its time, in UTC."""
    return datetime.datetime.fromtimestamp(ms / SECOND, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def times(count: int) -> str:
    """How often, for example `twice`."""
    return {1: "once", 2: "twice"}.get(count, f"{count} times")
