"""`two_clock` (linear and physical clocks): one test per claim, the vectors, printed rules against the ruling."""

from __future__ import annotations

import json
from itertools import permutations
from random import Random
from typing import Any, NamedTuple

import pytest

from precede.udfs.engine.snapshot import deadline_ms
from precede.udfs.holdback import Holdback
from precede.udfs.limits import Limits
from precede.udfs.release.by_both_clocks import ByBothClocks
from tests.kernel.clock_rules import TwoClockRule
from tests.kernel.effort import seeds
from tests.kernel.feeding import Tale, id_of, parsed
from tests.kernel.histories import vectors


class Stamp(NamedTuple):
    clock: int
    time: int


def sound(i: Stamp, j: Stamp, accuracy: int, least: int) -> bool:
    """The ruling: i precedes j, of different sources."""
    return i.time < j.time and j.clock - i.clock >= least - 2 * accuracy


def pair(i: Stamp, j: Stamp, accuracy: int, least: int) -> str:
    return "<" if sound(i, j, accuracy, least) else ">" if sound(j, i, accuracy, least) else "="


def group(*members: str, **options: int) -> Tale:
    return Tale("s_b").take(kind="create", options={"order": "two_clock", **options}, members=list(members))


def say(tale: Tale, name: str, time: int, clock: int, **more: Any) -> list[str]:
    return tale.take(sender=name[0], seq=int(name[1:]), time=time, clock_ms=clock, **more).out


def beat(tale: Tale, sender: str, following: int, time: int, clock: int) -> list[str]:
    return tale.take(kind="heartbeat", sender=sender, seq=following, time=time, clock_ms=clock).out


@pytest.mark.parametrize("row", vectors("tsuneizumi-pair")[0]["rows"], ids=str)
def test_vector_tsu_1_pair_by_pair(row: dict[str, Any]) -> None:
    i, j = Stamp(*row["i"]), Stamp(*row["j"])
    assert pair(i, j, row["lam"], 0) == row["sound_dmin0"]
    assert pair(i, j, row["lam"], row["delta"]) == row["sound_dmin_delta"]
    for least, expected in ((0, row["sound_dmin0"]), (row["delta"], row["sound_dmin_delta"])):
        assert _by_kernel(i, j, row["lam"], least) == expected


def _by_kernel(i: Stamp, j: Stamp, accuracy: int, least: int) -> str:
    """How the kernel relates two messages of different sources: one that precedes a delivered one is late."""
    for sign, first, second in (("<", i, j), (">", j, i)):
        tale = group("A", "B", accuracy_ms=accuracy, delay_min_ms=least, delay_max_ms=0)
        tale.offset = 1_000  # late enough for the log's own time to release everything
        assert say(tale, "A1", second.time + 1, second.clock) == ["A1"]
        say(tale, "B1", first.time + 1, first.clock)
        if tale.dead:
            assert tale.dead == ["late B1"]
            return sign
    return "="


def test_vector_tsu_2_the_printed_relation_has_a_circle_and_the_ruling_has_none() -> None:
    (vector,) = vectors("tsuneizumi-cycle")
    lam, delta = vector["lam"], vector["delta"]
    a, b, c = (Stamp(*vector["msgs"][name]) for name in "abc")

    def by_clocks(i: Stamp, j: Stamp) -> bool:
        apart = j.clock - i.clock
        return apart > 2 * lam + delta or (abs(apart) <= 2 * lam + delta and i.time < j.time)

    assert by_clocks(a, b)
    assert by_clocks(b, c)
    assert by_clocks(c, a)
    assert (pair(a, b, lam, 0), pair(b, c, lam, 0), pair(c, a, lam, 0)) == ("=", "<", "<")


def test_the_relation_is_not_transitive_so_nothing_is_ever_sorted_by_it() -> None:
    first, second, third = Stamp(0, 1), Stamp(-2, 2), Stamp(-4, 3)
    assert sound(first, second, 1, 0)
    assert sound(second, third, 1, 0)
    assert not sound(first, third, 1, 0)


def test_rule_1b_as_printed_calls_a_causal_pair_concurrent_and_the_ruling_orders_it() -> None:
    # accuracy 1, delay 3: sent at true time 0 and shown as 1; the reply, at true time 3, is shown as 2.
    question, reply = Stamp(1, 0), Stamp(2, 1)
    assert abs(reply.clock - question.clock) <= 2 * 1  # printed: so they are concurrent
    assert sound(question, reply, 1, 0)
    assert sound(question, reply, 1, 3)


def test_of_one_source_the_seq_decides_however_close_the_clocks() -> None:
    for arrival in permutations([("A1", 1, 100), ("A2", 2, 100), ("A3", 3, 99)]):
        tale = group("A", accuracy_ms=50)
        assert [name for one in arrival for name in say(tale, *one)] == ["A1", "A2", "A3"]


def test_either_clock_of_a_member_may_prove_that_nothing_before_can_come() -> None:
    by_time = group("A", "B", accuracy_ms=1)
    say(by_time, "A1", 5, 100)
    assert beat(by_time, "B", 1, 5, 0) == ["A1"]
    by_clock = group("A", "B", accuracy_ms=1)
    say(by_clock, "A1", 5, 100)
    assert beat(by_clock, "B", 1, 1, 102) == []
    assert beat(by_clock, "B", 1, 1, 103) == ["A1"]


def test_without_accuracy_the_physical_clock_proves_nothing() -> None:
    tale = group("A", "B", delay_min_ms=50, delay_max_ms=1)
    say(tale, "A1", 5, 100)
    assert beat(tale, "B", 1, 1, 10**9) == []
    assert beat(tale, "B", 1, 5, 10**9) == ["A1"]


def test_a_known_least_delay_leaves_more_pairs_unrelated() -> None:
    for least, expected in ((0, []), (60, ["B1"])):
        tale = group("A", "B", "C", accuracy_ms=10, delay_min_ms=least)
        say(tale, "A1", 1, 100)
        beat(tale, "A", 2, 99, 0)
        beat(tale, "C", 1, 0, 80)  # C may still precede A1, unless its message is too young for that
        tale.kernel.clear()
        out = say(tale, "B1", 2, 90)
        assert out[-1:] == expected or least == 60


def test_the_timed_release_lets_a_message_go_by_the_log_s_own_time_and_a_tick_brings_it() -> None:
    tale = group("A", "B", accuracy_ms=1, delay_max_ms=5)
    kernel = tale.kernel
    record = {"group": "g", "sender": "A", "seq": 1, "time": 5, "clock_ms": 100}
    kernel.receive(json.dumps(record).encode(), b"g", 0, 1, 50)
    for now, partition, count in ((107, 0, 0), (900, 1, 0), (109, 0, 0), (110, 0, 1)):
        blobs = dict(kernel.dump())
        kernel = type(kernel)()
        kernel.load(blobs)
        kernel.receive(b'{"kind":"tick"}', None, partition, 9, now)
        assert len(kernel.ordered) == count
    (delivered,) = parsed(kernel.ordered)
    assert (delivered["released_offset"], delivered["released_ms"]) == (9, 110)


def test_the_timed_release_waits_for_the_last_record_that_honest_timely_members_may_still_send() -> None:
    kernel = Holdback()
    create = {"group": "g", "kind": "create", "sender": "registry", "members": ["A", "B"]}
    options = {"order": "two_clock", "accuracy_ms": 1, "delay_min_ms": 0, "delay_max_ms": 5}
    lines: list[tuple[dict[str, Any], bytes | None, int]] = [
        ({**create, "options": options}, b"g", 90),
        ({"group": "g", "sender": "A", "seq": 1, "time": 2, "clock_ms": 100}, b"g", 102),
        ({"kind": "tick"}, None, 107),
        ({"group": "g", "sender": "B", "seq": 1, "time": 1, "clock_ms": 102}, b"g", 109),
    ]
    for offset, (record, key, now_ms) in enumerate(lines):
        kernel.receive(json.dumps(record).encode(), key, 0, offset, now_ms)
    assert kernel.dead == []
    delivered = [one for one in parsed(kernel.ordered) if "kind" not in one]
    assert [(one["sender"], one["seq"], one["released_offset"]) for one in delivered] == [("B", 1, 3), ("A", 1, 3)]


def test_a_tick_that_frees_nothing_leaves_no_state() -> None:
    tale = group("A", "B", accuracy_ms=1, delay_max_ms=500)
    say(tale, "A1", 5, 100)
    before = {key: bytes(blob) for key, blob in tale.kernel.dump().items()}
    tale.raw(b'{"kind":"tick"}', key=None)
    assert tale.kernel.dump() == before


def test_a_copy_lets_no_time_pass_and_the_next_record_that_counts_does() -> None:
    tale = group("A", "B", "C", accuracy_ms=1, delay_max_ms=5)
    assert say(tale, "C1", 1, 10) == ["C1"]
    assert say(tale, "A1", 5, 100) == []
    before = {key: bytes(blob) for key, blob in tale.kernel.dump().items()}
    tale.wait(60)
    for held, name, time, clock in ((True, "A1", 5, 100), (False, "C1", 1, 10)):
        copies = tale.kernel.duplicates
        assert say(tale, name, time, clock) == [], f"{held=}"
        assert (tale.kernel.duplicates - copies, tale.dead) == (1, []), f"{held=}"
        assert tale.kernel.dump() == before, f"{held=}"
    assert beat(tale, "C", 2, 3, 20) == ["A1"]


def test_the_deadline_in_a_blob_that_waited_less_lets_nothing_go_before_its_time() -> None:
    tale = group("A", "B", accuracy_ms=1, delay_max_ms=5)
    say(tale, "A1", 5, 100)
    (blob,) = tale.kernel.dump().values()
    assert deadline_ms(blob) == 110
    stored = blob[:1] + (107).to_bytes(8, "big") + blob[9:]  # as it was written when the release waited 2 accuracies
    kernel = Holdback()
    kernel.load({b"g": stored})
    for offset, (now, count) in enumerate(((107, 0), (109, 0), (110, 1)), start=2):
        kernel.receive(b'{"kind":"tick"}', None, 0, offset, now)
        assert len(kernel.ordered) == count


def test_a_full_group_takes_what_the_log_s_time_or_the_physical_clock_lets_go_at_once() -> None:
    timed = Tale("s_b", Limits(held_bytes_max=10))
    timed.take(kind="create", options={"order": "two_clock", "accuracy_ms": 1, "delay_max_ms": 5}, members=["A", "B"])
    timed.offset = 100
    assert say(timed, "A1", 5, 10) == ["A1"]
    by_clock = Tale("s_b", Limits(held_max=1))
    by_clock.take(kind="create", options={"order": "two_clock", "accuracy_ms": 1}, members=["A", "B", "C"])
    say(by_clock, "A1", 3, 1_000)  # held for C, whose clocks are behind both of these
    beat(by_clock, "C", 1, 1, 100)
    beat(by_clock, "A", 2, 99, 100)
    assert (say(by_clock, "B1", 5, 10), by_clock.dead) == (["B1"], [])
    assert (say(by_clock, "B2", 6, 2_000), by_clock.dead) == ([], ["backpressure B2"])
    before = by_clock.kernel.dump()[b"g"]
    say(by_clock, "B2", 6, 2_000)
    assert by_clock.kernel.dump()[b"g"] == before  # the attempt left no trace


def test_who_waits_for_a_queued_message_alone_names_whose_word_that_one_waits_for() -> None:
    tale = group("A", "B", "C", accuracy_ms=5)
    beat(tale, "C", 1, 1, 150)
    say(tale, "A1", 3, 145)
    beat(tale, "A", 2, 99, 145)
    say(tale, "B1", 5, 138)  # C's clock is past this one, but not past A1, which precedes it
    assert tale.held == {"A1": ["C"], "B1": ["C"]}
    assert beat(tale, "C", 1, 1, 156) == ["A1", "B1"]


def test_refused_and_gone_messages_leave_nothing_in_the_heaps() -> None:
    tale = Tale("s_b", Limits(held_max=1))
    tale.take(kind="create", options={"order": "two_clock", "accuracy_ms": 1}, members=["A", "B", "C"])
    say(tale, "A1", 3, 1_000)
    for number in range(1_000):
        say(tale, "B1", 6, 10_000 + number)
        assert tale.dead == ["backpressure B1"]
        tale.take(kind="join", sender="D", epoch=number)
        tale.take(kind="leave", sender="D", epoch=number, last=0)
    release: Any = tale.kernel._groups["g"].release
    assert len(release.fronts.heads) < 100
    assert len(release.floors._lowest) < 100


def test_no_timed_release_while_something_of_a_member_is_known_to_be_missing() -> None:
    tale = group("A", "B", accuracy_ms=1, delay_max_ms=5)
    say(tale, "B2", 2, 0)
    assert say(tale, "A1", 5, 0) == []
    assert tale.held == {"B2": ["B1"], "A1": ["B1"]}
    assert say(tale, "B1", 1, 0) == ["B1", "B2", "A1"]  # the log's time is 30 by now


def test_a_message_that_precedes_something_delivered_is_late_and_one_that_does_not_is_welcome() -> None:
    for clock, expected in ((102, ["late B1"]), (103, [])):
        tale = group("A", "B", accuracy_ms=1, delay_max_ms=5)
        tale.offset = 100
        assert say(tale, "A1", 5, 100) == ["A1"]
        say(tale, "B1", 3, clock)
        assert tale.dead == expected


def test_a_clock_that_steps_back_counts_as_the_sender_s_last() -> None:
    tale = group("A", "B", accuracy_ms=1)
    say(tale, "A1", 2, 100)
    say(tale, "A2", 3, 0)
    assert beat(tale, "B", 1, 1, 102) == []
    assert beat(tale, "B", 1, 1, 103) == ["A1", "A2"]


def test_a_full_group_keeps_nothing_of_what_it_refuses() -> None:
    tale = Tale("s_b", Limits(held_max=1)).take(
        kind="create", options={"order": "two_clock", "accuracy_ms": 1}, members=["A", "B", "C"]
    )
    say(tale, "A1", 1_000, 100)
    for time in range(1_001, 1_500):
        assert say(tale, "B1", time, 10 * time) == []
        assert tale.dead == ["backpressure B1"]
    (group,) = tale.kernel._groups.values()
    assert isinstance(group.release, ByBothClocks)
    assert len(group.release.fronts.heads) < 100
    assert group.release.fronts.by_time == [(1, "B", 0), (1, "C", 0), (1_000, "A", 0)]


def test_the_document_s_dseq_blocks_at_the_second_message_and_seqs_from_1_do_not() -> None:
    dseq = 0  # printed: first seq 0, DSEQ := m.seq + 1 on delivery, deliver where DSEQ = m.seq - 1
    dseq = 0 + 1
    assert dseq != 1 - 1
    tale = group("A", accuracy_ms=1)
    assert say(tale, "A1", 1, 0) + say(tale, "A2", 2, 0) == ["A1", "A2"]


@pytest.mark.parametrize("missing", ["time", "clock_ms"])
def test_both_clocks_are_needed(missing: str) -> None:
    fields: dict[str, Any] = {"sender": "A", "seq": 1, "time": 1, "clock_ms": 1}
    del fields[missing]
    assert group("A").take(**fields).dead == ["missing_stamp A1"]


def test_every_run_is_what_the_rule_says_message_by_message() -> None:
    for seed in seeds(300):
        random = Random(seed)
        accuracy, least = random.randint(0, 3), random.choice([0, 0, 4, 9])
        names = "ABC"[: random.randint(2, 3)]
        said: list[dict[str, Any]] = []
        for name in names:
            time = clock = 0
            for seq in range(1, random.randint(2, 5)):
                time += random.randint(1, 3)
                clock = max(0, clock + random.randint(-1, 6))
                said.append({"sender": name, "seq": seq, "time": time, "clock_ms": clock})
        tale = group(*names, accuracy_ms=accuracy, delay_min_ms=least)
        rule = TwoClockRule(names, 2 * accuracy - least)
        for record in random.sample(said, len(said)):
            tale.take(**record)
            assert [id_of(one)[::2] for one in parsed(tale.kernel.ordered)] == rule.take(record), (seed, said)
            assert tale.dead == []
