"""Messages of one group with the stamps of one order, to measure order by order.

Every member has received all earlier messages when it sends, so vectors are as long, and clocks as close, as possible.
"""

import json
import random
from collections.abc import Callable, Iterator
from typing import Any

from bench.traffic import Pair

GROUP = b"group"
SPARSE = "causal, sparse"
"""`causal` with only the entries that changed since the sender's last message."""

Ids = list[list[Any]]


class Conversation:
    """The common knowledge of all members, and the stamps of their messages."""

    def __init__(self, members: int, seed: int) -> None:
        self.names = [f"member-{number:04}" for number in range(members)]
        self.chance = random.Random(seed)
        self.seqs: dict[str, int] = {}
        self.lasts: Ids = []
        self.time = 0
        self.knew: dict[str, dict[str, int]] = {}
        self.sent: dict[str, list[Any]] = {}

    def say(self, stamp: "Stamp", sender: str | None = None) -> bytes:
        """The next message, of this sender or of any."""
        name = self.chance.choice(self.names) if sender is None else sender
        self.time += 1
        seq = self.seqs[name] = self.seqs.get(name, 0) + 1
        record = {"group": GROUP.decode(), "sender": name, "seq": seq, **stamp(self, name)}
        record["data"] = f"message {self.time} of a person who writes"
        self.lasts = [*self.lasts[-3:], [name, 0, seq]]
        return json.dumps(record, separators=(",", ":")).encode()

    def answered(self, most: int) -> Ids:
        """Some of the last messages."""
        return self.chance.sample(self.lasts, min(len(self.lasts), most))

    def vector(self) -> Ids:
        return [[name, 0, seq] for name, seq in self.seqs.items()]

    def changed(self, sender: str) -> Ids:
        knew = self.knew.get(sender, {})
        self.knew[sender] = dict(self.seqs)
        return [[name, 0, seq] for name, seq in self.seqs.items() if name == sender or knew.get(name) != seq]

    def addressed(self, sender: str) -> dict[str, Any]:
        """To two members that got messages before; the rest of the table is known to be delivered."""
        to = self.chance.sample(self.names, min(2, len(self.names)))
        stamp = {name: [self.sent[name]] for name in to if name in self.sent}
        own = [sender, 0, self.seqs[sender]]
        self.sent |= dict.fromkeys(to, own)
        return {"to": to, "seen": [own], "sent": stamp}


Stamp = Callable[[Conversation, str], dict[str, Any]]

STAMPS: dict[str, Stamp] = {
    "s_b": lambda talk, _: {"after": talk.answered(1)},
    "fifo": lambda *_: {},
    "causal": lambda talk, _: {"seen": talk.vector()},
    SPARSE: lambda talk, sender: {"seen": talk.changed(sender)},
    "causal_p2p": lambda talk, sender: talk.addressed(sender),
    "total": lambda *_: {},
    "lamport": lambda talk, _: {"time": talk.time},
    "two_clock": lambda talk, _: {"time": talk.time, "clock_ms": 10 * talk.time},
    "object": lambda talk, _: {"after": talk.answered(2)},
}
"""By the name of the measurement; the order is the part before a comma."""


def order_of(row: str) -> str:
    return row.partition(",")[0]


def created(row: str, names: list[str], **options: int) -> bytes:
    """The record that creates the group; where clocks decide, all members must be known."""
    record = {"group": GROUP.decode(), "kind": "create", "options": {"order": order_of(row), **options}}
    return json.dumps({**record, "members": names}).encode()


def sent(row: str, members: int, count: int, *, seed: int = 1) -> Iterator[Pair]:
    """This many messages of any members, in the order they were sent."""
    talk = Conversation(members, seed)
    for _ in range(count):
        yield GROUP, talk.say(STAMPS[row])
