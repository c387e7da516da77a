"""What a group remembers of the things it has waited for a while: requested gaps, joins, circles, signs of life.

It is kept with the group, and passing_time.py acts by it. Nothing is kept while nothing waits long, so the state of a
group where all is well is as small as ever.
"""

import msgspec

from precede.udfs.records.messages import Id, Who

NOTICED_MAX = 200
"""How many gaps of one group are handled at the same time; the others wait until one of these has ended."""


class NoticedGap(msgspec.Struct, array_like=True, gc=False, kw_only=True):
    """Missing seqs of one sender and epoch that held messages wait for, old enough to be requested."""

    name: str
    epoch: int
    first: int
    last: int
    opened_ms: int
    next_ms: int
    """The time of the log from which there is something to do about it."""
    asked: int = 0
    asked_ms: int | None = None
    waited: list[Id] = []
    """The messages that waited for it directly when it was noticed, by arrival."""

    @property
    def key(self) -> Id:
        """Its last id, which stays the same while the gap is filled from below."""
        return self.name, self.epoch, self.last


class RepairTimers:
    """The gaps, joins and members that one group waits for."""

    __slots__ = ("circles", "gaps", "heard", "joins")

    def __init__(self) -> None:
        self.gaps: dict[Id, NoticedGap] = {}
        """The gaps that were noticed, by key, the oldest first."""
        self.joins: dict[Who, int] = {}
        """By a sender that did not join: the time from which its messages are abandoned once more."""
        self.circles: dict[Id, int] = {}
        """By the message that closed a circle: the time from which it is abandoned once more."""
        self.heard: dict[Who, int] = {}
        """Where the release waits for members: when each was heard last, as far as a message has waited since."""

    def dump(self) -> "DumpedRepairTimers | None":
        """All of it as plain data; None where there is nothing."""
        if not (self.gaps or self.joins or self.circles or self.heard):
            return None
        return DumpedRepairTimers(
            list(self.gaps.values()),
            [(*who, time) for who, time in self.joins.items()],
            [(*id_, time) for id_, time in self.circles.items()],
            [(*who, time) for who, time in self.heard.items()],
        )


NO_TIMERS = RepairTimers()
"""Of a group that has not waited long for anything; only read."""


class DumpedRepairTimers(msgspec.Struct, array_like=True):
    """What `RepairTimers.dump` returned."""

    gaps: list[NoticedGap]
    joins: list[tuple[str, int, int]]
    circles: list[tuple[str, int, int, int]]
    heard: list[tuple[str, int, int]]


def load(dumped: DumpedRepairTimers) -> RepairTimers:
    """The timers that `dump` wrote."""
    timers = RepairTimers()
    timers.gaps = {gap.key: gap for gap in dumped.gaps}
    timers.joins = {(name, epoch): time for name, epoch, time in dumped.joins}
    timers.circles = {(name, epoch, seq): time for name, epoch, seq, time in dumped.circles}
    timers.heard = {(name, epoch): time for name, epoch, time in dumped.heard}
    return timers
