"""Views as a function of the log: create, join, leave, evict (M2MC, chapter 5; contract, section 3, "Membership")."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.kernel.feeding import Tale, parsed


def created(*members: str, closed: bool = False, **options: object) -> Tale:
    tale = Tale().take(kind="create", options={"closed": closed, **options}, members=list(members))
    assert tale.out == ["create"]
    return tale


def test_a_group_nobody_created_is_open_and_has_the_default_order() -> None:
    assert Tale("fifo").say("A2").held == {"A2": ["A1"]}
    assert Tale("total").say("A2").out == ["A2"]


def test_create_counts_only_before_anything_else_of_its_group_was_accepted() -> None:
    tale = Tale().take(sender="A", seq=1)  # refused: leaves no trace
    assert tale.take(kind="create", options={"order": "total"}).out == ["create"]
    assert tale.take(kind="create", options={"order": "fifo"}).dead == ["bad_stamp"]
    assert tale.say("A2", "A1").out == ["A2"]


@pytest.mark.parametrize(
    "first",
    [
        {"sender": "A", "seq": 1, "after": []},
        {"sender": "A", "seq": 2, "after": [["A", 0, 1]]},
        {"sender": "A", "seq": 1, "after": [["A", 0, 1]]},
        {"kind": "join", "sender": "A"},
        {"kind": "abandon", "ids": [["A", 0, 1, 1]]},
        {"kind": "heartbeat", "sender": "A", "seq": 1},
    ],
)
def test_a_later_create_is_bad_stamp(first: dict[str, Any]) -> None:
    assert Tale().take(**first).take(kind="create").dead == ["bad_stamp"]


def test_an_unknown_order_is_unknown_order_and_leaves_no_trace() -> None:
    tale = Tale().take(kind="create", options={"order": "alphabetical"})
    assert tale.dead == ["unknown_order"]
    assert tale.take(kind="create", options={"order": "fifo"}).out == ["create"]


def test_membership_records_take_the_next_position_when_they_arrive() -> None:
    tale = created("A").say("A1")
    positions = []
    for fields in (
        {"kind": "join", "sender": "B"},
        {"kind": "leave", "sender": "B", "last": 0},
        {"kind": "evict", "member": ["A", 0], "cut": 1},
    ):
        tale.take(**fields)
        (record,) = parsed(tale.kernel.ordered)
        assert record["kind"] == fields["kind"]
        assert record["offset"] == record["released_offset"] == tale.offset - 1
        positions.append(record["position"])
    assert positions == [3, 4, 5]


def test_in_a_closed_group_a_message_of_somebody_who_is_not_a_member_is_held_until_the_join() -> None:
    tale = created("A", closed=True)
    assert tale.say("A1").out == ["A1"]
    assert tale.say("B2").say("B1").held == {"B2": ["B"], "B1": ["B"]}
    assert tale.take(kind="join", sender="B").out == ["join", "B2", "B1"]
    assert tale.say("B3").out == ["B3"]


def test_the_join_of_another_epoch_does_not_let_it_in() -> None:
    tale = created(closed=True).take(sender="B", epoch=2, seq=1, after=[])
    assert tale.take(kind="join", sender="B", epoch=1).out == ["join"]
    assert tale.held == {"B1@2": ["B"]}
    assert tale.take(kind="join", sender="B", epoch=2).out == ["join", "B1@2"]


def test_what_follows_a_held_outsider_names_the_one_whose_join_is_missing() -> None:
    tale = created("A", closed=True).say("B1").say("A1", "B1").say("A2", "A1")
    assert tale.held == {"B1": ["B"], "A1": ["B"], "A2": ["B"]}
    assert tale.take(kind="join", sender="B").out == ["join", "B1", "A1", "A2"]


def test_an_outsider_given_up_on_is_not_member_and_an_abandoned_record_stands_for_it() -> None:
    tale = created("A", closed=True).say("B1").say("A1", "B1")
    tale.take(kind="abandon", ids=[["B", 0, 1, 1]])
    assert (tale.dead, tale.out) == (["not_member B1"], ["(B1)", "A1"])
    assert tale.say("B1").dead == ["late B1"]


def test_after_a_leave_what_was_in_flight_below_still_counts_and_later_seqs_are_fenced() -> None:
    tale = created("A").say("A1").say("A3", "C1").say("A5", "C1")
    tale.take(kind="leave", sender="A", last=4)
    assert (tale.out, tale.dead) == (["leave"], ["fenced A5"])
    assert tale.say("A2").out == ["A2"]
    assert tale.say("A5").dead == ["fenced A5"]
    assert tale.say("C1").out == ["C1", "A3"]
    assert tale.take(kind="leave", sender="A", last=5).dead == ["fenced"]


def test_what_was_fenced_while_held_goes_on_being_waited_for() -> None:
    tale = created("A").say("A2", "C1").say("B1", "A2")
    tale.take(kind="leave", sender="A", last=1)
    assert tale.held == {"B1": ["A2"]}
    assert tale.say("A2", "C1").dead == ["fenced A2"]
    assert tale.take(kind="abandon", ids=[["A", 0, 2, 2]]).out == ["(A2)", "B1"]


def test_a_fence_in_the_middle_of_a_held_chain_leaves_what_is_below_waiting_for_what_was_fenced() -> None:
    tale = Tale().say("F1", "E1").say("E1", "D1").say("D1", "C1").say("C1", "B1").say("B1", "A1")
    assert set(map(tuple, tale.held.values())) == {("A1",)}
    tale.take(kind="leave", sender="C", last=0)
    assert tale.held == {"F1": ["C1"], "E1": ["C1"], "D1": ["C1"], "B1": ["A1"]}
    assert tale.say("A1", "F1").dead == []  # no cycle any more: the message that would close it is gone
    assert tale.held == {"F1": ["C1"], "E1": ["C1"], "D1": ["C1"], "B1": ["C1"], "A1": ["C1"]}


def test_after_an_evict_nothing_above_the_cut_counts() -> None:
    tale = created("A").say("A1").take(kind="evict", member=["A", 0], cut=2)
    assert tale.out == ["evict"]
    assert tale.say("A3").dead == ["fenced A3"]
    assert tale.say("A2").out == ["A2"]


def test_a_join_with_a_larger_epoch_fences_the_old_one_above_what_was_seen() -> None:
    tale = created("A").say("A1").say("A3", "C1")
    assert tale.take(kind="join", sender="A", epoch=1).out == ["join"]
    assert tale.say("A4").dead == ["fenced A4"]
    assert tale.say("A2").out == ["A2"]
    assert tale.take(sender="A", epoch=1, seq=1, after=[]).out == ["A1@1"]
    assert tale.say("C1").out == ["C1", "A3"]


def test_the_leave_of_one_epoch_does_not_undo_the_join_of_a_later_one() -> None:
    # M2MC's tombstone set keeps a member out for ever once it has left (vector GJLP-2).
    tale = created("A", closed=True).say("A1").take(kind="leave", sender="A", last=1)
    assert tale.take(kind="join", sender="A", epoch=1).out == ["join"]
    assert tale.take(kind="leave", sender="A", last=0).dead == ["fenced"]
    assert tale.take(sender="A", epoch=1, seq=1, after=[]).out == ["A1@1"]


def test_an_epoch_never_heard_of_is_fenced_whole_by_a_join_with_a_larger_one() -> None:
    tale = Tale().take(kind="join", sender="A", epoch=3)
    assert tale.take(sender="A", epoch=2, seq=1, after=[]).dead == ["fenced A1@2"]


@pytest.mark.parametrize("closed", [True, False])
def test_the_join_of_who_is_in_is_bad_stamp_and_of_an_older_epoch_fenced(closed: bool) -> None:
    tale = created("A", closed=closed)
    assert tale.take(kind="join", sender="A").dead == ["bad_stamp"]
    assert tale.take(kind="join", sender="A", epoch=4).out == ["join"]
    assert tale.take(kind="join", sender="A", epoch=4, time=1).dead == ["bad_stamp"]
    assert tale.take(kind="join", sender="A", epoch=3).dead == ["fenced"]


def test_leave_and_evict_of_somebody_never_seen_is_unknown_member() -> None:
    tale = created("A")
    assert tale.take(kind="leave", sender="Z", last=0).dead == ["unknown_member"]
    assert tale.take(kind="evict", member=["Z", 0], cut=0).dead == ["unknown_member"]
    assert tale.take(kind="evict", member=["A", 1], cut=0).dead == ["unknown_member"]
    assert tale.take(kind="leave", sender="A", last=0).out == ["leave"]


def test_who_leaves_in_one_epoch_has_left_in_the_older_ones_too() -> None:
    tale = Tale().say("A1").say("A3", "C1").take(sender="A", epoch=1, seq=1, after=[])
    assert tale.take(kind="leave", sender="A", epoch=1, last=1).out == ["leave"]
    assert tale.say("A4").dead == ["fenced A4"]
    assert tale.say("A2").out == ["A2"]
    assert tale.take(kind="join", sender="A", epoch=1).dead == ["fenced"]
    assert tale.take(kind="join", sender="A", epoch=2).out == ["join"]


def test_a_leave_or_evict_reaching_past_the_window_is_seq_jump() -> None:
    tale = created("A", window=5).say("A1")
    assert tale.take(kind="leave", sender="A", last=7).dead == ["seq_jump"]
    assert tale.take(kind="evict", member=["A", 0], cut=7).dead == ["seq_jump"]
    assert tale.take(kind="leave", sender="A", last=6).out == ["leave"]
    silent = created("A", "B", window=5)
    assert silent.take(kind="leave", sender="A", last=6).dead == ["seq_jump"]
    assert silent.take(kind="leave", sender="A", last=5).out == ["leave"]


def test_an_outsider_put_out_of_a_closed_group_is_fenced_whole() -> None:
    tale = created("A", closed=True).say("B1").say("B2")
    tale.take(kind="evict", member=["B", 0], cut=1)
    assert sorted(tale.dead) == ["fenced B1", "fenced B2"]
    assert tale.say("B1").dead == ["fenced B1"]


def test_an_epoch_that_never_joined_a_closed_group_is_fenced_whole_by_the_join_of_a_larger_one() -> None:
    tale = created(closed=True).say("B2").take(kind="abandon", ids=[["C", 0, 2, 3]])
    tale.take(kind="join", sender="B", epoch=1)
    assert (tale.dead, tale.held) == (["fenced B2"], {})
    tale.take(kind="join", sender="C", epoch=1)
    assert tale.say("C1").dead == ["fenced C1"]


def test_the_sender_of_an_evict_may_be_anybody_also_who_is_put_out() -> None:
    tale = created("A", "B", closed=True)
    assert tale.take(kind="evict", sender="A", member=["A", 0], cut=0).out == ["evict"]
    assert tale.take(kind="evict", sender="Z", member=["B", 0], cut=0).out == ["evict"]


def test_control_records_of_nobody_need_no_sender() -> None:
    tale = created("A")
    assert tale.take(kind="evict", member=["A", 0], cut=0).out == ["evict"]
    assert tale.take(kind="abandon", ids=[["A", 0, 1, 1]]).out == ["(A1)"]
    assert tale.take(kind="heartbeat", sender="C", seq=1).dead == []


def test_who_was_heard_by_heartbeats_alone_is_seen_and_may_leave_or_be_evicted() -> None:
    ends: list[dict[str, Any]] = [
        {"kind": "leave", "sender": "C", "last": 0},
        {"kind": "evict", "member": ["C", 0], "cut": 0},
    ]
    for end in ends:
        tale = created("A").take(kind="heartbeat", sender="C", seq=1)
        assert (tale.out, tale.dead) == ([], [])
        assert tale.take(**end).out == [end["kind"]]
        assert tale.say("C1").dead == ["fenced C1"]


def test_a_refused_heartbeat_makes_nobody_seen() -> None:
    tale = created("A", window=5).take(kind="heartbeat", sender="C", seq=6)
    assert tale.dead == ["seq_jump C6"]
    assert tale.take(kind="leave", sender="C", last=0).dead == ["unknown_member"]


def test_a_heartbeat_is_judged_as_the_message_it_announces_would_be() -> None:
    tale = created("A", window=5).say("A1")
    assert tale.take(kind="heartbeat", sender="A", seq=6).dead == []
    assert tale.take(kind="heartbeat", sender="A", seq=7).dead == ["seq_jump A7"]
    assert tale.take(kind="heartbeat", sender="A", seq=2**53 - 1).dead == [f"seq_jump A{2**53 - 1}"]
    assert tale.take(kind="heartbeat", sender="A", seq=2**53).dead == ["malformed"]
    assert tale.say("A7").dead == ["seq_jump A7"]  # what a heartbeat announces is not seen yet
    assert tale.take(kind="leave", sender="A", last=2).out == ["leave"]
    assert tale.take(kind="heartbeat", sender="A", seq=2).dead == []
    assert tale.take(kind="heartbeat", sender="A", seq=3).dead == ["fenced A3"]
    assert parsed(tale.kernel.dead)[0]["reason"] == "Of 'A' (epoch 0) nothing above seq 2 counts any more."
    assert tale.take(kind="join", sender="A", epoch=1).out == ["join"]
    assert tale.take(kind="heartbeat", sender="A", epoch=0, seq=9).dead == ["fenced A9"]


def test_a_join_of_an_epoch_below_one_that_has_spoken_is_fenced_in_an_open_group_only() -> None:
    signs: list[dict[str, Any]] = [{"seq": 1, "after": []}, {"kind": "heartbeat", "seq": 1}]
    for sign in signs:
        tale = created().take(sender="B", epoch=3, **sign).take(sender="B", epoch=1, **sign)
        assert tale.take(kind="join", sender="B", epoch=2).dead == ["fenced"]
        assert tale.take(kind="join", sender="B", epoch=0).dead == ["fenced"]
        assert tale.take(kind="join", sender="B", epoch=3).out == ["join"]
    closed = created(closed=True).take(sender="B", epoch=3, seq=1, after=[])
    assert closed.take(kind="join", sender="B", epoch=2).out == ["join"]


def test_the_reason_says_it_where_somebody_is_put_out_who_never_joined() -> None:
    tale = created(closed=True).say("B1").take(kind="evict", member=["B", 0], cut=7)
    (letter,) = parsed(tale.kernel.dead)
    assert letter["reason"] == (
        "'B' was evicted from the group before it ever joined with epoch 0, so nothing it said counts."
    )
    (letter,) = parsed(tale.say("B2").kernel.dead)
    assert letter["reason"] == "Of 'B' (epoch 0) nothing counts any more."


def test_many_joins_and_many_epochs_cost_no_look_at_all_senders() -> None:
    began = time.process_time()
    tale = Tale("lamport")
    for number in range(6_000):  # if each checked all others, this would take minutes
        tale.take(kind="join", sender=f"s{number}", epoch=1)
        tale.take(kind="heartbeat", sender="A", epoch=number, seq=1, time=1)
    assert time.process_time() - began < 5


def test_coming_back_takes_nothing_from_what_a_leave_had_let_stand() -> None:
    tale = created("A").say("A1").take(kind="leave", sender="A", last=3).take(kind="join", sender="A", epoch=1)
    assert tale.say("A2").out == ["A2"]
    assert tale.say("A3").out == ["A3"]
    assert tale.say("A4").dead == ["fenced A4"]


def test_a_tick_with_the_key_of_a_living_group_is_wrong_key() -> None:
    tale = created("A").say("A1")
    assert tale.take(kind="tick").dead == ["wrong_key"]
    assert tale.say("A2").out == ["A2"]


def test_the_dead_letter_of_a_tick_with_a_key_is_the_same_whether_its_group_was_decoded_before_or_not() -> None:
    tick = b' {"group":"g","kind":"tick"}\n'
    tale, again = created("A").say("A1"), created("A").say("A1").restart()
    assert tale.raw(tick).kernel.dead == again.raw(tick).kernel.dead
