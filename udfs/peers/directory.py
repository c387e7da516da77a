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

from enum import Enum

import msgspec

from precede.udfs.peers.views import IN, OUT, View, merge

GROUPS_MAX = 10_000
"""How many groups get a row; further groups are ignored, not offered."""


MEMBERS_MAX = 10_000
"""How many names the view of one group may have; what would make it larger is ignored."""


class GroupInfo(msgspec.Struct, frozen=True):
    """What processes tell each other about a group: its name, its purpose, its past and present members."""

    group: str
    description: str
    view: View
    create: bytes | None = None
    """Its `create` record, if it has one and peers tell of it without a log."""


class Advertisement(msgspec.Struct, frozen=True, tag="advertisement"):
    """The document's advMsg: a process is here and asks for groups."""

    name: str


class GroupsInfo(msgspec.Struct, frozen=True, tag="groups"):
    """The document's grpsInfoList: the groups that its sender is in."""

    name: str
    groups: list[GroupInfo]


class Joined(msgspec.Struct, frozen=True, tag="joined"):
    """The document's joinMsg, with the epoch."""

    group: str
    name: str
    epoch: int


class Left(msgspec.Struct, frozen=True, tag="left"):
    """The document's leaveMsg, with the epoch that ends."""

    group: str
    name: str
    epoch: int


class Offer(msgspec.Struct, frozen=True):
    """For the application alone: a group it may join or decline."""

    info: GroupInfo


PeerMessage = Advertisement | GroupsInfo | Joined | Left
"""What peers send each other; the same types go in and come out."""


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

    def advertise(self) -> Advertisement:
        """Announce this process; declined groups may be offered once more."""
        self.rows = {group: row for group, row in self.rows.items() if row is not RowState.DECLINED}
        return Advertisement(self.name)

    def create(self, group: str, description: str = "") -> GroupsInfo:
        """Create a group with this process in it."""
        if group in self.rows:
            raise ValueError(f"{self.name} already knows the group {group}: join it, or choose another name")
        epoch = self._next_epoch({})
        info = GroupInfo(group, description, {self.name: (epoch, IN)})
        self.rows[group], self.known[group] = RowState.MEMBER, info
        return GroupsInfo(self.name, [info])

    def remember(self, info: GroupInfo) -> None:
        """Note a group this process was in before a restart, or joined otherwise; it may be out again."""
        self.rows[info.group] = RowState.MEMBER
        self.known[info.group] = info
        self._merge(info.group, {})

    def join(self, group: str) -> Joined:
        """Accept an offer."""
        if self.rows.get(group) is not RowState.PENDING:
            raise ValueError(f"{self.name} can only join a group that is offered to it, and {group} is not")
        view = self.known[group].view
        epoch = self._next_epoch(view)
        self.rows[group] = RowState.MEMBER
        self._merge(group, {self.name: (epoch, IN)})
        return Joined(group, self.name, epoch)

    def decline(self, group: str) -> None:
        """Refuse an offer."""
        if self.rows.get(group) is not RowState.PENDING:
            raise ValueError(f"{self.name} can only decline a group that is offered to it, and {group} is not")
        self._close(group)

    def leave(self, group: str) -> Left:
        """Stop being a member."""
        if self.rows.get(group) is not RowState.MEMBER:
            raise ValueError(f"{self.name} can only leave a group it is in, and it is not in {group}")
        epoch = self.known[group].view[self.name][0]
        self.epoch = max(self.epoch, epoch + 1)
        self._close(group)
        return Left(group, self.name, epoch)

    # ── received messages ─────────────────────────────────────────────────────────────────────────────────────────

    def receive(self, message: PeerMessage) -> list[GroupsInfo | Offer]:
        """Take in a message, possibly an own one; returns what to answer everyone, and what to offer."""
        if isinstance(message, Advertisement):
            mine = [self.known[group] for group, row in self.rows.items() if row is RowState.MEMBER]
            return [GroupsInfo(self.name, mine)] if mine else []
        if isinstance(message, GroupsInfo):
            return [offer for info in message.groups if (offer := self._receive_info(info)) is not None]
        if message.group in self.known:
            self._merge(message.group, {message.name: (message.epoch, OUT if isinstance(message, Left) else IN)})
        return []

    def _receive_info(self, info: GroupInfo) -> Offer | None:
        row = self.rows.get(info.group)
        if row is None:
            if len(self.rows) >= GROUPS_MAX:
                return None
            self.rows[info.group] = RowState.PENDING
            self.known[info.group] = info
            return Offer(info)
        if row is not RowState.DECLINED:
            self._merge(info.group, info.view)
        return None

    def _merge(self, group: str, view: View) -> None:
        info = self.known[group]
        merged = merge(info.view, view)
        if len(merged) > MEMBERS_MAX:
            return
        self.known[group] = GroupInfo(group, info.description, merged, info.create)
        if self.rows[group] is RowState.MEMBER and merged[self.name][1] is OUT:
            self._close(group)  # others evicted it

    def _close(self, group: str) -> None:
        self.rows[group] = RowState.DECLINED
        del self.known[group]

    def _next_epoch(self, view: View) -> int:
        """An epoch larger than every known one of this name in the group."""
        used = view.get(self.name)
        return self.epoch if used is None else max(self.epoch, used[0] + 1)
