"""What a kernel tells in types is what it tells in bytes; and groups can be looked at without changing them."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import msgspec
import pytest

from precede.udfs.engine.outbox import PlacedRecord, RefusedRecord, TypedOutbox
from precede.udfs.holdback import Holdback
from precede.udfs.orders import ORDERS
from precede.udfs.partitioner import partition_of
from precede.udfs.records.messages import LogRecord, Message, Record
from precede.udfs.records.strict import Malformed
from precede.udfs.records.wire import SPACE, read
from tests.kernel import traffic
from tests.kernel.effort import seeds
from tests.kernel.feeding import parsed

PARTITIONS = 2


def as_fields(one: PlacedRecord) -> dict[str, Any]:
    labels = one.labels
    fields: dict[str, Any] = json.loads(one.value)
    return fields | {
        "position": one.position,
        "order": labels.order,
        "status": "abandoned" if one.is_abandoned else "delivered",
        **({} if labels.destination is None else {"destination": labels.destination}),
        "partition": labels.partition,
        "offset": one.offset,
        "arrived_ms": one.arrived_ms,
        "released_offset": one.released_offset,
        "released_ms": one.released_ms,
    }


def as_letter(one: RefusedRecord) -> dict[str, Any]:
    named = one.identity
    return {
        "code": one.code,
        "reason": one.reason,
        "group": named.group,
        "sender": named.sender,
        "epoch": named.epoch,
        "seq": named.seq,
        **({} if one.destination is None else {"destination": one.destination}),
        "partition": one.came.partition,
        "offset": one.came.offset,
        "arrived_ms": one.came.timestamp_ms,
    }


def without_value(letter: dict[str, Any]) -> dict[str, Any]:
    return {name: of for name, of in letter.items() if name not in ("value", "value_base64", "truncated")}


@pytest.mark.parametrize("order", ORDERS)
def test_types_say_what_the_bytes_say(order: str) -> None:
    for random in map(Random, seeds(8)):
        records, limits = traffic.of_groups(random, order, groups=3, partitions=PARTITIONS)
        published = Holdback(order=order, limits=limits, partitions=PARTITIONS)
        outbox = TypedOutbox()
        told = Holdback(order=order, limits=limits, partitions=PARTITIONS, outbox=outbox)
        for record in records:
            value, key, partition, offset, timestamp_ms = record
            published.receive(value, key, partition, offset, timestamp_ms)
            receive_as_read(told, record)
            assert [as_fields(one) for one in outbox.placed] == parsed(published.ordered)
            letters = [without_value(one) for one in parsed(published.dead)]
            assert [as_letter(one) for one in outbox.refused] == letters
            for placed in outbox.placed:
                assert fields_of(placed.record) == fields_of(read(placed.value, limits))
            for one in outbox.refused:
                assert one.is_message == isinstance(one.record, Message)
            assert [one.value for one in told.own] == [one.value for one in published.own]
            published.clear()
            outbox.clear()
        assert told.duplicates == published.duplicates
        assert told.held_growth == published.held_growth
        assert told.dump() == published.dump()


def fields_of(record: Record) -> dict[str, Any]:
    """All fields, with raw JSON as bytes."""
    fields = {name: getattr(record, name) for name in record.__struct_fields__}
    return {name: bytes(of) if isinstance(of, msgspec.Raw) else of for name, of in fields.items()}


def receive_as_read(kernel: Holdback, record: LogRecord) -> None:
    """Hand over what was read where it can be read, and else the bytes."""
    value, key, partition, offset, timestamp_ms = record
    try:
        assert value is not None
        assert len(value) <= kernel.limits.record_bytes_max
        read_record = read(value.strip(SPACE), kernel.limits)
    except (AssertionError, Malformed):
        kernel.receive(value, key, partition, offset, timestamp_ms)
    else:
        kernel.receive_record(read_record, value.strip(SPACE), key, partition, offset, timestamp_ms)


def test_groups_are_looked_at_without_a_change() -> None:
    kernel = Holdback(order="fifo", partitions=2)
    kernel.receive(b'{"group":"g","sender":"a","seq":1}', b"g", *home(kernel, b"g"))
    kernel.receive(b'{"group":"h","kind":"create","options":{"order":"s_b"}}', b"h", *home(kernel, b"h"))
    states = kernel.dump()
    later = Holdback(order="fifo", partitions=2)
    later.load(states, {b"g": 5})
    assert later.look("nowhere") is None
    assert (later.names(), later.has_begun("g"), later.has_begun("nowhere")) == (["g", "h"], True, False)
    assert (later.is_created("g"), later.is_created("h")) == (False, True)
    assert later.decoded == 0
    assert (later.is_covered(b"g", 4), later.is_covered(b"g", 5), later.is_covered(b"h", 0)) == (True, False, False)
    found = later.look("g")
    assert found is not None
    assert found is later.look("g")
    assert found.senders["a"].highest == 1
    assert later.dump() == states


def home(kernel: Holdback, key: bytes) -> tuple[int]:
    assert kernel.partitions is not None
    return (partition_of(key, kernel.partitions, kernel.partitioner),)
