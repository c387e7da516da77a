"""The speaking half of a member, by literal values: what it says, and what moves its stamps."""

from __future__ import annotations

from typing import Any

import pytest

from precede.udfs.member.speaker import Speaker


def ordered(sender: str, seq: int, order: str, **fields: Any) -> dict[str, Any]:
    return {"group": "g", "sender": sender, "seq": seq, "order": order, "status": "delivered", "position": 1, **fields}


def test_each_order_is_spoken_by_its_stamps() -> None:
    said = {
        "s_b": b'{"group":"g","sender":"ann","epoch":0,"seq":1,"after":[["bob",0,1]],"data":7}',
        "fifo": b'{"group":"g","sender":"ann","epoch":0,"seq":1,"after":[["bob",0,1]],"data":7}',
        "causal": (
            b'{"group":"g","sender":"ann","epoch":0,"seq":1,"seen":[["ann",0,1],["bob",0,1]],"after":[["bob",0,1]],"data":7}'
        ),
        "lamport": b'{"group":"g","sender":"ann","epoch":0,"seq":1,"time":5,"after":[["bob",0,1]],"data":7}',
        "two_clock": (
            b'{"group":"g","sender":"ann","epoch":0,"seq":1,"time":5,"clock_ms":90,"after":[["bob",0,1]],"data":7}'
        ),
    }
    for order, value in said.items():
        ann = Speaker("g", "ann")
        ann.observe(ordered("bob", 1, order, time=4))
        one = ann.message(b"7", after=[("bob", 0, 1)], clock_ms=90)
        assert one.value == value
        assert str(one.id) == "ann:1"


def test_what_goes_with_the_data_stands_before_it() -> None:
    ann = Speaker("g", "ann", 3, order="object")
    one = ann.message(b'{"x": 1.0}', after=[], to=["acc"], object_={"op": "add"}, meta=b'{"trace": 7}')
    assert one.value == (
        b'{"group":"g","sender":"ann","epoch":3,"seq":1,"after":[],"to":["acc"],"object":{"op":"add"},'
        b'"meta":{"trace": 7},"data":{"x": 1.0}}'
    )
    assert str(one.id) == "ann@3:1"


def test_records_that_are_no_messages() -> None:
    ann = Speaker("g", "ann", 2, order="lamport", sign=lambda record: record + b"!", public_key="K")
    assert ann.join(brings_key=True) == b'{"group":"g","kind":"join","sender":"ann","epoch":2,"time":1,"key":"K"}!'
    ann.message(b"null", after=[])
    assert ann.leave() == b'{"group":"g","kind":"leave","sender":"ann","epoch":2,"last":1}!'
    assert ann.heartbeat(clock_ms=0, due=True) == (
        b'{"group":"g","kind":"heartbeat","sender":"ann","epoch":2,"seq":2,"time":3}!'
    )
    assert Speaker("g", "bob").join(brings_key=False) == b'{"group":"g","kind":"join","sender":"bob","epoch":0}'


def test_a_heartbeat_is_made_where_the_clock_has_passed_what_was_told_or_one_is_due() -> None:
    ann = Speaker("g", "ann", order="lamport")
    ann.knowledge.window = 10
    assert ann.heartbeat(clock_ms=0, due=False) is not None  # nothing was told yet
    ann.told()
    assert ann.heartbeat(clock_ms=0, due=False) is None
    ann.hear(b'{"group":"g","sender":"bob","seq":1,"time":10}')
    beat = ann.heartbeat(clock_ms=0, due=False)
    assert beat == b'{"group":"g","kind":"heartbeat","sender":"ann","epoch":0,"seq":1,"time":10}'
    ann.told()
    assert ann.is_behind, "the group takes no more in one step"
    ann.confirmed(beat)
    assert ann.heartbeat(clock_ms=0, due=False) == (
        b'{"group":"g","kind":"heartbeat","sender":"ann","epoch":0,"seq":1,"time":12}'
    )
    ann.told()
    assert not ann.is_behind
    ann.hear(b'{"group":"g","sender":"bob","seq":2,"time":400}')  # beyond the window
    assert ann.heartbeat(clock_ms=0, due=False) is None
    said = ann.message(b"1", after=[])
    ann.confirmed(said.value)
    assert ann.heartbeat(clock_ms=0, due=False) is None, "a message tells the clock, too"


def test_a_draft_that_the_order_refuses_takes_no_seq() -> None:
    ann = Speaker("g", "ann", order="s_b")
    with pytest.raises(ValueError, match="one message at most"):
        ann.message(b"1", after=[("bob", 0, 1), ("bob", 0, 2)])
    assert ann.message(b"1", after=[]).id == ("ann", 0, 1)


@pytest.mark.parametrize("order", ["causal", "causal_p2p", "lamport", "fifo"])
def test_what_is_taken_back_was_never_said_and_what_came_meanwhile_still_counts(order: str) -> None:
    to = ["bob"] if order == "causal_p2p" else None
    other, ann = Speaker("g", "ann", order=order), Speaker("g", "ann", order=order)
    said = ann.message(b"1", after=[], to=to)
    came = ordered("bob", 1, order, time=1, to=["ann"], sent={}, seen=[["bob", 0, 1]], destination=None)
    for one in (ann, other):
        one.observe(came)
    ann.take_back(said)
    again, never = ann.message(b"2", after=[], to=to), other.message(b"2", after=[], to=to)
    assert again.id == never.id == ("ann", 0, 1)
    if order == "lamport":
        assert b'"time":2' in again.value, "a clock never runs back"
    else:
        assert again.value == never.value


def test_only_what_is_known_may_be_answered() -> None:
    ann = Speaker("g", "ann")
    ann.message(b"1", after=[])
    ann.observe(ordered("bob", 1, "s_b"))
    ann.check_after([("ann", 0, 1), ("bob", 0, 1)])
    for id_, text in ((("ann", 0, 2), "ann:2"), (("bob", 4, 1), "bob@4:1")):
        with pytest.raises(ValueError, match=f"{text} has not been delivered to ann"):
            ann.check_after([id_])


def test_what_the_order_does_not_take_uses_no_seq() -> None:
    ann = Speaker("g", "ann")
    with pytest.raises(ValueError, match="one message at most"):
        ann.message(b"1", after=[("bob", 0, 1), ("bob", 0, 2)])
    assert ann.message(b"1", after=[]).id == ("ann", 0, 1)


def test_a_message_that_is_too_large_is_not_said() -> None:
    ann = Speaker("g", "ann", order="causal")
    with pytest.raises(ValueError, match="may have 524288 bytes"):
        ann.message(b'"' + b"x" * 600_000 + b'"', after=[])
    assert ann.message(b"1", after=[]).id == ("ann", 0, 1)


def test_a_new_epoch_counts_from_one_and_keeps_what_was_delivered() -> None:
    ann = Speaker("g", "ann", order="causal")
    ann.message(b"1", after=[])
    ann.observe(ordered("bob", 3, "causal"))
    ann.begin_epoch(1)
    assert ann.message(b"2", after=[]).value == (
        b'{"group":"g","sender":"ann","epoch":1,"seq":1,"seen":[["ann",1,1],["bob",0,3]],"data":2}'
    )
    assert ann.undelivered(1) == 1
    ann.observe(ordered("ann", 1, "causal", epoch=1))
    assert ann.undelivered(1) == 0


def test_what_was_kept_goes_on() -> None:
    ann = Speaker("g", "ann")
    ann.observe(ordered("bob", 2, "causal"))
    ann.message(b"1", after=[])
    again = Speaker("g", "ann")
    again.load(ann.knowledge.dump(), ann.stamps.dump(), 1)
    assert again.message(b"2", after=[]).value == ann.message(b"2", after=[]).value
