"""`ObjectHost.serve` over Kafka with a running job: hosts in threads, transactions that commit and that abort."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterator
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

import precede
from precede import AnyOf, Call, CallFailed, ObjectHost, ReceiveData, SendData
from precede.local.embedded_broker import Broker
from precede.member.object_host import Invocation, read_object_record
from precede.udfs.member.objects import Conflicts, precedes
from tests.faults.running import Running
from tests.records import by_kernel
from tests.simulation import created
from tests.system.stream import Stream

CONFLICTS = [("pay", "pay"), ("pay", "take"), ("pay", "show"), ("take", "take"), ("take", "show")]
HOSTS = ("east", "west", "ledger")
START = 100
PATIENCE_S = 4.0


class Account:
    """Money, what was done with it, and how a payment and a withdrawal are undone."""

    def __init__(self) -> None:
        self.money = START
        self.did: list[str] = []

    def pay(self, amount: int) -> int:
        self.money += amount
        self.did.append(f"pay {amount}")
        return self.money

    def _undo_pay(self, result: int, amount: int) -> None:
        self.money -= amount
        self.did.append(f"undo pay {amount}")

    def take(self, amount: int) -> int:
        if amount > self.money:
            raise ValueError(f"there are only {self.money}")
        self.money -= amount
        self.did.append(f"take {amount}")
        return self.money

    def _undo_take(self, result: int, amount: int) -> None:
        self.money += amount
        self.did.append(f"undo take {amount}")

    def show(self) -> int:
        return self.money


class Ledger:
    def __init__(self) -> None:
        self.noted: list[int] = []

    def note(self) -> Generator[Any, Any, int]:
        """Notes the numbers that the caller sends, until there is a 0."""
        while number := (yield ReceiveData(precede.CALLER)):
            self.noted.append(number)
        return len(self.noted)


@pytest.fixture
def stream(broker: Broker, tmp_path: Path) -> Iterator[Stream]:
    """A stream whose job runs, with the group `bank`."""
    stream = Stream(broker.bootstrap, tmp_path, engine="process", only="order", cache=str(tmp_path / "cache"))
    stream.send([(b"bank", created("object", [], group="bank", conflicts=CONFLICTS))])
    job = Running(stream, folder=tmp_path)
    try:
        job.until(lambda: bool(stream.ordered()), "the group", 60)
        yield stream
        job.stop()
    finally:
        job.kill()


def member(stream: Stream, name: str, folder: Path) -> precede.Member:
    settings = stream.settings
    return precede.Member(
        "bank",
        name,
        bootstrap=settings.bootstrap,
        raw_topic=settings.raw_topic,
        ordered_topic=settings.ordered_topic,
        control_topic=settings.control_topic,
        progress_topic=settings.progress_topic,
        state=folder / f"{name}.json",
        patience_s=PATIENCE_S,
    )


def serve(stream: Stream, name: str, target: object, folder: Path) -> threading.Thread:
    """Host an object in a thread, until nothing comes for some seconds."""
    ready = threading.Event()

    def run() -> None:
        with member(stream, name, folder) as hosting:
            host = ObjectHost(hosting, target)
            ready.set()
            host.serve()

    thread = threading.Thread(target=run, name=name)
    thread.start()
    assert ready.wait(30)
    return thread


def transfer(source: str, to: str, amount: int) -> Generator[Any, Any, int]:
    """Take here, pay there; what was paid is given back if there is not enough to take."""
    yield Call(to, "pay", (amount,))
    return (yield Call(source, "take", (amount,)))  # type: ignore[no-any-return]


def audit() -> Generator[Any, Any, Any]:
    """Look at both at once, and tell the ledger by data."""
    noting = yield Call("ledger", "note", wait=False)
    shown = yield [Call("east", "show"), Call("west", "show")]
    yield SendData(noting, sum(shown))
    yield SendData(noting, 0)
    first = yield AnyOf(noting)
    return sum(shown), first.result


def until_done(member: precede.Member, host: ObjectHost, asked: list[Invocation], limit_s: float = 60.0) -> None:
    deadline = time.monotonic() + limit_s
    while not all(one.done for one in asked):
        assert time.monotonic() < deadline, "not every transaction was answered"
        delivery = member.poll(0.1)
        if delivery is not None:
            host.deliver(delivery.record)


def test_transactions_over_kafka_commit_or_leave_nothing_and_the_log_has_every_predecessor_first(
    stream: Stream, tmp_path: Path
) -> None:
    east, west, ledger = Account(), Account(), Ledger()
    threads = [serve(stream, name, target, tmp_path) for name, target in zip(HOSTS, (east, west, ledger), strict=True)]
    with member(stream, "teller", tmp_path) as teller:
        host = ObjectHost(teller)
        assert {("pay", "show"), ("take", "show")} <= set(host_conflicts(teller))
        transfers, shown = [], []
        for amount in (30, 500, 20, 700, 10):
            transfers.append(host.perform("transfer", transfer("east", "west", amount)))
            looked = host.invoke("west", "show")
            until_done(teller, host, [transfers[-1], looked])
            shown.append(looked.result)
        audited = host.perform("audit", audit())
        until_done(teller, host, [audited])
    for thread in threads:
        thread.join(60)
    assert [outcome(one) for one in transfers] == [70, "ValueError", 50, "ValueError", 40]
    assert (east.money, west.money) == (40, 160)
    assert west.did == ["pay 30", "pay 500", "undo pay 500", "pay 20", "pay 700", "undo pay 700", "pay 10"]
    assert shown == [130, 130, 150, 150, 160], "nobody sees what does not stay"
    assert (audited.result, ledger.noted) == ((2 * START, 1), [2 * START])
    assert_lawful(stream)


def test_replicas_that_are_served_apart_do_the_same(stream: Stream, tmp_path: Path) -> None:
    east, west = Account(), Account()
    threads = [serve(stream, name, target, tmp_path) for name, target in (("east", east), ("west", west))]
    asked: list[Invocation] = []

    def client(name: str) -> Callable[[], None]:
        def run() -> None:
            with member(stream, name, tmp_path) as mine:
                host = ObjectHost(mine)
                both = ("east", "west")
                own = [host.invoke(both, op, amount) for amount in range(1, 6) for op in ("pay", "take")]
                asked.extend(own)
                until_done(mine, host, own)

        return run

    clients = [threading.Thread(target=client(name)) for name in ("ann", "bob")]
    for thread in clients:
        thread.start()
    for thread in [*clients, *threads]:
        thread.join(90)
    assert len(asked) == 20
    assert all(one.done for one in asked)
    assert east.did == west.did
    assert len(east.did) == 20
    assert all(one.result["east"] == one.result["west"] for one in asked)
    assert_lawful(stream)


def host_conflicts(member: precede.Member) -> list[tuple[str, str]]:
    return [tuple(pair) for pair in member.conflicts]  # type: ignore[misc]


def outcome(one: Invocation) -> Any:
    try:
        return one.result
    except CallFailed as error:
        return str(error).split(":")[0]


def assert_lawful(stream: Stream) -> None:
    """The topic is the kernel's, nothing was refused, and significant predecessors come first (4.2)."""
    ordered, dead = by_kernel(stream.raw(), partitions=2)
    assert stream.ordered() == ordered
    assert dead == []
    read = [read_object_record(record) for record in ordered[b"bank"]]
    messages = [one[0] for one in read if one is not None]
    assert len(messages) > 20
    place = {one.id: at for at, one in enumerate(messages)}
    pairs = [pair for pair in permutations(messages, 2) if precedes(*pair, Conflicts(CONFLICTS))]
    assert pairs
    for one, other in pairs:
        if one.source == other.source and one.id > other.id:
            continue  # a transaction that began earlier said it later: those of a client run side by side
        assert place[one.id] < place[other.id]
