"""What one process knows of the groups around it: the Group Join/Leave Protocol, GJLP (M2MC, chapter 5).

A process that comes, or comes back, advertises itself. Everybody who hears that answers with the groups it is in. A
group that the process has not heard of is offered to its application, once, however many tell of it; the application
joins or declines. Joins and leaves are told to everybody, and members keep each other's views alike by merging them.

Of each group a process has one row (the document's GIIT):

    row        since                               sent to others   when others tell of the group
    (absent)   never heard of it                   -                offer it: PENDING
    PENDING    offered, the application ponders    no               merge, no second offer
    DECLINED   declined, left, or put out          no               nothing
    MEMBER     joined, or created                  yes              merge

To advertise oneself anew clears the DECLINED rows, so what was declined is offered again, once.

What the printed protocol leaves open or gets wrong, and what is done here:
- "not a member" and "declined" are one value, N/A, in 5.1.1.3 and two in the actions: here they are two.
- Of two answers to one advertisement the second would prompt the application again: PENDING.
- Who declines only discards what it heard, and would be asked at every answer: DECLINED.
- A leaver keeps its row and goes on advertising the group: here the row becomes DECLINED.
- A leave cancels every join before and after it: views (views.py) go by epoch. An own epoch grows with every join.
- A new group's identity is counted by its creator, from 0 again after a restart: here it is a name that is chosen.
- Rows that are N/A are not sent, and neither are empty lists.
- A crashed process stays in the views: to put it out takes an `evict` in the log, which this protocol does not have.
"""

from enum import Enum

import msgspec

from precede.udfs.peers.views import IN, OUT, View, merge

GROUPS_MAX = 10_000
"""Of how many groups a process keeps a row: what is told beyond that is passed over, not offered."""


class GroupInfo(msgspec.Struct, frozen=True):
    """What is told of a group: its name, what it is for, and who is and was in it."""

    group: str
    description: str
    view: View


class Advertisement(msgspec.Struct, frozen=True, tag="advertisement"):
    """The document's advMsg: somebody is here and would like to know of groups."""

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


Heard = Advertisement | GroupsInfo | Joined | Left
"""What peers say to each other; the same types go in and come out."""


class Row(Enum):
    """Where this process stands with a group it has heard of."""

    PENDING = "pending"
    DECLINED = "declined"
    MEMBER = "member"


class Directory:
    """The rows of one process. What it may not do raises ValueError; what it hears never does."""

    def __init__(self, name: str, *, epoch: int = 0) -> None:
        self.name = name
        self.epoch = epoch
        """The least epoch to join with; it must be larger than any that this name used before it started."""
        self.rows: dict[str, Row] = {}
        self.known: dict[str, GroupInfo] = {}
        """What is known of the groups whose row is PENDING or MEMBER."""

    # ── what the application wants ────────────────────────────────────────────────────────────────────────────────

    def advertise(self) -> Advertisement:
        """Be here, or be here again: what was declined may be offered once more."""
        self.rows = {group: row for group, row in self.rows.items() if row is not Row.DECLINED}
        return Advertisement(self.name)

    def create(self, group: str, description: str = "") -> GroupsInfo:
        """Begin a group with this process in it."""
        if group in self.rows:
            raise ValueError(f"{self.name} has heard of the group {group} already: join it, or choose another name")
        epoch = self._next_epoch({})
        info = GroupInfo(group, description, {self.name: (epoch, IN)})
        self.rows[group], self.known[group] = Row.MEMBER, info
        return GroupsInfo(self.name, [info])

    def remember(self, info: GroupInfo) -> None:
        """This process was in a group before it started anew, or joined it by other means; it may be out again."""
        self.rows[info.group] = Row.MEMBER
        self.known[info.group] = info
        self._merge(info.group, {})

    def join(self, group: str) -> Joined:
        """Take an offer."""
        if self.rows.get(group) is not Row.PENDING:
            raise ValueError(f"{self.name} can only join a group that is offered to it, and {group} is not")
        view = self.known[group].view
        epoch = self._next_epoch(view)
        self.rows[group] = Row.MEMBER
        self._merge(group, {self.name: (epoch, IN)})
        return Joined(group, self.name, epoch)

    def decline(self, group: str) -> None:
        """Refuse an offer."""
        if self.rows.get(group) is not Row.PENDING:
            raise ValueError(f"{self.name} can only decline a group that is offered to it, and {group} is not")
        self._close(group)

    def leave(self, group: str) -> Left:
        """Be a member no longer."""
        if self.rows.get(group) is not Row.MEMBER:
            raise ValueError(f"{self.name} can only leave a group it is in, and it is not in {group}")
        epoch = self.known[group].view[self.name][0]
        self.epoch = max(self.epoch, epoch + 1)
        self._close(group)
        return Left(group, self.name, epoch)

    # ── what is heard ─────────────────────────────────────────────────────────────────────────────────────────────

    def hear(self, heard: Heard) -> list[GroupsInfo | Offer]:
        """What somebody said, this process itself included: what to answer everybody, and what to offer."""
        if isinstance(heard, Advertisement):
            told = [self.known[group] for group, row in self.rows.items() if row is Row.MEMBER]
            return [GroupsInfo(self.name, told)] if told else []
        if isinstance(heard, GroupsInfo):
            return [offer for info in heard.groups if (offer := self._told(info)) is not None]
        if heard.group in self.known:
            self._merge(heard.group, {heard.name: (heard.epoch, OUT if isinstance(heard, Left) else IN)})
        return []

    def _told(self, info: GroupInfo) -> Offer | None:
        row = self.rows.get(info.group)
        if row is None:
            if len(self.rows) >= GROUPS_MAX:
                return None
            self.rows[info.group] = Row.PENDING
            self.known[info.group] = info
            return Offer(info)
        if row is not Row.DECLINED:
            self._merge(info.group, info.view)
        return None

    def _merge(self, group: str, view: View) -> None:
        info = self.known[group]
        merged = merge(info.view, view)
        self.known[group] = GroupInfo(group, info.description, merged)
        if self.rows[group] is Row.MEMBER and merged[self.name][1] is OUT:
            self._close(group)  # others put it out

    def _close(self, group: str) -> None:
        self.rows[group] = Row.DECLINED
        del self.known[group]

    def _next_epoch(self, view: View) -> int:
        """Larger than every epoch that this name had in the group, as far as anybody told."""
        used = view.get(self.name)
        return self.epoch if used is None else max(self.epoch, used[0] + 1)
