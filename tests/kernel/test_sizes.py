"""No record that the kernel writes is larger than `sizes` says, so topics can accept all of them."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from precede.udfs import sizes
from precede.udfs.limits import Limits, Patience
from precede.udfs.orders import ORDERS
from precede.udfs.records.messages import EPOCH_MAX, NAME_BYTES_MAX
from tests.kernel.feeding import Tale

BROKERS_DEFAULT = 1_048_588
"""The default `max.message.bytes` of a topic."""
LONGEST = "\x01" * NAME_BYTES_MAX
FAR = 2**63 - 1
LAST_PARTITION = 2**31 - 1


def largest_record(order: str, limits: Limits) -> bytes:
    """A message of this order as large as the limits allow, with names that need most space."""
    fields: dict[str, Any] = {"group": LONGEST, "sender": LONGEST, "seq": 1, "epoch": EPOCH_MAX, "after": []}
    fields |= {"seen": [[LONGEST, EPOCH_MAX, 1]], "to": [LONGEST], "sent": {}, "time": 0, "clock_ms": 0, "data": ""}
    if order == "s_b":
        fields = {name: fields[name] for name in ("group", "sender", "seq", "epoch", "after", "data")}
    empty = json.dumps(fields).encode()
    return empty.replace(b'"data": ""', b'"data": "%b"' % (b"x" * (limits.record_bytes_max - len(empty))))


@pytest.mark.parametrize("order", [name for name, order in ORDERS.items() if not order.waits_for_members])
def test_the_largest_ordered_record_of_an_order_fits(order: str) -> None:
    limits = Limits()
    tale = Tale(order, limits, group=LONGEST)
    record = largest_record(order, limits)
    assert len(record) == limits.record_bytes_max
    tale.kernel.receive(record, LONGEST.encode(), LAST_PARTITION, FAR, FAR)
    assert [len(tale.kernel.ordered), len(tale.kernel.dead)] == [1, 0], tale.kernel.dead
    size = len(tale.kernel.ordered[0]) + NAME_BYTES_MAX + sizes.WRAPPED_BYTES
    assert size <= sizes.ordered_bytes_max(limits)
    if order == "causal_p2p":
        assert size > sizes.ordered_bytes_max(limits) - 100, "the bound is far from what can be"


def test_the_largest_dead_letter_fits_whatever_is_refused() -> None:
    tale = Tale("s_b")
    key = b"k" * 1_000_000
    for value in (b"\x01" * 1_000_000, b"\xff" * 1_000_000, largest_record("total", Limits()), b'"' * 300_000):
        tale.kernel.receive(value, key, LAST_PARTITION, FAR, FAR)
    assert len(tale.kernel.dead) == 4
    for letter, its_key in zip(tale.kernel.dead, tale.kernel.dead_keys, strict=True):
        assert len(letter) + len(its_key or b"") + sizes.WRAPPED_BYTES <= sizes.DEAD_LETTER_BYTES_MAX
    largest = max(map(len, tale.kernel.dead))
    assert largest > sizes.DEAD_LETTER_BYTES_MAX - 100_000, "the bound is far from what can be"


def test_the_largest_record_of_the_job_itself_fits() -> None:
    tale = Tale("s_b", group=LONGEST, patience=Patience(ask_after_ms=1, give_up_ms=2))
    for seq in range(2, 50):
        tale.take(sender=LONGEST, epoch=EPOCH_MAX, seq=seq, after=[[LONGEST, EPOCH_MAX, 1]])
    said = [len(one.value) for _ in range(2) for one in tale.tick(1).kernel.own]
    assert 30_000 < max(said) + NAME_BYTES_MAX + sizes.WRAPPED_BYTES <= sizes.OWN_BYTES_MAX


def test_where_the_limits_are_the_defaults_every_topic_may_have_the_broker_s_default() -> None:
    limits = Limits()
    assert sizes.raw_bytes_max(limits) <= BROKERS_DEFAULT
    assert sizes.ordered_bytes_max(limits) <= BROKERS_DEFAULT
    assert sizes.DEAD_LETTER_BYTES_MAX <= BROKERS_DEFAULT


def test_a_batch_is_never_larger_than_what_each_topic_must_take() -> None:
    chance = random.Random(1)
    for _ in range(100):
        limits = Limits(record_bytes_max=chance.randint(1, 2_000_000))
        topics = (sizes.raw_bytes_max(limits), sizes.ordered_bytes_max(limits), sizes.DEAD_LETTER_BYTES_MAX)
        assert sizes.batch_bytes_max(limits) <= min(topics)
        assert min(topics) >= sizes.OWN_BYTES_MAX
