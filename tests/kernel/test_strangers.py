"""Messages of a stranger in a closed group change nothing for others before it joins, in any order."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest

from precede.udfs.orders import ORDERS
from precede.udfs.records.messages import LogRecord
from tests.kernel import traffic
from tests.kernel.effort import seeds
from tests.kernel.feeding import feed

STRANGERS: list[tuple[str, int]] = [("x", 0), ("a", 7)]
"""Senders that never join: an unknown one, and a member in an unknown epoch."""


def closed_group(random: Random, order: str) -> list[LogRecord]:
    """Traffic of the members of a closed group, some of which follows messages of strangers."""
    options: dict[str, Any] = {"order": order, "closed": True, "window": random.choice([3, 12, 100_000])}
    if order == "two_clock":
        options |= {"accuracy_ms": random.randint(0, 20), "delay_max_ms": random.randint(0, 60)}
    pairs = [(one.value, one.key) for one in traffic.log(random, order, length=40).records if one.key != b"h"]
    for _ in range(random.randint(0, 3)):
        after_a_stranger = said_by(random, "b", 0, random.randint(1, 3), [["x", 0, random.randint(1, 3)]])
        pairs.insert(random.randint(0, len(pairs)), (encoded(after_a_stranger), b"g"))
    create = {"kind": "create", "options": options, "members": list("abc")}
    pairs.insert(0, (encoded(create), b"g"))
    return [LogRecord(value, key, 0, 100 * at, 1_000 + 10 * at) for at, (value, key) in enumerate(pairs)]


def encoded(fields: dict[str, Any]) -> bytes:
    return json.dumps({"group": "g", **fields}).encode()


def said_by(random: Random, name: str, epoch: int, seq: int, follows: list[list[Any]]) -> dict[str, Any]:
    """A message with the stamps of every order."""
    time = random.randint(0, 20)
    to = random.sample(["a", "b", "c", "m1", "m2", "m3"], random.randint(0, 4))
    stamps = {"after": follows, "seen": [[name, epoch, seq], *follows], "to": to, "sent": dict.fromkeys(to, follows)}
    return {"sender": name, "epoch": epoch, "seq": seq, "time": time, "clock_ms": 10 * time, **stamps}


@pytest.mark.parametrize("order", ORDERS)
def test_what_a_stranger_says_changes_nothing_for_others_before_it_joins(order: str) -> None:
    delivered = held = 0
    for seed in seeds(120):
        random = Random(f"{order} {seed}")
        members = closed_group(random, order)
        strange = []
        for at in random.sample(range(1, 100 * len(members)), 12):
            name, epoch = random.choice(STRANGERS)
            follows = [[random.choice("abc"), 0, random.randint(1, 3)] for _ in range(random.randint(0, 1))]
            said = said_by(random, name, epoch, random.randint(1, 6), follows)
            if at % 100:  # where the members have no record
                strange.append(LogRecord(encoded(said), b"g", 0, at, 1_000 + at // 10))
        mixed = sorted([*members, *strange], key=lambda one: one.offset)
        invaded = feed(mixed, order=order, cuts=random.sample(range(len(mixed)), 3))
        waiting = {one.offset for one in invaded.held if (one.sender, one.epoch) in STRANGERS}
        # The log's time passes with a stranger's message as with a tick: it is the log's time, not the stranger's.
        ticks = [one._replace(value=b'{"kind":"tick"}', key=None) for one in strange if one.offset in waiting]
        without = sorted([*members, *ticks], key=lambda one: one.offset)
        plain = feed(without, order=order)
        assert invaded.ordered == plain.ordered
        assert [one for one in invaded.dead if who_of(one) not in STRANGERS] == plain.dead
        delivered += len(plain.ordered)
        held += len(waiting)
    assert delivered > 150
    assert held > 500


def who_of(letter: bytes) -> tuple[str, int]:
    """The sender of a dead letter's record."""
    fields = json.loads(letter)
    return fields["sender"], fields["epoch"]
