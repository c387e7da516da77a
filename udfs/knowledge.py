"""What a member knows of its group, from the records that were delivered to it.

The order and who is in are functions of the group's sequence, so every member that has read as far knows the same. To
hear a record again changes nothing: members are a semilattice by (epoch, out over in), ids are a set.
"""

from collections.abc import Mapping
from typing import Any

from udfs.intervals import Runs
from udfs.messages import Id
from udfs.orders import ORDERS

ASKED_MAX = 10_000
"""Of how many missing messages a member keeps the ids."""


class Knowledge:
    """Order, members and delivered ids of one group, as far as its sequence was heard."""

    def __init__(self) -> None:
        self.order: str | None = None
        self.closed = False
        self.conflicts: list[tuple[str, str]] = []
        """The `conflicts` of the group's `create` record."""
        self.members: dict[str, tuple[int, bool]] = {}
        """Of each name, the largest epoch that joined, and whether it is in."""
        self.position = 0
        """The highest position that was heard of."""
        self.time = 0
        """The largest linear time that was delivered."""
        self.delivered: dict[tuple[str, int], Runs] = {}
        """Of each (sender, epoch), which seqs were delivered or given up."""
        self.given_up = 0
        self.missing: dict[Id, None] = {}
        """What the group is known to wait for."""

    def learn(self, record: Mapping[str, Any]) -> None:
        """A record stands in the group's sequence: what it says of the group itself."""
        self.order = record["order"]
        self.position = max(self.position, record["position"])
        if isinstance(time := record.get("time"), int):
            self.time = max(self.time, time)
        kind = record.get("kind", "message")
        if kind == "create":
            options = record.get("options") or {}
            # Where clocks decide, a group that was created waits for its members and so has to know them all.
            self.closed = bool(options.get("closed")) or ORDERS[record["order"]].by_clocks
            self.conflicts = [(one, other) for one, other in options.get("conflicts") or []]
            for name in record.get("members") or []:
                self._member(name, 0, is_in=True)
        elif kind == "join":
            self._member(record["sender"], record.get("epoch", 0), is_in=True)
        elif kind == "leave":
            self._member(record["sender"], record.get("epoch", 0), is_in=False)
        elif kind == "evict":
            name, epoch = record["member"]
            self._member(name, epoch, is_in=False)

    def deliver(self, record: Mapping[str, Any]) -> None:
        """A record was delivered here: its id may be answered from now on."""
        self.learn(record)
        if record.get("kind", "message") != "message":
            return
        id_ = record["sender"], record.get("epoch", 0), record["seq"]
        if record["status"] == "abandoned" and not self.has(id_):
            self.given_up += 1
        self.settle(id_)

    def settle(self, id_: Id) -> None:
        """This message is known here."""
        name, epoch, seq = id_
        self.delivered.setdefault((name, epoch), Runs()).add(seq)
        self.missing.pop(id_, None)

    def has(self, id_: Id) -> bool:
        """Whether a message was delivered here."""
        name, epoch, seq = id_
        runs = self.delivered.get((name, epoch))
        return runs is not None and seq in runs

    def asked(self, id_: Id) -> None:
        """Somebody asks for a message: the group waits for it, unless it is here already."""
        if len(self.missing) < ASKED_MAX and not self.has(id_):
            self.missing[id_] = None

    def is_in(self, name: str, epoch: int) -> bool:
        return self.members.get(name) == (epoch, True)

    def is_out(self, name: str, epoch: int) -> bool:
        """Whether this epoch has ended: it left, was put out, or came back with a larger one."""
        known = self.members.get(name)
        return known is not None and (known[0] > epoch or known == (epoch, False))

    def _member(self, name: str, epoch: int, *, is_in: bool) -> None:
        known = self.members.get(name)
        if known is None or epoch > known[0] or (epoch == known[0] and not is_in):
            self.members[name] = (epoch, is_in)

    def dump(self) -> dict[str, Any]:
        """All of it, as plain data."""
        return {
            "order": self.order,
            "closed": self.closed,
            "conflicts": self.conflicts,
            "members": [[name, epoch, is_in] for name, (epoch, is_in) in self.members.items()],
            "position": self.position,
            "time": self.time,
            "delivered": [[name, epoch, runs.dump()] for (name, epoch), runs in self.delivered.items()],
            "given_up": self.given_up,
        }

    @classmethod
    def load(cls, dumped: Mapping[str, Any]) -> "Knowledge":
        """What `dump` gave."""
        known = cls()
        known.order, known.closed, known.position = dumped["order"], dumped["closed"], dumped["position"]
        known.conflicts = [(one, other) for one, other in dumped["conflicts"]]
        known.members = {name: (epoch, is_in) for name, epoch, is_in in dumped["members"]}
        known.time, known.given_up = dumped["time"], dumped["given_up"]
        for name, epoch, runs in dumped["delivered"]:
            known.delivered[name, epoch] = Runs()
            known.delivered[name, epoch].fill(runs)
        return known
