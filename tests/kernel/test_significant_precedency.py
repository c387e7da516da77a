"""Timura, Tanaka and Takizawa, 3.1, Table 1: which of two messages at one object precedes the other; a test per cell.

Rows: the object sends m1 before m2 (S), sends m2 after it receives m1 (R), receives m1 before m2 (T). Columns: one
instance (1), op1 precedes op2 because they conflict (2.1), the two are concurrent because they are compatible (2.2).
In each cell m2 reaches the log first. If m1 precedes it, m2 is held until m1 is there. Compatible instances are played
side by side and one after the other: neither gives an order.
"""

from __future__ import annotations

import json

import pytest

from precede.udfs.holdback import Holdback
from precede.udfs.member.objects import InstanceQueue, ObjectMessage
from precede.udfs.records.messages import Id
from precede.udfs.records.wire import encode_message
from tests.kernel.object_clients import Group

CONFLICT = [("op1", "op2")]
COMPATIBLE: list[tuple[str, str]] = []


def by_arrival(*messages: ObjectMessage) -> list[Id]:
    """The delivered ids, if the log has the messages in this order."""
    kernel = Holdback(order="object")
    for offset, one in enumerate(messages):
        kernel.receive(encode_message("g", *one.id, after=list(one.after)), b"g", offset=offset)
    delivered = [json.loads(record) for record in kernel.ordered]
    return [(one["sender"], one["epoch"], one["seq"]) for one in delivered]


def precedes_in_the_log(m1: ObjectMessage, m2: ObjectMessage, *others: ObjectMessage) -> bool:
    """Whether m1 comes before m2 although the log has m2 first; without a relation the log's order stands."""
    sequence = by_arrival(m2, *others, m1)
    assert set(sequence) == {one.id for one in (m1, m2, *others)}
    return sequence.index(m1.id) < sequence.index(m2.id)


def test_s1_what_one_instance_sends_first_precedes_what_it_sends_next() -> None:
    group = Group("i", "k", conflicts=COMPATIBLE)
    op1 = group.start("i", "op1")
    m1, m2 = group.send(op1, "a", "k"), group.send(op1, "b", "k")
    assert precedes_in_the_log(m1, m2)


@pytest.mark.parametrize(("conflicts", "precede"), [(CONFLICT, True), (COMPATIBLE, False)], ids=["s2_1", "s2_2"])
def test_s2_what_an_earlier_instance_sent_precedes_what_another_sends_only_if_they_conflict(
    conflicts: list[tuple[str, str]], precede: bool
) -> None:
    group = Group("i", "k", conflicts=conflicts)
    op1 = group.start("i", "op1")
    m1 = group.send(op1, "a", "k")
    if precede:  # conflicting instances run one after the other, compatible ones side by side
        group.commit(op1)
    m2 = group.send(group.start("i", "op2"), "b", "k")
    assert precedes_in_the_log(m1, m2) == precede


@pytest.mark.parametrize("is_there", [False, True], ids=["in flight", "delivered"])
def test_s2_2_what_compatible_instances_send_one_after_the_other_has_no_order(is_there: bool) -> None:
    group = Group("i", "k", conflicts=COMPATIBLE)
    op1 = group.start("i", "op1")
    m1 = group.send(op1, "a", "k")
    group.commit(op1)
    if is_there:
        group.deliver(m1)
    m2 = group.send(group.start("i", "op2"), "b", "k")
    assert m2.after == ()
    assert not precedes_in_the_log(m1, m2)


def test_s2_1_holds_for_a_one_way_request_too_whose_sender_is_never_answered() -> None:
    group = Group("i", "k", conflicts=CONFLICT)
    op1 = group.start("i", "op1")
    m1 = group.send(op1, "one-way", "k")
    group.commit(op1)
    group.deliver(group.send(group.start("i", "op3"), "other", "k"))
    m2 = group.send(group.start("i", "op2"), "b", "k")
    assert m1.id in m2.after, "m1 is still on its way, and nothing else says that it was sent"


def test_r1_what_an_instance_received_precedes_what_it_sends() -> None:
    group = Group("i", "j", "k", conflicts=COMPATIBLE)
    m1 = group.send(group.start("j", "client"), "op1", "i", "k")
    group.deliver(m1, "i")
    m2 = group.send(group.start("i", "op1", m1), "b", "k")
    assert precedes_in_the_log(m1, m2)


@pytest.mark.parametrize(("conflicts", "precede"), [(CONFLICT, True), (COMPATIBLE, False)], ids=["r2_1", "r2_2"])
def test_r2_what_an_earlier_instance_received_precedes_what_another_sends_only_if_they_conflict(
    conflicts: list[tuple[str, str]], precede: bool
) -> None:
    group = Group("i", "j", "k", conflicts=conflicts)
    m1 = group.send(group.start("j", "client"), "op1", "i", "k")
    group.deliver(m1, "i")
    op1 = group.start("i", "op1", m1)
    if precede:
        group.commit(op1)
    m2 = group.send(group.start("i", "op2"), "b", "k")
    assert precedes_in_the_log(m1, m2) == precede


def test_r2_2_what_a_compatible_instance_received_before_has_no_order_with_what_another_sends_after_it() -> None:
    group = Group("i", "j", "k", conflicts=COMPATIBLE)
    m1 = group.send(group.start("j", "client"), "op1", "i", "k")
    group.deliver(m1, "i")
    op1 = group.start("i", "op1", m1)
    answer = group.send(op1, "op1", "j", type_="response")
    group.commit(op1)
    m2 = group.send(group.start("i", "op2"), "b", "k")
    assert m2.after == ()
    assert not precedes_in_the_log(m1, m2, answer)


def test_r2_1_does_not_hold_after_an_instance_that_was_aborted() -> None:
    group = Group("i", "j", "k", conflicts=CONFLICT)
    m1 = group.send(group.start("j", "client"), "op1", "i", "k")
    group.deliver(m1, "i")
    group.start("i", "op1", m1)  # and it never commits
    m2 = group.send(group.start("i", "op2"), "b", "k")
    assert not precedes_in_the_log(m1, m2)


def test_t1_a_request_precedes_the_data_and_the_responses_for_the_instance_that_it_starts() -> None:
    group = Group("i", "j", "k", conflicts=COMPATIBLE)
    caller = group.start("j", "client")
    m1 = group.send(caller, "op1", "i")
    data = group.send(caller, "op1", "i", type_="data")
    assert precedes_in_the_log(m1, data)
    group.deliver(m1, "i")
    nested = group.send(group.start("i", "op1", m1), "c", "k")
    group.deliver(nested, "k")
    response = group.send(group.start("k", "c", nested), "c", "i", type_="response")
    assert precedes_in_the_log(m1, response, nested)


def test_t2_1_conflicting_requests_are_executed_in_one_order_at_every_object_that_they_have_in_common() -> None:
    group = Group("i", "j", "k", "l", conflicts=CONFLICT)
    m1 = group.send(group.start("j", "client"), "op1", "i", "k")
    m2 = group.send(group.start("l", "client"), "op2", "i", "k")  # neither sender knows of the other
    for sequence in (by_arrival(m1, m2), by_arrival(m2, m1)):
        for _ in "ik":
            queue = InstanceQueue(group.conflicts)
            first, second = (group.said[id_] for id_ in sequence)
            assert queue.arrive(first.id, first.op)
            assert not queue.arrive(second.id, second.op), "it starts when the first one has ended"
            assert queue.finish(first.id) == [second.id]


def test_t2_2_compatible_requests_are_executed_side_by_side() -> None:
    group = Group("i", "j", "l", conflicts=COMPATIBLE)
    m1 = group.send(group.start("j", "client"), "op1", "i")
    m2 = group.send(group.start("l", "client"), "op2", "i")
    assert not precedes_in_the_log(m1, m2)
    queue = InstanceQueue(group.conflicts)
    assert [queue.arrive(one.id, one.op) for one in (m2, m1)] == [True, True]


def test_t2_2_compatible_requests_that_come_one_after_the_other_have_no_order() -> None:
    group = Group("i", "j", conflicts=COMPATIBLE)
    client = group.start("j", "client")
    m1 = group.send(client, "op1", "i")
    group.deliver(m1, "i")
    group.commit(client)
    group.commit(group.start("i", "op1", m1))
    m2 = group.send(group.start("j", "client"), "op2", "i")
    assert m2.after == ()
    assert not precedes_in_the_log(m1, m2)
