"""The checks on every message, in the contract's order, and what a refusal leaves (section 3, fine print)."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from precede.udfs.holdback import Holdback
from precede.udfs.limits import Limits
from tests.kernel.feeding import Tale, parsed


def created(order: str = "s_b", **options: object) -> Tale:
    """A group with these options, and members A and B."""
    tale = Tale().take(kind="create", options={"order": order, **options}, members=["A", "B"])
    assert tale.out == ["create"]
    return tale


def test_an_exact_copy_is_dropped_and_counted_delivered_or_held() -> None:
    tale = Tale().say("A1").say("B1", "C1")
    for name, parent in (("A1", None), ("B1", "C1"), ("A1", None)):
        tale.say(name, parent)
        assert (tale.out, tale.dead) == ([], [])
    assert tale.kernel.duplicates == 3


def test_white_space_around_the_object_does_not_make_another_message() -> None:
    value = b'{"group":"g","sender":"A","seq":1,"after":[]}'
    assert Tale().raw(value).raw(b" " + value + b"\n").kernel.duplicates == 1


@pytest.mark.parametrize("held", [True, False])
def test_other_content_under_an_id_that_came_is_equivocation_and_the_first_stands(held: bool) -> None:
    parent = "C1" if held else None
    tale = Tale().say("A1", parent, data=1)
    assert tale.say("A1", parent, data=2).dead == ["equivocation A1"]
    tale.say("C1")
    (record,) = [one for one in parsed(tale.kernel.ordered) if one["sender"] == "A"] or [{"data": 1}]
    assert record["data"] == 1


def test_content_is_compared_with_the_last_digests_delivered_and_older_copies_are_duplicates() -> None:
    tale = created("total", digests=2).say("A1", data=0).say("A2", data=0).say("A3", data=0)
    assert tale.say("A1", data=1).dead == []
    assert tale.kernel.duplicates == 1
    assert tale.say("A2", data=1).dead == ["equivocation A2"]
    assert tale.say("A3", data=1).dead == ["equivocation A3"]
    assert tale.say("A2", data=0).dead == []
    assert tale.kernel.duplicates == 2


def test_digests_are_kept_for_each_sender_and_epoch_and_there_are_16_by_default() -> None:
    tale = Tale("total")
    for seq in range(1, 18):
        tale.say(f"A{seq}", data=0)
    tale.say("B1", data=0).take(sender="A", epoch=1, seq=1, data=0)
    assert tale.say("A1", data=1).dead == []
    assert tale.say("A2", data=1).dead == ["equivocation A2"]
    assert tale.say("B1", data=1).dead == ["equivocation B1"]


def test_with_no_digests_every_copy_is_a_duplicate() -> None:
    tale = created("total", digests=0).say("A1", data=0)
    assert tale.say("A1", data=1).dead == []
    assert tale.kernel.duplicates == 1


@pytest.mark.parametrize("seed", range(5))
def test_however_many_digests_there_are_content_is_compared_with_the_last_delivered_and_no_others(seed: int) -> None:
    random = Random(seed)
    count = random.choice([90, 100, 400])
    tale = created("total", digests=count)
    delivered: list[int] = []
    seqs = list(range(1, 1_201))
    for at in range(0, len(seqs), 20 + seed * 5):
        if at % 600 < 300:  # the others come in order
            seqs[at : at + 20] = random.sample(seqs[at : at + 20], len(seqs[at : at + 20]))
    for at, seq in enumerate(seqs):
        tale.say(f"A{seq}", data=0)
        delivered.append(seq)
        if at % 100 == 99 and seed % 2:
            tale.restart()
        again = random.choice(delivered)
        known = again in delivered[-count:]
        assert tale.say(f"A{again}", data=1).dead == ([f"equivocation A{again}"] if known else [])
        assert tale.say(f"A{again}", data=0).dead == []


def test_a_create_that_asks_for_more_digests_than_anybody_should_keep_is_bad_stamp() -> None:
    tale = Tale().take(kind="create", options={"digests": 100_001})
    assert tale.dead == ["bad_stamp"]
    assert tale.take(kind="create", options={"digests": 100_000}).out == ["create"]
    generous = Tale(limits=Limits(digests=200_000))
    assert generous.take(kind="create", options={"digests": 200_000}).out == ["create"]


def test_digests_follow_delivery_and_not_seq() -> None:
    tale = created("s_b", digests=1).say("A2", data=0).say("A1", data=0)
    assert tale.say("A2", data=1).dead == []
    assert tale.say("A1", data=1).dead == ["equivocation A1"]


@pytest.mark.parametrize("order", ["s_b", "fifo", "total"])
def test_a_seq_more_than_window_past_the_highest_seen_is_seq_jump(order: str) -> None:
    tale = created(order, window=5)
    assert tale.say("A6").dead == ["seq_jump A6"]
    assert tale.say("A5").dead == []
    assert tale.say("A11").dead == ["seq_jump A11"]
    assert tale.say("A10").dead == []


def test_held_messages_count_as_seen_and_refused_ones_do_not() -> None:
    tale = created(window=5).say("A5", "B1")
    assert tale.say("A10").out == ["A10"]
    tale = created(window=5).take(sender="A", seq=5)
    assert tale.dead == ["missing_stamp A5"]
    assert tale.say("A10").dead == ["seq_jump A10"]


def test_the_window_of_a_group_nobody_created_is_the_kernel_s() -> None:
    tale = Tale(limits=Limits(window=3))
    assert tale.say("A4").dead == ["seq_jump A4"]
    assert tale.say("A3").out == ["A3"]
    assert Tale().say("A100001").dead == ["seq_jump A100001"]
    assert Tale().say("A100000").out == ["A100000"]


def test_a_refused_record_leaves_no_trace_so_a_good_one_may_follow() -> None:
    tale = Tale().take(sender="A", seq=1).take(sender="A", seq=1, after=[["B", 0, 1], ["C", 0, 1]]).say("A200000")
    assert tale.kernel.dump() == {}
    assert tale.say("A1").out == ["A1"]


def test_checks_come_in_the_contract_s_order() -> None:
    copied = created(window=5).say("A1").take(kind="leave", sender="A", last=0)
    assert copied.say("A1").kernel.duplicates == 1  # a copy before fenced
    assert copied.take(sender="A", seq=1).dead == ["fenced A1"]  # fenced before stamp and equivocation
    assert copied.say("A99").dead == ["fenced A99"]  # fenced before seq_jump
    late = created(window=5).take(kind="abandon", ids=[["A", 0, 1, 1]])
    assert late.take(sender="A", seq=1).dead == ["late A1"]  # late before stamp
    assert late.take(kind="leave", sender="A", last=0).out == ["leave"]
    assert late.say("A1").dead == ["fenced A1"]  # fenced before late
    stamped = created(window=5).say("A1")
    assert stamped.take(sender="A", seq=1).dead == ["missing_stamp A1"]  # stamp before equivocation
    assert stamped.take(sender="A", seq=99).dead == ["missing_stamp A99"]  # stamp before seq_jump
    closed = created(window=5, closed=True)
    assert closed.say("C99").dead == ["seq_jump C99"]  # seq_jump before membership
    assert closed.say("C1", "C1").dead == []  # membership before the order's own
    assert closed.held == {"C1": ["C"]}
    assert closed.take(kind="join", sender="C").dead == ["self_parent C1"]


def test_a_group_lives_in_the_partition_of_its_first_accepted_record() -> None:
    value = b'{"group":"g","sender":"A","seq":%d,"after":[]}'
    kernel = Holdback()
    kernel.receive(b'{"group":"g","sender":"A","seq":1}', b"g", 7, 0, 0)  # missing_stamp: not accepted
    kernel.receive(value % 1, b"g", 3, 0, 0)
    kernel.receive(value % 2, b"g", 7, 1, 0)
    kernel.receive(value % 2, b"g", 3, 1, 0)
    assert [one["code"] for one in parsed(kernel.dead)] == ["missing_stamp", "wrong_partition"]
    assert [(one["seq"], one["partition"]) for one in parsed(kernel.ordered)] == [(1, 3), (2, 3)]


def test_with_a_number_of_partitions_a_group_lives_where_its_key_says_whatever_comes_first() -> None:
    value = b'{"group":"g","sender":"A","seq":%d,"after":[]}'
    for partitioner, home, setting in (("murmur2", 3, "murmur2_random"), ("crc32", 2, "consistent_random")):
        kernel = Holdback(partitions=4, partitioner=partitioner)
        kernel.receive(value % 1, b"g", 1, 0, 0)
        assert kernel.dump() == {}
        kernel.receive(value % 1, b"g", home, 0, 0)
        kernel.receive(value % 2, b"g", 9, 0, 0)
        kernel.receive(value % 2, b"g", home, 1, 0)
        letters = parsed(kernel.dead)
        assert [one["code"] for one in letters] == ["wrong_partition", "wrong_partition"]
        for one in letters:
            assert one["reason"].startswith(
                f"The group belongs in partition {home} of 4, by {partitioner} of the key: "
            )
            assert f"partitioner={setting}" in one["reason"]
        assert [(one["seq"], one["partition"]) for one in parsed(kernel.ordered)] == [(1, home), (2, home)]


def test_a_refused_record_does_not_take_the_group_out_of_its_partition() -> None:
    kernel = Holdback(partitions=4)
    kernel.receive(b'{"group":"g","sender":"A","seq":1}', b"g", 3, 0, 0)  # missing_stamp: not accepted
    kernel.receive(b'{"group":"g","sender":"A","seq":1,"after":[]}', b"g", 1, 0, 0)
    kernel.receive(b'{"group":"g","sender":"A","seq":1,"after":[]}', b"g", 3, 1, 0)
    assert [one["code"] for one in parsed(kernel.dead)] == ["missing_stamp", "wrong_partition"]
    assert [one["partition"] for one in parsed(kernel.ordered)] == [3]


def test_where_the_groups_that_have_begun_live_is_known_from_their_state_too() -> None:
    kernel = Holdback()
    for key, partition in ((b"h", 0), (b"g", 3)):
        kernel.receive(b'{"group":"%b","sender":"A","seq":1,"after":[]}' % key, key, partition)
    kernel.receive(b'{"group":"i","sender":"A","seq":1}', b"i", 2)  # missing_stamp: not accepted
    again = Holdback()
    again.load(kernel.dump())
    for known in (kernel, again):
        assert {name: known.group(name).partition for name in known.names()} == {"g": 3, "h": 0}  # type: ignore[union-attr]


@pytest.mark.parametrize("place", [{"partitions": 0}, {"partitions": -1}, {"partitioner": "md5"}])
def test_a_log_without_partitions_and_an_unknown_partitioner_are_refused(place: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="partition"):
        Holdback(**place)


def test_the_reason_of_a_refusal_names_who_and_which() -> None:
    tale = created(window=5).take(sender="A", epoch=3, seq=9, after=[])
    (letter,) = parsed(tale.kernel.dead)
    assert letter["reason"] == "seq 9 is more than 5 past 0, the highest seen of 'A' (epoch 3)."
    tale = created().say("A1").take(kind="leave", sender="A", last=1).say("A2")
    (letter,) = parsed(tale.kernel.dead)
    assert letter["reason"] == "Of 'A' (epoch 0) nothing above seq 1 counts any more."


# ── limits ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_beyond_the_limit_of_held_messages_a_new_one_to_hold_is_backpressure_and_leaves_no_trace() -> None:
    tale = Tale(limits=Limits(held_max=2)).say("B1", "A1").say("C1", "A1")
    assert tale.say("D1", "A1").dead == ["backpressure D1"]
    assert tale.say("E1").out == ["E1"]  # messages that need not be held pass
    assert tale.say("A1").out == ["A1", "B1", "C1"]
    assert tale.say("D1", "A1").out == ["D1"]


def test_beyond_the_limit_of_held_bytes_a_new_one_to_hold_is_backpressure() -> None:
    value = b'{"group":"g","sender":"%s","seq":1,"after":[["A",0,1]]}'
    tale = Tale(limits=Limits(held_bytes_max=2 * len(value % b"B")))
    assert tale.raw(value % b"B").raw(value % b"C").dead == []
    assert tale.raw(value % b"D").dead == ["backpressure D1"]
    assert tale.say("A1").out == ["A1", "B1", "C1"]
    assert tale.raw(value % b"D").out == ["D1"]


def test_the_room_of_what_was_given_up_or_fenced_is_free_again() -> None:
    tale = Tale(limits=Limits(held_max=1)).say("B1", "A1")
    tale.take(kind="abandon", ids=[["B", 0, 1, 1]])
    assert tale.say("C2", "A1").dead == []
    assert tale.take(kind="leave", sender="C", last=1).dead == ["fenced C2"]
    assert tale.say("D1", "A1").dead == []
    assert tale.say("E1", "A1").dead == ["backpressure E1"]


@pytest.mark.parametrize("order", ["s_b", "total"])
def test_a_message_that_would_open_one_run_too_many_is_backpressure(order: str) -> None:
    tale = Tale(order, Limits(runs_max=2)).say("A5").say("A9")
    assert tale.say("A7").dead == ["backpressure A7"]
    assert tale.say("A1").dead == ["backpressure A1"]
    assert tale.say("A6").out == ["A6"]
    assert tale.say("A8").out == ["A8"]
    assert tale.say("A2").dead == ["backpressure A2"]
    assert tale.say("A7").out == ["A7"]  # joins two runs, so there is room again
    assert tale.say("A2").out == ["A2"]
    assert tale.say("A1").out == ["A1"]
    assert tale.say("B7").out == ["B7"]  # each sender has its own limit


@pytest.mark.parametrize("order", ["s_b", "total"])
def test_with_room_for_one_run_only_the_next_seq_passes(order: str) -> None:
    tale = Tale(order, Limits(runs_max=1)).say("A1")
    assert tale.say("A3").dead == ["backpressure A3"]
    assert tale.say("A2").out == ["A2"]
    assert tale.say("A3").out == ["A3"]
    assert tale.say("B5").out == ["B5"]
    assert tale.say("B7").dead == ["backpressure B7"]
    assert tale.say("B4").out == ["B4"]


def test_an_abandon_that_would_leave_too_many_runs_is_backpressure_and_gives_up_nothing() -> None:
    tale = Tale("total", Limits(runs_max=2)).say("A5")
    assert tale.take(kind="abandon", ids=[["A", 0, 1, 1], ["A", 0, 3, 3]]).dead == ["backpressure"]
    assert tale.take(kind="abandon", ids=[["A", 0, 1, 1], ["A", 0, 2, 3]]).out == ["(A1)", "(A2)", "(A3)"]


@pytest.mark.parametrize("name", Limits.__struct_fields__)
@pytest.mark.parametrize("value", [-1, 1.5, True, None])
def test_a_limit_is_a_whole_number_and_says_so(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=name):
        Limits(**{name: value})


def test_an_order_that_does_not_exist_is_refused_with_those_that_do() -> None:
    with pytest.raises(ValueError, match="s_b, fifo, causal, causal_p2p, total"):
        Holdback(order="alphabetical")
