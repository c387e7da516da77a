"""What a peer takes in as bundles has the ends that it has one by one."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest

from precede.udfs.limits import Limits
from precede.udfs.peers.ordering import Ordering, PeerKernel
from precede.udfs.records.messages import Id, Message
from precede.udfs.records.wire import read
from tests.kernel.effort import seeds

KEY = b"G"
ORDERS_IN_BUNDLES = ["fifo", "s_b", "causal", "lamport"]


def created(order: str) -> list[bytes]:
    """A group in which c has left after its third message."""
    options = {"order": order, "closed": True, "digests": 3}
    records: list[dict[str, Any]] = [
        {"kind": "create", "sender": "a", "options": options, "members": ["a", "b"]},
        {"kind": "join", "sender": "c", "time": 0},
        {"kind": "leave", "sender": "c", "last": 3},
    ]
    return [json.dumps({"group": "G", **fields}).encode() for fields in records]


def said(order: str, random: Random) -> list[bytes]:
    """What a, b, c and a stranger say, in the order in which each says it, some of it twice or not at all."""
    counts = dict.fromkeys("abcd", 0)
    found: list[bytes] = []
    sender = "a"
    for time in range(1, 80):
        sender = random.choice(f"aabbcd{10 * sender}")
        counts[sender] += 1
        others = [["b", 0, counts["b"]]] if sender == "a" and counts["b"] else []
        stamps: dict[str, dict[str, Any]] = {
            "s_b": {"after": random.choice([[], [["b", 0, random.randint(1, 20)]]])},
            "causal": {"seen": [[sender, 0, counts[sender]], *others]},
            "lamport": {"time": time},
        }
        fields = {"group": "G", "sender": sender, "seq": counts[sender], **stamps.get(order, {}), "data": time}
        found += [json.dumps(fields).encode()] * random.choice([0, 1, 1, 1, 1, 1, 1, 2])
    for _ in range(random.choice([0, 0, 10])):
        at = random.randrange(len(found) - 1)
        found[at : at + 2] = found[at + 1], found[at]
    return found


def in_bundles(values: list[bytes], random: Random) -> list[list[bytes]]:
    """Cut so that the messages of a bundle are of one sender and follow each other."""
    bundles: list[list[bytes]] = []
    last: Id = ("", 0, 0)
    for value in values:
        one = message(value)
        follows = (one.sender, one.seq) == (last[0], last[2] + 1)
        if not follows or random.random() < 0.2:
            bundles.append([])
        bundles[-1].append(value)
        last = (one.sender, 0, one.seq)
    return bundles


def message(value: bytes) -> Message:
    record = read(value, Limits())
    assert isinstance(record, Message)
    return record


def delivered(kernel: PeerKernel) -> list[tuple[str, int]]:
    """What it has delivered since it was asked last."""
    found = [one.id for one in kernel.told.placed if one.id is not None]
    kernel.clear()
    return [(name, seq) for name, _, seq in found]


def test_what_is_held_under_larger_limits_is_handed_over_by_whatever_limits_there_are_then() -> None:
    ordering = Ordering("G", "a", "object")
    larger = Limits(after_max=50)
    ordering.take_limits(larger)

    def feed(sender: str, seq: int, after: list[Id]) -> list[Id]:
        value = json.dumps({"group": "G", "sender": sender, "seq": seq, "after": after, "data": 1}).encode()
        delivered, refused = ordering.feed(value, read(value, larger), 0.0)
        assert refused == []
        return [(one.record.sender, 0, one.record.seq) for one in delivered if isinstance(one.record, Message)]

    others: list[Id] = [("b", 0, seq) for seq in range(1, 31)]
    assert feed("c", 1, others) == []
    ordering.take_limits(Limits())
    found = [feed("b", seq, []) for _, _, seq in others]
    assert found[-1] == [("b", 0, 30), ("c", 0, 1)]


@pytest.mark.parametrize("order", ORDERS_IN_BUNDLES)
def test_bundles_have_the_ends_that_their_messages_have_one_by_one(order: str) -> None:
    delivered_in_all = 0
    for seed in seeds(40):
        random = Random(seed)
        values = said(order, random)
        bundled, alone = PeerKernel(order=order), PeerKernel(order=order)
        for offset, value in enumerate(created(order)):
            for kernel in (bundled, alone):
                kernel.receive(value, KEY, 0, offset, 0)
                kernel.clear()
        ends: list[tuple[str, int]] = []
        expected: list[tuple[str, int]] = []
        offset = 10
        for bundle in in_bundles(values, random):
            for at, value in enumerate(bundle):
                alone.receive(value, KEY, 0, offset + at, 0)
            expected += delivered(alone)
            at = 0
            while at < len(bundle):
                records = [message(value) for value in bundle[at:]]
                count = bundled.receive_read(bundle[at:], records, offset + at)
                ends += [(one.sender, one.seq) for one in records[:count]] + delivered(bundled)
                at += count + 1
            offset += len(bundle)
        assert ends == expected, f"seed {seed}"
        assert bundled.dump() == alone.dump(), f"seed {seed}"
        delivered_in_all += len(expected)
    assert delivered_in_all > 100
