"""What a group keeps of those it has been waiting for a while: gaps it asked for, joins, members' signs of life.

Nothing of it is kept while nobody waits long, so the state of a group where all is well is as small as ever.
"""

from typing import TYPE_CHECKING

import msgspec

from precede.udfs.records.messages import Id, Who

if TYPE_CHECKING:
    from precede.udfs.engine.group import Group


NOTICED_MAX = 200
"""How many gaps of one group are in hand at once; the others wait until one of these has ended."""


class Gap(msgspec.Struct, array_like=True, gc=False, kw_only=True):
    """A run of missing seqs of one sender and epoch that held messages wait for, old enough to be asked for."""

    name: str
    epoch: int
    first: int
    last: int
    opened_ms: int
    next_ms: int
    """From which time of the log on there is something to do about it."""
    asked: int = 0
    asked_ms: int | None = None
    waited: list[Id] = []
    """Who waits for it directly, by arrival, as it was noticed."""

    @property
    def key(self) -> Id:
        """Its last id: what stays the same while it is filled from below."""
        return self.name, self.epoch, self.last


class Waits:
    """The gaps, joins and members that one group waits for."""

    __slots__ = ("circles", "gaps", "heard", "joins")

    def __init__(self) -> None:
        self.gaps: dict[Id, Gap] = {}
        """The gaps that were noticed, by key, the oldest first."""
        self.joins: dict[Who, int] = {}
        """Whose join did not come: from when on its messages are given up on once more."""
        self.circles: dict[Id, int] = {}
        """By the message that closed it: from when on that is given up on once more."""
        self.heard: dict[Who, int] = {}
        """Where the order waits for members: when each was heard last, as far as somebody has waited since."""

    def dump(self) -> "DumpedWaits | None":
        """All of it as plain data; None where there is nothing."""
        if not (self.gaps or self.joins or self.circles or self.heard):
            return None
        return DumpedWaits(
            list(self.gaps.values()),
            [(*who, time) for who, time in self.joins.items()],
            [(*id_, time) for id_, time in self.circles.items()],
            [(*who, time) for who, time in self.heard.items()],
        )


NO_WAITS = Waits()
"""Of a group that has not been waiting for anything long; only read."""


class DumpedWaits(msgspec.Struct, array_like=True):
    """What `Waits.dump` gave."""

    gaps: list[Gap]
    joins: list[tuple[str, int, int]]
    circles: list[tuple[str, int, int, int]]
    heard: list[tuple[str, int, int]]


def load(dumped: DumpedWaits) -> Waits:
    """The waits that `dump` gave."""
    waits = Waits()
    waits.gaps = {gap.key: gap for gap in dumped.gaps}
    waits.joins = {(name, epoch): time for name, epoch, time in dumped.joins}
    waits.circles = {(name, epoch, seq): time for name, epoch, seq, time in dumped.circles}
    waits.heard = {(name, epoch): time for name, epoch, time in dumped.heard}
    return waits


def waits_of(group: "Group") -> Waits:
    """What a group waits for, to be written to."""
    if group.waits is None:
        group.waits = Waits()
    return group.waits


def hear(group: "Group", name: str, epoch: int, now_ms: int) -> None:
    """A member gave a sign of life."""
    heard = waits_of(group).heard
    heard[name, epoch] = max(now_ms, heard.get((name, epoch), now_ms))
