"""What one process knows about the groups around it: the Group Join/Leave Protocol, GJLP (M2MC, chapter 5).

A process that starts or returns advertises itself. Each process that receives this answers with the groups it is in.
An unknown group is offered to the application once, however many processes name it; the application joins or declines.
Joins and leaves go to everyone, and members keep their views equal by merging them.

A process has one row per group (the document's GIIT):

    row        since                               sent to others   when others name the group
    (absent)   unknown                             -                offer it: PENDING
    PENDING    offered, not yet decided            no               merge, no second offer
    DECLINED   declined, left, or evicted          no               nothing
    MEMBER     joined, or created                  yes              merge

A new advertisement clears the DECLINED rows, so declined groups are offered once more.

What the printed protocol leaves open or gets wrong, and the solution here:
- "not a member" and "declined" are one value, N/A, in 5.1.1.3 and two in the actions: here they are two.
- The second of two answers to one advertisement would prompt the application again: PENDING.
- A process that declines only discards the answer, and would be asked at every answer: DECLINED.
- A process that leaves keeps its row and still advertises the group: here the row becomes DECLINED.
- A leave cancels every join before and after it: views (views.py) compare epochs, and each join takes a larger one.
- A creator numbers its new groups, from 0 again after a restart: here a group has a chosen name.
- Rows that are N/A are not sent, and neither are empty lists.
- A crashed process stays in the views: only an `evict` in the log removes it, and this protocol has none.
"""

from collections.abc import Iterable
from enum import Enum

import msgspec
from msgspec.structs import replace

from precede.udfs.peers.views import IN, OUT, View, merge

DEFAULT_ORDER = "s_b"
"""The order of a group of a segment where nothing else is said."""
GROUPS_MAX = 10_000
"""How many groups get a row; further groups are ignored, not offered."""
MEMBERS_MAX = 10_000
"""How many names the view of one group may have; what would make it larger is ignored."""


class GroupInfo(msgspec.Struct, frozen=True, array_like=True):
    """What processes tell each other about a group: how it began, and its past and present members."""

    group: str
    create: bytes | None
    """Its `create` record, with its options and description; None if it has none."""
    view: View
    order: str = DEFAULT_ORDER
    """The order where the `create` record names none: the default of the log that the group is from."""


class RowState(Enum):
    """How this process relates to a group it knows."""

    PENDING = "pending"
    DECLINED = "declined"
    MEMBER = "member"


class Directory:
    """The rows of one process. Forbidden calls raise ValueError; received messages never do."""

    def __init__(self, name: str, *, epoch: int = 0) -> None:
        self.name = name
        self.epoch = epoch
        """The least epoch to join with; it must be larger than any that this name used before this start."""
        self.rows: dict[str, RowState] = {}
        self.known: dict[str, GroupInfo] = {}
        """The groups whose row is PENDING or MEMBER."""

    # ── calls of the application ──────────────────────────────────────────────────────────────────────────────────

    def advertise(self) -> None:
        """This process asks all others: declined groups may be offered once more."""
        self.rows = {group: row for group, row in self.rows.items() if row is not RowState.DECLINED}

    def create(self, group: str, order: str = DEFAULT_ORDER) -> GroupInfo:
        """Create a group with this process in it; returns what to tell everyone."""
        if group in self.rows:
            raise ValueError(f"{self.name} already knows the group {group}: join it, or choose another name")
        self.rows[group] = RowState.MEMBER
        info = self.known[group] = GroupInfo(group, None, {self.name: (self._next_epoch({}), IN)}, order)
        return info

    def remember(self, info: GroupInfo) -> None:
        """Note a group this process was in before a restart, or joined otherwise; it may be out again."""
        self.rows[info.group] = RowState.MEMBER
        self.known[info.group] = info
        self._merge(info.group, {})

    def join(self, group: str) -> GroupInfo:
        """Accept an offer; returns what to tell the members."""
        if self.rows.get(group) is not RowState.PENDING:
            raise ValueError(f"{self.name} can only join a group that is offered to it, and {group} is not")
        self.rows[group] = RowState.MEMBER
        self._merge(group, {self.name: (self._next_epoch(self.known[group].view), IN)})
        return self.known[group]

    def decline(self, group: str) -> None:
        """Refuse an offer."""
        if self.rows.get(group) is not RowState.PENDING:
            raise ValueError(f"{self.name} can only decline a group that is offered to it, and {group} is not")
        self._close(group)

    def leave(self, group: str) -> GroupInfo:
        """Stop being a member; returns what to tell the members."""
        if self.rows.get(group) is not RowState.MEMBER:
            raise ValueError(f"{self.name} can only leave a group it is in, and it is not in {group}")
        info = self.known[group]
        epoch = info.view[self.name][0]
        self.epoch = max(self.epoch, epoch + 1)
        self._close(group)
        return replace(info, view={**info.view, self.name: (epoch, OUT)})

    # ── what is told and heard ────────────────────────────────────────────────────────────────────────────────────

    def mine(self) -> list[GroupInfo]:
        """What to answer one that advertises itself: the groups that this process is in."""
        return [self.known[group] for group, row in self.rows.items() if row is RowState.MEMBER]

    def receive(self, infos: Iterable[GroupInfo]) -> list[GroupInfo]:
        """Take in what some process tells of groups, possibly this one; returns those to offer to the application."""
        return [info for info in infos if self._is_new(info)]

    def _is_new(self, info: GroupInfo) -> bool:
        row = self.rows.get(info.group)
        if row is None and len(self.rows) < GROUPS_MAX:
            self.rows[info.group] = RowState.PENDING
            self.known[info.group] = info
            return True
        if row in (RowState.PENDING, RowState.MEMBER):
            self._merge(info.group, info.view)
        return False

    def _merge(self, group: str, view: View) -> None:
        info = self.known[group]
        merged = merge(info.view, view)
        if len(merged) > MEMBERS_MAX:
            return
        self.known[group] = replace(info, view=merged)
        if self.rows[group] is RowState.MEMBER and merged[self.name][1] is OUT:
            self._close(group)  # others evicted it

    def _close(self, group: str) -> None:
        self.rows[group] = RowState.DECLINED
        del self.known[group]

    def _next_epoch(self, view: View) -> int:
        """An epoch larger than every known one of this name in the group."""
        used = view.get(self.name)
        return self.epoch if used is None else max(self.epoch, used[0] + 1)
