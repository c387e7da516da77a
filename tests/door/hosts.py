"""Hosts of objects whose messages go through the kernel, without Kafka."""

from __future__ import annotations

from typing import Any

from precede import Holdback, ObjectHost, Unconfirmed
from precede.udfs.records.messages import Id
from precede.udfs.records.wire import encode_message


class Group:
    """Hosts whose messages go through the kernel; nothing is delivered before `step` or `settle`."""

    def __init__(self, *clients: str, conflicts: list[tuple[str, str]] | None = None, **targets: object) -> None:
        self.kernel = Holdback(order="object")
        self.conflicts = conflicts or []
        self.seqs: dict[str, int] = {}
        self.log: list[bytes] = []
        self.taken = 0
        self.targets: dict[str, Any] = {}
        self.hosts: dict[str, ObjectHost] = {}
        everybody: dict[str, object] = dict.fromkeys(clients) | targets
        for name, target in everybody.items():
            self.add_host(name, target)

    def add_host(self, name: str, target: object = None) -> None:
        """A member that hosts this object, or only invokes others."""
        self.targets[name] = target
        self.hosts[name] = ObjectHost(Speaker(name, self, self.conflicts), target)

    def say(self, name: str, data: Any, **stamp: Any) -> Id:
        """Append a message to the log."""
        seq = self.seqs[name] = self.seqs.get(name, 0) + 1
        self.log.append(encode_message("g", name, 0, seq, data=data, **stamp))
        return (name, 0, seq)

    def step(self, count: int | None = None) -> None:
        """Deliver the messages so far, or the next few of them, without the answers to them."""
        end = len(self.log) if count is None else self.taken + count
        for record in self.log[self.taken : end]:
            self.kernel.receive(record, b"g", offset=self.taken)
            self.taken += 1
        ordered, dead = list(self.kernel.ordered), list(self.kernel.dead)
        self.kernel.clear()
        assert dead == []
        for record in ordered:
            for host in self.hosts.values():
                host.deliver(record)

    def settle(self) -> None:
        """Deliver until nothing is said any more."""
        while self.taken < len(self.log):
            self.step()


class Speaker:
    """A member whose messages go into the log of a `Group`."""

    def __init__(self, name: str, group: Group, conflicts: list[tuple[str, str]]) -> None:
        self.name = name
        self.group = group
        self.conflicts = conflicts
        self.unconfirmed = 0
        """So many messages are kept, as where Kafka does not answer, and go out before the next one."""
        self._kept: list[tuple[Any, dict[str, Any]]] = []

    def send(self, data: Any, **stamp: Any) -> Id:
        if any(value == {1} for value in data.values()):
            raise ValueError("data is a JSON value")
        if self.unconfirmed:
            if self._kept:
                raise Unconfirmed("Kafka did not confirm a record.")
            self.unconfirmed -= 1
            self._kept.append((data, stamp))
            error = Unconfirmed("Kafka did not confirm a record.")
            error.id = self.name, 0, self.group.seqs.get(self.name, 0) + 1
            raise error
        for kept, of in self._kept:
            self.group.say(self.name, kept, **of)
        self._kept.clear()
        return self.group.say(self.name, data, **stamp)
