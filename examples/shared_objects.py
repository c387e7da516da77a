"""A replicated counter and bank account, invoked by several clients over couriers that delay and reorder.

python examples/shared_objects.py

Conflicting requests run in the same order at every replica; other requests never wait for each other. No Kafka is
needed: the kernel replaces the stream. With Kafka, use a member's `send` and its messages in place of the kernel.
"""

from typing import Any

from precede import Call, Holdback, ObjectHost
from precede.demo.lossy_path import Courier, LossyPath
from precede.udfs.records.wire import encode_message

CONFLICTS = [
    ("increment", "show"),
    ("decrement", "show"),
    ("deposit", "balance"),
    ("withdraw", "balance"),
    ("withdraw", "withdraw"),  # the second may find the account empty
    ("deposit", "withdraw"),
    ("deposit", "audit"),
    ("withdraw", "audit"),
]
REPLICAS = ("east", "west")


class Shared:
    """The state of a replica: one counter, one account, and what was done in which order."""

    def __init__(self) -> None:
        self.count = 0
        self.money = 100
        self.done: list[str] = []

    def increment(self) -> None:
        self.count += 1
        self.done.append("increment")

    def decrement(self) -> None:
        self.count -= 1
        self.done.append("decrement")

    def show(self) -> int:
        self.done.append(f"show {self.count}")
        return self.count

    def deposit(self, amount: int) -> None:
        self.money += amount
        self.done.append(f"deposit {amount}")

    def withdraw(self, amount: int) -> bool:
        enough = self.money >= amount
        self.money -= amount if enough else 0
        self.done.append(f"withdraw {amount}{'' if enough else ': refused'}")
        return enough

    def balance(self) -> int:
        self.done.append(f"balance {self.money}")
        return self.money

    def audit(self) -> Any:
        """A method that invokes one of another object, and waits for its answer."""
        noted = yield Call("ledger", "note", (self.money,))
        self.done.append(f"audit {self.money} as entry {noted}")
        return noted


class Ledger:
    def __init__(self) -> None:
        self.entries: list[int] = []

    def note(self, money: int) -> int:
        self.entries.append(money)
        return len(self.entries)


holdback = Holdback(order="object")
log: list[bytes] = []
hosts: dict[str, ObjectHost] = {}
ordered: list[bytes] = []


def arrive(value: bytes) -> None:
    holdback.receive(value, b"shop", offset=len(log), timestamp_ms=0)
    log.append(value)
    ordered.extend(holdback.ordered)
    holdback.clear()


paths = [LossyPath(seed=number, delay_s=(0.0, 3.0), repeat=0.2) for number in (1, 2)]
couriers = [Courier(arrive, path) for path in paths]
seqs: dict[str, int] = {}
now_s = 0.0


class Speaker:
    """Stands for a `precede.Member`: a name, the group's conflicts, and a way to send."""

    conflicts = CONFLICTS

    def __init__(self, name: str) -> None:
        self.name = name

    def send(self, data: Any, **stamp: Any) -> tuple[str, int, int]:
        seq = seqs[self.name] = seqs.get(self.name, 0) + 1
        couriers[len(seqs) % 2].take(encode_message("shop", self.name, 0, seq, data=data, **stamp), now_s=now_s)
        return (self.name, 0, seq)


targets = {"east": Shared(), "west": Shared(), "ledger": Ledger()}
for name in ("east", "west", "ledger", "ann", "bob", "cem"):
    hosts[name] = ObjectHost(Speaker(name), targets.get(name))

PLAN: list[tuple[Any, ...]] = [
    ("increment",),
    ("deposit", 10),
    ("withdraw", 70),
    ("decrement",),
    ("show",),
    ("withdraw", 60),
    ("balance",),
]
invoked = []
for turn in range(200):
    now_s = turn * 0.5
    if turn < 60:
        op, *arguments = PLAN[turn * 5 % len(PLAN)]
        invoked.append((op, hosts[["ann", "bob", "cem"][turn % 3]].invoke(REPLICAS, op, *arguments)))
    if turn == 62:
        audit = hosts["ann"].invoke("east", "audit")
    for courier in couriers:
        courier.pump(now_s=now_s)
    for record in ordered:
        for host in hosts.values():
            host.deliver(record)
    ordered.clear()

east, west = targets["east"], targets["west"]
assert isinstance(east, Shared)
assert isinstance(west, Shared)
alike = all(one.result["east"] == one.result["west"] for _, one in invoked)
print(f"{len(invoked)} requests to 2 replicas, all answered: {all(one.done for _, one in invoked)}")
print(f"the same answers from both: {alike}")
print(f"count {east.count} and {west.count}, money {east.money} and {west.money}, audited as entry {audit.result}")
print(f"the last steps: {', '.join(east.done[-3:])}")
