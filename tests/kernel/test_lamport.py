"""`lamport` (lecture notes, 3.2; S_b, section II): one test per claim, every vector, the traps of the rule."""

from __future__ import annotations

from itertools import permutations
from random import Random
from typing import Any

import pytest

from precede.udfs.limits import Limits
from precede.udfs.orders.lamport import LamportStamps
from tests.kernel.effort import seeds
from tests.kernel.feeding import Tale, parsed
from tests.kernel.histories import vectors


def group(*members: str, limits: Limits | None = None) -> Tale:
    """A tale that starts with a `create` record."""
    tale = Tale("s_b", limits).take(kind="create", options={"order": "lamport"}, members=list(members))
    assert tale.out == ["create"]
    return tale


def say(tale: Tale, name: str, time: int, **more: Any) -> list[str]:
    return tale.take(sender=name[0], seq=int(name[1:]), time=time, **more).out


def beat(tale: Tale, sender: str, following: int, time: int, **more: Any) -> list[str]:
    return tale.take(kind="heartbeat", sender=sender, seq=following, time=time, **more).out


(LAM_1, LAM_2) = vectors("lamport")


def test_vector_lam_1_the_chat_with_a_heartbeat_of_who_says_nothing() -> None:
    tale = group(*"ABCD")
    seq_of: dict[tuple[int, str], str] = {}
    for step in LAM_1["steps"]:
        kind, name, seq, time = step["in"]
        if kind == "d":
            seq_of[time, name] = f"{name}{seq}"
            out = say(tale, f"{name}{seq}", time)
        else:
            out = beat(tale, name, seq, time)
        assert out == [seq_of[time, name] for time, name in step["deliver"]]
        floors = tale.kernel._groups["g"].release.floors  # type: ignore[attr-defined]
        assert {name: floor for (name, _), floor in floors.items()} == step["floor"]


def test_vector_lam_2_whatever_the_arrival() -> None:
    said = [(name, at + 1, time) for name, times in LAM_2["in"] for at, time in enumerate(times)]
    for seed in seeds(100):
        arrival = Random(seed).sample(said, len(said))
        tale = Tale("s_b").take(kind="create", options={"order": "lamport"}, members=["P1", "P2", "P3", "P4"])
        out: list[list[Any]] = []
        for name, seq, time in arrival:
            tale.take(sender=name, seq=seq, time=time)
            out += [[one["time"], one["sender"]] for one in parsed(tale.kernel.ordered)]
        assert out == LAM_2["deliver"]
        time_of = {(name, seq): time for name, seq, time in said}
        assert sorted([time_of[one.sender, one.seq], one.sender] for one in tale.kernel.held()) == LAM_2["held"]


def test_3_2_the_sequence_is_a_function_of_the_messages_and_not_of_their_way() -> None:
    said = [("A1", 1), ("A2", 4), ("B1", 1), ("B2", 3), ("C1", 2)]
    for arrival in permutations(said):
        tale = group(*"ABC")
        out = [name for message, time in arrival for name in say(tale, message, time)]
        for name, following in (("A", 3), ("B", 3), ("C", 2)):
            out += beat(tale, name, following, 9)
        assert out == ["A1", "B1", "C1", "B2", "A2"]


def test_any_later_record_of_a_member_is_its_acknowledgement() -> None:
    tale = group(*"AB")
    assert say(tale, "A1", 2) == []
    assert say(tale, "B1", 3) == ["A1"]


def test_the_test_by_floor_and_name_delivers_earlier_than_a_larger_time_from_everybody_would() -> None:
    tale = group(*"AB")
    say(tale, "B1", 2)
    # B's floor is 3, which is not larger than 3; but B's messages at 3 come after A's at 3.
    assert say(tale, "A1", 3) == ["B1", "A1"]


def test_ties_go_by_name_and_names_compare_by_code_point() -> None:
    tale = group("é", "z", "Z")
    for name in ("é", "z", "Z"):
        tale.take(sender=name, seq=1, time=1)
    assert [one.sender for one in tale.kernel.held()] == ["é"] or tale.out
    assert [one["sender"] for one in parsed(tale.kernel.ordered)] == ["Z", "z", "é"]


def test_only_records_contiguous_in_seq_raise_a_floor() -> None:
    tale = group(*"AB")
    say(tale, "A1", 2)
    assert say(tale, "B2", 9) == []
    assert tale.held == {"A1": ["B1"], "B2": ["B1"]}
    assert say(tale, "B1", 3) == ["A1"]  # and B:1 waits for A, as does B:2
    assert tale.held == {"B1": ["A"], "B2": ["A"]}


def test_a_silent_member_is_named_as_the_one_everybody_waits_for() -> None:
    tale = group(*"ABC")
    say(tale, "A1", 5)
    say(tale, "B1", 7)
    (first, second) = tale.kernel.held("g")
    assert (first.missing, first.silent, second.silent) == ([], ["C"], ["A", "C"])


def test_a_heartbeat_that_comes_before_what_it_covers_counts_once_that_is_there() -> None:
    tale = group(*"AB")
    say(tale, "A1", 5)
    assert beat(tale, "B", 2, 9) == []
    assert tale.held == {"A1": ["B1"]}
    assert say(tale, "B1", 1) == ["B1", "A1"]


@pytest.mark.parametrize("restarts", [False, True])
def test_of_more_heartbeats_than_are_kept_the_first_and_the_last_count_once_what_they_cover_is_there_and_others_later(
    restarts: bool,
) -> None:
    tale = group("A", "B")
    for seq, following in enumerate((50, 1_000, 1_999), start=1):
        say(tale, f"A{seq}", 10 * following - 1)
    for following in range(2, 2_000):
        beat(tale, "B", following, 10 * following)
        assert tale.dead == []
        if restarts:
            tale.restart()
    assert tale.held["A1"] == [f"B{seq}" for seq in range(1, 21)]
    assert len(tale.kernel.dump()[b"g"]) < 4_000
    freed_by = {name: seq for seq in range(1, 1_999) for name in say(tale, f"B{seq}", 10 * seq) if name[0] == "A"}
    assert freed_by == {"A1": 49, "A2": 1_000, "A3": 1_998}


def test_what_a_heartbeat_that_is_not_kept_promised_binds_with_the_last_one_however_little_that_promises() -> None:
    tale = group("A", "B")
    for following in [*range(2, 122), 150]:
        beat(tale, "B", following, 1_000 if following == 150 else 1)
    beat(tale, "B", 200, 5)
    for seq in range(1, 200):
        say(tale, f"B{seq}", seq)
    assert (say(tale, "B200", 999), tale.dead) == ([], ["clock_regression B200"])


def test_below_its_own_floor_a_message_is_a_clock_regression_and_its_seq_waits_for_a_good_one() -> None:
    tale = group(*"AB")
    say(tale, "A1", 5)
    say(tale, "A3", 7)
    assert (say(tale, "A2", 5), tale.dead) == ([], ["clock_regression A2"])
    assert tale.held["A3"] == ["A2"]
    say(tale, "A2", 6)
    assert beat(tale, "B", 1, 20) == ["A1", "A2", "A3"]


def test_a_message_held_for_its_turn_is_judged_by_its_clock_when_the_turn_comes() -> None:
    tale = group(*"AB")
    say(tale, "A2", 3)
    assert (say(tale, "A1", 5), tale.dead) == ([], ["clock_regression A2"])
    say(tale, "A2", 6)
    assert beat(tale, "B", 1, 20) == ["A1", "A2"]


def test_a_promise_binds_too() -> None:
    tale = group(*"AB")
    beat(tale, "A", 1, 8)
    assert (say(tale, "A1", 7), tale.dead) == ([], ["clock_regression A1"])


def test_a_newcomer_of_an_open_group_must_be_above_everything_delivered() -> None:
    tale = Tale("lamport")
    assert say(tale, "A1", 5) == ["A1"]
    assert (say(tale, "B1", 4), tale.dead) == ([], ["late B1"])
    assert say(tale, "C1", 8) == []
    assert say(tale, "A2", 9) == ["C1", "A2"]  # the refused record left no trace: nothing waits for B


def test_a_clock_that_begins_at_0_is_good_where_nothing_is_delivered_yet() -> None:
    tale = Tale("lamport")
    assert (say(tale, "A1", 0), tale.dead) == (["A1"], [])
    assert (say(tale, "B1", 0), tale.dead) == (["B1"], [])  # (0, B) is above (0, A), and both now send 1 at least
    assert (say(tale, "C1", 0), tale.dead) == (["C1"], [])
    tale.take(sender="AB", seq=1, time=0)
    assert tale.dead == ["late AB1"]  # (0, AB) is not above (0, C)


def test_in_an_open_group_a_larger_epoch_acts_as_a_join_and_ends_the_older_one() -> None:
    tale = Tale("lamport")
    say(tale, "A1", 5)
    assert say(tale, "A1", 6, epoch=1) == ["A1@1"]
    assert (say(tale, "A2", 9), tale.dead) == ([], ["fenced A2"])


def test_what_is_in_flight_of_an_epoch_that_has_ended_counts_and_makes_nobody_its_member_again() -> None:
    tale = Tale("lamport")
    tale.take(kind="abandon", ids=[["A", 0, 3, 3]])  # the old epoch was seen up to here
    assert say(tale, "A1", 1, epoch=1) == ["A1@1"]
    assert say(tale, "A1", 2) == ["A1"]
    assert (tale.take(kind="join", sender="A", epoch=1).out, tale.dead[-1]) == ([], "bad_stamp")


def test_a_join_without_a_time_moves_no_clock() -> None:
    tale = group(*"A")
    tale.take(kind="join", sender="B")
    assert (say(tale, "A1", 100_001), tale.dead) == ([], ["clock_poison A1"])


@pytest.mark.parametrize("time", [100_001, 2**60])
def test_a_time_far_past_the_highest_of_the_group_is_poison_and_moves_no_clock(time: int) -> None:
    tale = group(*"AB")
    assert (say(tale, "A1", time), tale.dead) == ([], ["clock_poison A1"])
    assert (beat(tale, "B", 1, time), tale.dead) == ([], ["clock_poison B1"])
    assert say(tale, "A1", 1) == ["A1"]
    assert say(tale, "B1", 1) == ["B1"]


def test_the_vector_of_protocols_10_evict_fence_and_join_with_a_floor() -> None:
    tale = group(*"AB")
    assert say(tale, "A1", 2) == []
    assert tale.take(kind="evict", member=["B", 0], cut=0).out == ["evict", "A1"]
    assert (say(tale, "B1", 2), tale.dead) == ([], ["fenced B1"])
    assert tale.take(kind="join", sender="B", epoch=2).out == ["join"]
    assert (say(tale, "B1", 2, epoch=2), tale.dead) == ([], ["clock_regression B1@2"])
    assert say(tale, "B1", 3, epoch=2) == []
    assert say(tale, "A2", 3) == ["A2", "B1@2"]


def test_a_leaver_holds_nobody_back_once_its_last_message_is_there() -> None:
    tale = group(*"AB")
    say(tale, "A1", 9)
    assert tale.take(kind="leave", sender="B", last=1).out == ["leave"]
    assert tale.held == {"A1": ["B1"]}
    assert say(tale, "B1", 3) == ["B1", "A1"]


def test_an_abandoned_message_has_no_time_and_follows_its_sender_s_previous_one_at_once() -> None:
    tale = group(*"AB")
    say(tale, "A1", 2)
    say(tale, "A3", 9)
    assert tale.take(kind="abandon", ids=[["A", 0, 2, 2]]).out == []
    assert beat(tale, "B", 1, 5) == ["A1", "(A2)"]
    assert beat(tale, "B", 1, 10) == ["A3"]


def test_a_promise_counts_and_a_floor_ends_once_what_they_wait_for_is_given_up() -> None:
    promised = group(*"AB")
    say(promised, "A1", 5)
    beat(promised, "B", 3, 9)
    assert promised.take(kind="abandon", ids=[["B", 0, 1, 1]]).out == ["(B1)"]
    assert promised.take(kind="abandon", ids=[["B", 0, 2, 2]]).out == ["(B2)", "A1"]
    left = group(*"AB")
    say(left, "A1", 5)
    assert left.take(kind="leave", sender="B", last=2).out == ["leave"]
    assert left.take(kind="abandon", ids=[["B", 0, 2, 2]]).out == []
    assert left.take(kind="abandon", ids=[["B", 0, 1, 1]]).out == ["(B1)", "(B2)", "A1"]


def test_in_an_open_group_a_larger_epoch_fences_an_older_one_that_was_only_given_up() -> None:
    tale = Tale("lamport").take(kind="abandon", ids=[["A", 0, 1, 1]])
    say(tale, "A1", 5, epoch=1)
    assert (say(tale, "A2", 9), tale.dead) == ([], ["fenced A2"])


def test_a_full_group_takes_the_message_that_lets_another_go() -> None:
    tale = group(*"AB", limits=Limits(held_max=2))
    say(tale, "A1", 2)
    say(tale, "A2", 3)
    assert (say(tale, "A3", 4), tale.dead) == ([], ["backpressure A3"])
    assert say(tale, "B1", 7) == ["A1", "A2"]


def test_a_message_without_time_is_refused() -> None:
    assert group("A").take(sender="A", seq=1).dead == ["missing_stamp A1"]


def test_who_is_no_member_of_a_created_group_is_held_until_it_joins() -> None:
    tale = group("A")
    assert say(tale, "B1", 4) == []
    assert tale.held == {"B1": ["B"]}
    assert tale.take(kind="join", sender="B").out == ["join"]
    assert beat(tale, "A", 1, 9) == ["B1"]


def test_an_idle_member_s_heartbeats_each_promise_more_and_never_run_away_from_who_is_absent() -> None:
    stamps = LamportStamps("A")
    stamps.stamp()
    promised = [stamps.heartbeat()["time"] for _ in range(20_000)]
    assert promised[:10_000] == list(range(3, 10_003))
    assert set(promised[10_000:]) == {10_002}
    assert stamps.stamp()["time"] == 10_002, "a promise is kept"
    stamps.observe({"kind": "message", "sender": "B", "epoch": 0, "seq": 1, "time": 50})
    assert [stamps.heartbeat()["time"] for _ in range(2)] == [10_004, 10_005]
    again = LamportStamps("A")
    again.load(stamps.dump())
    assert [again.heartbeat()["time"] for _ in range(2)] == [10_006, 10_007], "also if its clock was saved"
