"""A member's knowledge of its group is a function of the group's sequence, and can be saved."""

from __future__ import annotations

import json
from typing import Any

import pytest

from precede.udfs.member.knowledge import Knowledge, read_without_data
from precede.udfs.orders import ORDERS

SEQUENCE: list[dict[str, Any]] = [
    {"kind": "create", "options": {"order": "fifo", "closed": True, "conflicts": [["a", "b"]]}, "members": ["ann"]},
    {"sender": "ann", "epoch": 0, "seq": 1},
    {"kind": "join", "sender": "bob", "epoch": 0, "key": "K"},
    {"sender": "bob", "seq": 2, "time": 7},
    {"sender": "bob", "seq": 1, "status": "abandoned"},
    {"kind": "leave", "sender": "ann", "epoch": 0, "last": 1},
    {"kind": "evict", "member": ["bob", 0], "cut": 2},
    {"kind": "join", "sender": "ann", "epoch": 3},
]


def known(records: list[dict[str, Any]]) -> Knowledge:
    knowledge = Knowledge()
    for position, record in enumerate(records, start=1):
        knowledge.deliver({"group": "g", "order": "fifo", "status": "delivered", "position": position, **record})
    return knowledge


def test_order_members_keys_and_delivered_ids_are_learned_from_the_sequence() -> None:
    knowledge = known(SEQUENCE)
    assert (knowledge.order, knowledge.closed, knowledge.conflicts) == ("fifo", True, [("a", "b")])
    assert (knowledge.is_in("ann", 3), knowledge.is_in("ann", 0), knowledge.is_out("ann", 0)) == (True, False, True)
    assert (knowledge.is_out("bob", 0), knowledge.is_out("bob", 1), knowledge.is_out("cem", 0)) == (True, False, False)
    assert [knowledge.last_ended_epoch(name) for name in ("ann", "bob", "cem")] == [2, 0, -1]
    assert (knowledge.keys, knowledge.time, knowledge.given_up) == ({"bob": [(0, "K")]}, 7, 1)
    assert [knowledge.has(("bob", 0, seq)) for seq in range(4)] == [False, True, True, False]


def test_to_hear_it_again_from_anywhere_changes_nothing() -> None:
    once = known(SEQUENCE).dump()
    for start in range(len(SEQUENCE)):
        assert known(SEQUENCE + SEQUENCE[start:]).dump() == once


def test_what_is_kept_as_json_comes_back_whole() -> None:
    dumped = known(SEQUENCE).dump()
    other = Knowledge()
    other.load(json.loads(json.dumps(dumped)))
    assert other.dump() == dumped


def test_keys_count_from_their_epoch_on_where_the_group_was_created_with_keys() -> None:
    options = {"order": "fifo", "keys": {"ann": "A"}, "window": 50}
    knowledge = known(
        [
            {"kind": "create", "options": options, "members": ["ann"]},
            {"kind": "join", "sender": "ann", "epoch": 3, "key": "B"},
            {"kind": "join", "sender": "bob", "key": "C"},
        ]
    )
    assert (knowledge.has_keys, knowledge.window) == (True, 50)
    assert [knowledge.key_of("ann", epoch) for epoch in (0, 2, 3, 9)] == ["A", "A", "B", "B"]
    assert (knowledge.newest_key("ann"), knowledge.newest_key("bob"), knowledge.newest_key("cem")) == ("B", "C", None)
    knowledge.add_key("ann", 1, "late")
    assert [knowledge.key_of("ann", epoch) for epoch in (0, 2, 3)] == ["A", "late", "B"], "in any order"
    assert not known(SEQUENCE).has_keys, "in other groups the key of a join is carried and not read"


def test_what_the_group_waits_for_is_missing_until_it_is_here() -> None:
    knowledge = known(SEQUENCE)
    for seq in range(1, 5):
        knowledge.note_missing(("bob", 0, seq))
    assert list(knowledge.missing) == [("bob", 0, 3), ("bob", 0, 4)]
    knowledge.settle(("bob", 0, 3))
    assert list(knowledge.missing) == [("bob", 0, 4)]


def test_a_created_group_by_clocks_is_closed_without_saying_so() -> None:
    for name, order in ORDERS.items():
        knowledge = Knowledge()
        record = {"kind": "create", "options": {"order": name}, "order": name, "status": "delivered", "position": 1}
        knowledge.learn(record)
        assert knowledge.closed == order.waits_for_members


@pytest.mark.parametrize("data", ["1" * 5000, "1e400", '"\\ud800"', '{"a":1,"a":2}'])
def test_data_that_no_reader_takes_is_heard_past(data: str) -> None:
    record = f'{{"group":"g","sender":"ann","seq":1,"data":{data},"position":1,"order":"fifo","status":"delivered"}}'
    assert read_without_data(record.encode())["position"] == 1


def test_a_seq_that_stands_in_another_kind_than_a_message_is_not_read() -> None:
    record = b'{"kind":"join","sender":"ann","seq":{"x":1e999},"position":1,"order":"fifo","status":"delivered"}'
    assert "seq" not in read_without_data(record)


@pytest.mark.parametrize("order", ORDERS)
def test_what_a_member_keeps_for_its_stamps_comes_back_whole_and_its_next_stamp_is_the_same(order: str) -> None:
    stamps = ORDERS[order].stamps_of("ann", 2)
    stamps.stamp(after=[], to=["bob"], clock_ms=5)
    observed = {
        "sender": "bob",
        "seq": 3,
        "time": 9,
        "clock_ms": 4,
        "seen": [["bob", 0, 3]],
        "to": ["ann"],
        "sent": {"ann": [["bob", 0, 3]]},
        "destination": "ann",
    }
    stamps.observe(observed)
    other = ORDERS[order].stamps_of("ann", 2)
    other.load(json.loads(json.dumps(stamps.dump())))
    assert other.dump() == stamps.dump()
    draft: dict[str, Any] = {"after": [("bob", 0, 3)], "to": ["bob"], "clock_ms": 6}
    assert other.stamp(**draft) == stamps.stamp(**draft)
    assert other.heartbeat(clock_ms=7) == stamps.heartbeat(clock_ms=7)
