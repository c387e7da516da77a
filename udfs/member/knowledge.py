"""What a member knows of its group, from the records of its sequence.

Order and members are functions of the sequence, so all who have read as far know the same. To hear a record again
changes nothing: the view is a semilattice (peers/views.py), ids are a set.
"""

from collections.abc import Mapping
from operator import itemgetter
from typing import Any

import msgspec

from precede.udfs.engine.runs import Runs
from precede.udfs.limits import Limits
from precede.udfs.orders import ORDERS
from precede.udfs.peers.views import IN, View, raise_to, standings, view_of
from precede.udfs.records.lenient import raw_fields
from precede.udfs.records.messages import Create, Id, Who

MISSING_MAX = 10_000
"""Of how many missing messages a member keeps the ids."""

_READ = frozenset(
    {
        *("group", "sender", "epoch", "seq", "kind", "order", "status", "position", "destination"),
        *("after", "seen", "to", "sent", "time", "clock_ms", "object"),
        *("options", "members", "member", "last", "key"),
    }
)
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def heard(record: bytes) -> dict[str, Any]:
    """An ordered record without what is the application's own: `data` may hold what no reader of JSON takes."""
    fields: Mapping[str, Any]
    try:
        fields = _fields(record)
        if "kind" in fields:
            fields = raw_fields(record)
    except (msgspec.DecodeError, RecursionError):
        fields = raw_fields(record)
    return {name: msgspec.json.decode(value) for name, value in fields.items() if name in _READ}


class Knowledge:
    """Order, members and delivered ids of one group, as far as its sequence was heard."""

    def __init__(self) -> None:
        self.order: str | None = None
        self.closed = False
        self.conflicts: list[tuple[str, str]] = []
        """Which operations conflict, by the group's `create` record."""
        self.view: View = {}
        self.window = Limits().window
        """How far past what the group has seen its members may go."""
        self.has_keys = False
        """Whether the group takes nothing unsigned, by its `create` record."""
        self.keys: dict[str, list[tuple[int, str]]] = {}
        """Who has a key: the epoch from which on each counts, the newest last."""
        self.is_of_old = False
        """Whether it was kept by a version that did not know of keys and window, so that they must be read again."""
        self.time = 0
        """The largest linear time that was delivered."""
        self.delivered: dict[Who, Runs] = {}
        """Of each (sender, epoch), which seqs were delivered here or given up."""
        self.given_up = 0
        self.missing: dict[Id, None] = {}
        """What the group is known to wait for."""

    def learn(self, record: Mapping[str, Any]) -> None:
        """A record stands in the group's sequence: what it says of the group itself."""
        self.order = record["order"]
        if "time" in record:
            self.time = max(self.time, record["time"])
        if record.get("kind") == "create":
            options = record.get("options", {})
            self._created(record["order"], options)
        if "key" in record:
            self.take_key(record["sender"], record.get("epoch", 0), record["key"])
        for name, standing in standings(record):
            raise_to(self.view, name, standing)

    def created(self, record: Create, usual: str) -> str:
        """The group's first record stands in the log, and nothing of it is ordered yet; the order it asks for."""
        options = msgspec.to_builtins(record.options)
        order = str(options.get("order", usual))
        self._created(order, options)
        self.view |= view_of(record.members)
        return order

    def _created(self, order: str, options: Mapping[str, Any]) -> None:
        # Where clocks decide, a created group waits for its members, so it has to know them: it is closed.
        self.closed = options.get("closed") is True or (order in ORDERS and ORDERS[order].by_clocks)
        self.conflicts = [(one, other) for one, other in options.get("conflicts", [])]
        self.window = options.get("window", self.window)
        self.has_keys = "keys" in options
        for name, key in options.get("keys", {}).items():
            self.take_key(name, 0, key)

    def take_key(self, name: str, epoch: int, key: str) -> None:
        """From this epoch of a member on this key counts."""
        known = self.keys.setdefault(name, [])
        if (epoch, key) not in known:
            known.append((epoch, key))
            known.sort(key=itemgetter(0))

    def key_of(self, name: str, epoch: int) -> str | None:
        """The key that counts in this epoch of a member."""
        keys = [key for since, key in self.keys.get(name, ()) if since <= epoch]
        return keys[-1] if keys else None

    def newest_key(self, name: str) -> str | None:
        """The key that counts for what is of no epoch."""
        keys = self.keys.get(name)
        return keys[-1][1] if keys else None

    def deliver(self, record: Mapping[str, Any]) -> None:
        """A record was delivered here: its id may be answered from now on."""
        self.learn(record)
        if record.get("kind", "message") != "message":
            return
        id_ = record["sender"], record.get("epoch", 0), record["seq"]
        self.given_up += record["status"] == "abandoned" and not self.has(id_)
        self.settle(id_)

    def settle(self, id_: Id) -> None:
        """This message is known here."""
        name, epoch, seq = id_
        self.delivered.setdefault((name, epoch), Runs()).add(seq)
        self.missing.pop(id_, None)

    def has(self, id_: Id) -> bool:
        name, epoch, seq = id_
        runs = self.delivered.get((name, epoch))
        return runs is not None and seq in runs

    def asked(self, id_: Id) -> None:
        """Somebody asks for a message: the group waits for it, unless it is here."""
        if len(self.missing) < MISSING_MAX and not self.has(id_):
            self.missing[id_] = None

    def is_in(self, name: str, epoch: int) -> bool:
        return self.view.get(name) == (epoch, IN)

    def is_out(self, name: str, epoch: int) -> bool:
        """Whether this epoch has ended: it left, was put out, or came back with a larger one."""
        return self.view.get(name, (epoch, IN)) > (epoch, IN)

    def last_over(self, name: str) -> int:
        """The largest epoch of this name that has ended, -1 where none has."""
        epoch, is_out = self.view.get(name, (0, IN))
        return epoch if is_out else epoch - 1

    def dump(self) -> dict[str, Any]:
        """All that reading on does not tell, as plain data."""
        return {
            "order": self.order,
            "closed": self.closed,
            "conflicts": self.conflicts,
            "window": self.window,
            "has_keys": self.has_keys,
            "keys": self.keys,
            "view": [[name, *standing] for name, standing in self.view.items()],
            "time": self.time,
            "delivered": [[name, epoch, runs.dump()] for (name, epoch), runs in self.delivered.items()],
            "given_up": self.given_up,
        }

    def load(self, dumped: Mapping[str, Any]) -> None:
        """Take what `dump` gave."""
        self.order, self.closed = dumped["order"], dumped["closed"]
        self.conflicts = [(one, other) for one, other in dumped["conflicts"]]
        self.is_of_old = "window" not in dumped
        if not self.is_of_old:
            self.window, self.has_keys = dumped["window"], dumped["has_keys"]
            self.keys = {name: [(epoch, key) for epoch, key in keys] for name, keys in dumped["keys"].items()}
        self.view = {name: (epoch, out) for name, epoch, out in dumped["view"]}
        self.time, self.given_up = dumped["time"], dumped["given_up"]
        for name, epoch, runs in dumped["delivered"]:
            self.delivered[name, epoch] = Runs()
            self.delivered[name, epoch].fill(runs)
