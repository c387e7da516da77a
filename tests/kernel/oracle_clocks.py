"""The naive loop's part for the orders by clocks: it computes every floor again from all records so far.

It keeps only the input: where each sender began, what entered, and the heartbeats. The rule is protocols 4a and 5a,
implemented literally over plain lists.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from tests.kernel.judge import SEQ_MAX, Fields

if TYPE_CHECKING:
    from tests.kernel.oracle_state import Group, Id, Waiting, Who

BY_CLOCKS = ("lamport", "two_clock")
NEVER = -(10**30)

Key: TypeAlias = tuple[int, str, int, int]
"""(time, sender, epoch, seq)"""


@dataclass
class Clocks:
    """All that is known about the clocks of one group."""

    margin_ms: int | None = None
    timed_ms: int | None = None
    began: dict[Who, int] = field(default_factory=dict)
    entered: dict[Who, list[tuple[int, int]]] = field(default_factory=dict)
    """(time, clock) of each seq from 1; a stand-in has none."""
    beats: dict[Who, list[tuple[int, int, int]]] = field(default_factory=dict)
    time_max: int = 0
    log_ms: int = NEVER
    delivered: list[tuple[Key, int]] = field(default_factory=list)


def configure(group: Group, options: Fields) -> None:
    clocks = group.clocks
    if "accuracy_ms" in options:
        clocks.margin_ms = 2 * options["accuracy_ms"] - options.get("delay_min_ms", 0)
        if "delay_max_ms" in options:
            clocks.timed_ms = 4 * options["accuracy_ms"] - options.get("delay_min_ms", 0) + options["delay_max_ms"]


def count(group: Group, who: Who) -> int:
    """How many of a sender's seqs have entered."""
    return len(group.clocks.entered.get(who, []))


def is_over(group: Group, who: Who) -> bool:
    return count(group, who) >= group.fence_of(who)


def floor(group: Group, who: Who) -> int | None:
    """The least time that the next message of this sender can have; None if nothing waits for it."""
    clocks = group.clocks
    if who not in clocks.began or is_over(group, who):
        return None
    times = [time + 1 for time, _ in clocks.entered.get(who, [])]
    promised = [time for following, time, _ in clocks.beats.get(who, []) if following - 1 <= count(group, who)]
    return max([clocks.began[who], *times, *promised])


def shown(group: Group, who: Who) -> int:
    """The least value that the next clock of this sender counts as."""
    clocks = group.clocks
    said = [clock for _, clock in clocks.entered.get(who, [])]
    promised = [clock for following, _, clock in clocks.beats.get(who, []) if following - 1 <= count(group, who)]
    return max([NEVER, *said, *promised])


def floors(group: Group) -> dict[Who, int]:
    found = {who: floor(group, who) for who in group.clocks.began}
    return {who: least for who, least in found.items() if least is not None}


def last(group: Group) -> Key | None:
    return max((key for key, _ in group.clocks.delivered), default=None)


def key_of(one: Waiting) -> Key:
    assert one.fields is not None
    return (one.fields["time"], *one.id)


# ── judging ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def stamp_fault(group: Group, fields: Fields) -> str | None:
    needed = ["time"] if group.order == "lamport" or fields["kind"] == "heartbeat" else ["time", "clock_ms"]
    if "time" not in fields:
        return "missing_stamp"
    if fields["time"] < 0:
        return "bad_stamp"
    if any(name not in fields for name in needed):
        return "missing_stamp"
    checked = fields["kind"] == "heartbeat" or group.order == "two_clock"
    return "bad_stamp" if checked and abs(fields.get("clock_ms", 0)) > SEQ_MAX else None


def is_poison(group: Group, time: int) -> bool:
    return time > min(group.clocks.time_max + group.window, SEQ_MAX)


def joiner_floor(group: Group, who: Who) -> int:
    """Where the floor of a larger epoch begins; a new sender begins at its first message."""
    name, epoch = who
    delivered = last(group)
    return delivered[0] + 1 if delivered and name in group.members and group.members[name][0] < epoch else 0


def fault_on_entry(group: Group, one: Waiting) -> str | None:
    """What is wrong with the clocks of a message whose turn it is."""
    assert one.fields is not None
    who, time, delivered = one.id[:2], one.fields["time"], last(group)
    least = floor(group, who)
    if least is not None and time < least:
        return "clock_regression"
    if delivered is not None and key_of(one) < delivered and (group.order == "lamport" or least is None):
        return "late"
    if least is None and time < joiner_floor(group, who):
        return "late"
    clock = clock_of(group, one)
    if group.order == "two_clock" and any(
        precedes(group, key_of(one), clock, key, shown) for key, shown in group.clocks.delivered
    ):
        return "late"
    return None


def clock_of(group: Group, one: Waiting) -> int:
    """The effective clock of a message: one that steps back counts as the sender's latest."""
    who, seq = one.id[:2], one.id[2]
    assert one.fields is not None
    if seq <= count(group, who):
        return group.clocks.entered[who][seq - 1][1]
    clock: int = max(one.fields.get("clock_ms", NEVER), shown(group, who))
    return clock


def precedes(group: Group, key: Key, clock: int, other: Key, other_clock: int) -> bool:
    """Rule 5a: within one source by seq; between two by time, unless the clock of the second is too early."""
    if key[1:3] == other[1:3]:
        return key[3] < other[3]
    margin_ms = group.clocks.margin_ms
    return key[0] < other[0] and (margin_ms is None or clock <= other_clock + margin_ms)


# ── the loop ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def begin(group: Group, who: Who, time: int) -> None:
    """A first record of a sender in an open group makes it a member."""
    if who not in group.clocks.began:
        group.clocks.began[who] = max(time, joiner_floor(group, who))


def join(group: Group, fields: Fields) -> str | None:
    """Where the floor of a joiner begins."""
    time, delivered = fields.get("time", 0), last(group)
    if is_poison(group, time):
        return "clock_poison"
    group.clocks.began[fields["sender"], fields["epoch"]] = max(time, delivered[0] + 1 if delivered else 1)
    group.clocks.time_max = max(group.clocks.time_max, time)
    return None


def enter(group: Group, one: Waiting) -> None:
    """Enter a message whose turn it is, and with which nothing is wrong."""
    time, clock = (NEVER, NEVER) if one.fields is None else (one.fields["time"], clock_of(group, one))
    group.clocks.entered.setdefault(one.id[:2], []).append((time, clock))


def queue(group: Group) -> list[Waiting]:
    """The held messages that wait only for the clocks."""
    return [one for one in group.held if one.fields is not None and one.id[2] <= count(group, one.id[:2])]


def ready(group: Group, now_ms: int) -> Waiting | None:
    """The least message that neither a held nor a future message precedes."""
    waiting = [(key_of(one), clock_of(group, one), one) for one in queue(group)]
    if group.order == "lamport":
        waiting = sorted(waiting, key=lambda each: each[0])[:1]
    free = [
        (key, one)
        for key, clock, one in waiting
        if not any(precedes(group, other, its, key, clock) for other, its, _ in waiting if other != key)
        and not any(blocks(group, who, key, clock, now_ms) for who in floors(group))
    ]
    return min(free, key=lambda each: each[0])[1] if free else None


def blocks(group: Group, who: Who, key: Key, clock: int, now_ms: int) -> bool:
    """Whether this member may still send a message that comes before."""
    clocks = group.clocks
    least = floors(group)[who]
    if group.order == "lamport":
        return (least, *who) <= key[:3]
    if least >= key[0] or (clocks.margin_ms is not None and shown(group, who) > clock + clocks.margin_ms):
        return False
    if clocks.timed_ms is not None and now_ms > clock + clocks.timed_ms:
        return bool(gap(group, who))
    return True


def gap(group: Group, who: Who) -> list[Id]:
    """Messages of a member that are known to be on their way."""
    known = max([group.highest.get(who, 0), *(following - 1 for following, _, _ in group.clocks.beats.get(who, []))])
    upto = group.fence_of(who)
    here = {*group.delivered, *(one.id for one in group.held)}
    seqs = range(1, (known if upto == SEQ_MAX else upto) + 1)
    return [(*who, seq) for seq in seqs if (*who, seq) not in here]


def lets_one_go(group: Group, one: Waiting, now_ms: int) -> bool:
    """Whether a message whose turn it is would release a message at once, itself or another; tried on a copy."""
    tried = copy.deepcopy(group)
    tried.held.append(one)
    begin(tried, one.id[:2], key_of(one)[0])
    enter(tried, one)
    return ready(tried, max(now_ms, tried.clocks.log_ms)) is not None


# ── inspecting ────────────────────────────────────────────────────────────────────────────────────────────────────────


def waits_for(group: Group, one: Waiting) -> dict[str, Any]:
    """The missing ids, and the members that are waited for."""
    who = one.id[:2]
    if one.id[2] > count(group, who):
        here = {*group.delivered, *(other.id for other in group.held)}
        missing = [(*who, seq) for seq in range(1, one.id[2]) if (*who, seq) not in here]
        return {"missing": missing[:20], "silent": []}
    while not any(blocks(group, other, key_of(one), clock_of(group, one), NEVER) for other in floors(group)):
        key, clock = key_of(one), clock_of(group, one)
        before = [other for other in queue(group) if precedes(group, key_of(other), clock_of(group, other), key, clock)]
        if group.order == "lamport" or not before:
            break
        one = min(before, key=key_of)
    missing, silent = [], []
    for other in sorted(floors(group)):
        if blocks(group, other, key_of(one), clock_of(group, one), NEVER):
            absent = gap(group, other)
            missing += absent
            silent += [] if absent else [other[0]]
    return {"missing": missing[:20], "silent": silent[:20]}
