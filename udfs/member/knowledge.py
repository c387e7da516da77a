"""What a member knows about its group, from the records of the group's sequence.

Order and members are functions of the sequence, so all members that have read equally far know the same. Reading a
record twice changes nothing: the view is a semilattice (peers/views.py), and ids are a set.
"""

from collections.abc import Mapping
from operator import itemgetter
from typing import Any

import msgspec

from precede.udfs.engine.interfaces import is_closed
from precede.udfs.engine.runs import Runs
from precede.udfs.limits import Limits
from precede.udfs.orders import ORDERS
from precede.udfs.peers.views import IN, View, raise_standing, standings, view_of
from precede.udfs.records.messages import Create, Id, Who
from precede.udfs.records.published import raw_fields

MISSING_MAX = 10_000
"""How many ids of missing messages a member keeps."""

_READ = frozenset(
    {
        *("group", "sender", "epoch", "seq", "kind", "order", "status", "position", "destination"),
        *("after", "seen", "to", "sent", "time", "clock_ms", "object"),
        *("options", "members", "member", "last", "key"),
    }
)
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def read_without_data(record: bytes) -> dict[str, Any]:
    """The fields of an ordered record that precede needs; `data` may hold what no JSON reader accepts."""
    fields: Mapping[str, Any]
    try:
        fields = _fields(record)
        if "kind" in fields:
            fields = raw_fields(record)
    except (msgspec.DecodeError, RecursionError):
        fields = raw_fields(record)
    return {name: msgspec.json.decode(value) for name, value in fields.items() if name in _READ}


class Knowledge:
    """Order, members and delivered ids of one group, as far as its sequence was read."""

    def __init__(self) -> None:
        self.order: str | None = None
        self.closed = False
        self.conflicts: list[tuple[str, str]] = []
        """Which operations conflict, according to the group's `create` record."""
        self.view: View = {}
        self.window = Limits().window
        """How far its members may go beyond what the group has seen."""
        self.has_keys = False
        """Whether the group accepts signed records only, according to its `create` record."""
        self.keys: dict[str, list[tuple[int, str]]] = {}
        """Keys by member, each with its first epoch, the newest last."""
        self.time = 0
        """The largest delivered linear time."""
        self.delivered: dict[Who, Runs] = {}
        """The seqs delivered or abandoned here, by (sender, epoch)."""
        self.given_up = 0
        self.missing: dict[Id, None] = {}
        """Messages that the group is known to wait for."""

    def learn(self, record: Mapping[str, Any]) -> None:
        """Take in what a record of the sequence says about the group itself."""
        self.order = record["order"]
        if "time" in record:
            self.time = max(self.time, record["time"])
        if record.get("kind") == "create":
            options = record.get("options", {})
            self._apply_options(record["order"], options)
        if "key" in record:
            self.add_key(record["sender"], record.get("epoch", 0), record["key"])
        for name, standing in standings(record):
            raise_standing(self.view, name, standing)

    def apply_create(self, record: Create, usual: str) -> str:
        """Take in the group's first record from the raw log, before anything is ordered; returns its order."""
        options = msgspec.to_builtins(record.options)
        order = str(options.get("order", usual))
        self._apply_options(order, options)
        self.view |= view_of(record.members)
        return order

    def _apply_options(self, order: str, options: Mapping[str, Any]) -> None:
        self.closed = is_closed(options.get("closed"), ORDERS.get(order))
        self.conflicts = [(one, other) for one, other in options.get("conflicts", [])]
        self.window = options.get("window", self.window)
        self.has_keys = "keys" in options
        for name, key in options.get("keys", {}).items():
            self.add_key(name, 0, key)

    def add_key(self, name: str, epoch: int, key: str) -> None:
        """Add a key that is valid from this epoch of the member."""
        known = self.keys.setdefault(name, [])
        if (epoch, key) not in known:
            known.append((epoch, key))
            known.sort(key=itemgetter(0))

    def key_of(self, name: str, epoch: int) -> str | None:
        """The key that is valid in this epoch of a member."""
        keys = [key for since, key in self.keys.get(name, ()) if since <= epoch]
        return keys[-1] if keys else None

    def newest_key(self, name: str) -> str | None:
        """The newest key, for records without an epoch."""
        keys = self.keys.get(name)
        return keys[-1][1] if keys else None

    def deliver(self, record: Mapping[str, Any]) -> None:
        """Take in a delivered record; later messages may answer it."""
        self.learn(record)
        if record.get("kind", "message") != "message":
            return
        id_ = record["sender"], record.get("epoch", 0), record["seq"]
        self.given_up += record["status"] == "abandoned" and not self.has(id_)
        self.settle(id_)

    def settle(self, id_: Id) -> None:
        """Mark this message as known here."""
        name, epoch, seq = id_
        self.delivered.setdefault((name, epoch), Runs()).add(seq)
        self.missing.pop(id_, None)

    def has(self, id_: Id) -> bool:
        name, epoch, seq = id_
        runs = self.delivered.get((name, epoch))
        return runs is not None and seq in runs

    def note_missing(self, id_: Id) -> None:
        """Note a requested message as missing, unless it is here."""
        if len(self.missing) < MISSING_MAX and not self.has(id_):
            self.missing[id_] = None

    def is_in(self, name: str, epoch: int) -> bool:
        return self.view.get(name) == (epoch, IN)

    def is_out(self, name: str, epoch: int) -> bool:
        """Whether this epoch has ended: the member left, was evicted, or returned with a larger epoch."""
        return self.view.get(name, (epoch, IN)) > (epoch, IN)

    def last_ended_epoch(self, name: str) -> int:
        """The largest epoch of this name that has ended, or -1."""
        epoch, is_out = self.view.get(name, (0, IN))
        return epoch if is_out else epoch - 1

    def dump(self) -> dict[str, Any]:
        """Everything that reading on does not provide, as plain data."""
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
        """Restore what `dump` returned."""
        self.order, self.closed = dumped["order"], dumped["closed"]
        self.conflicts = [(one, other) for one, other in dumped["conflicts"]]
        self.window, self.has_keys = dumped["window"], dumped["has_keys"]
        self.keys = {name: [(epoch, key) for epoch, key in keys] for name, keys in dumped["keys"].items()}
        self.view = {name: (epoch, out) for name, epoch, out in dumped["view"]}
        self.time, self.given_up = dumped["time"], dumped["given_up"]
        for name, epoch, runs in dumped["delivered"]:
            self.delivered[name, epoch] = Runs()
            self.delivered[name, epoch].fill(runs)
