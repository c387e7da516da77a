"""Gaps: requested by the log's own time, reported when they end, abandoned after a time."""

from __future__ import annotations

import json
from itertools import pairwise
from random import Random
from typing import Any

import pytest

from precede.udfs import passing_time
from precede.udfs.engine.repair_timers import NOTICED_MAX
from precede.udfs.holdback import Holdback
from precede.udfs.limits import ASK_AGAIN_MS_MAX, Limits, Patience
from precede.udfs.orders import ORDERS
from precede.udfs.records.messages import LogRecord
from precede.udfs.records.signatures import sign
from tests.kernel import traffic
from tests.kernel.effort import seeds
from tests.kernel.feeding import Tale, feed
from tests.signing import private, public, public_bytes, publics

every_order = pytest.mark.parametrize("order", ORDERS)
TICK = b'{"kind":"tick"}'
QUICK = Patience(ask_after_ms=500, give_up_ms=4_000, silent_ms=3_000)


def timed(random: Random, order: str, length: int = 40) -> traffic.Log:
    """Hostile and honest records, with ticks between them; time advances in leaps and may step back a little."""
    log = traffic.log(random, order, length=length)
    now_ms = 1_000
    records: list[LogRecord] = []
    leap_ms = random.choice([200, 1_000, 5_000])
    for one in log.records:
        if random.random() < 0.4:
            now_ms += random.randint(-50, leap_ms)
            records.append(LogRecord(TICK, None, random.choice([0, 0, 1]), len(records), now_ms))
        now_ms += random.randint(0, 20)
        records.append(one._replace(offset=len(records), timestamp_ms=now_ms))
    for _ in range(random.randint(0, 6)):
        now_ms += leap_ms
        records.append(LogRecord(TICK, None, 0, len(records), now_ms))
    return traffic.Log(order, log.limits, records)


# ── laws over every order ─────────────────────────────────────────────────────────────────────────────────────────


@every_order
def test_the_same_log_asks_tells_and_gives_up_at_the_same_places_whatever_the_cuts(order: str) -> None:
    said = 0
    for seed in seeds(100):
        random = Random(f"{order} {seed}")
        log = timed(random, order)
        whole = feed(log.records, order=order, limits=log.limits, patience=QUICK)
        cuts = random.choice([range(len(log.records)), random.sample(range(len(log.records)), len(log.records) // 3)])
        assert feed(log.records, order=order, limits=log.limits, patience=QUICK, cuts=cuts) == whole, f"{log!r} {cuts}"
        said += len(whole.own)
    assert said or order == "total"


@every_order
def test_what_is_known_of_the_next_deadline_is_what_a_new_look_finds_after_every_record(order: str) -> None:
    kept = 0
    for seed in seeds(60):
        log = timed(Random(f"{order} {seed}"), order)
        kernel = Holdback(order=order, limits=log.limits, patience=QUICK)
        for one in log.records:
            kernel.receive(*one)
            for group in kernel._groups.values():
                known, group.deadline = group.deadline, None
                looked_ms = passing_time.deadline_ms(group, QUICK)
                if known is not None and known[0] == group.position:
                    kept += known[1] is not None
                    assert known[1] == looked_ms, f"{log!r} {one}"
    assert kept or order == "total"


@every_order
def test_patience_changes_nothing_of_what_a_log_delivers(order: str) -> None:
    for seed in seeds(80):
        log = timed(Random(f"{order} {seed}"), order)
        one = feed(log.records, order=order, limits=log.limits, patience=QUICK)
        other = feed(log.records, order=order, limits=log.limits)
        assert (one.ordered, one.dead, one.held) == (other.ordered, other.dead, other.held)


@every_order
def test_other_groups_and_partitions_do_not_matter_to_what_is_said_of_a_group(order: str) -> None:
    for seed in seeds(80):
        log = timed(Random(f"{order} {seed}"), order)
        whole = feed(log.records, order=order, limits=log.limits, patience=QUICK)
        mine = [one for one in log.records if one.key in (b"g", None)]
        alone = feed(mine, order=order, limits=log.limits, patience=QUICK)
        assert [one for one in whole.own if one[1] == b"g"] == [one for one in alone.own if one[1] == b"g"]


def running(log: traffic.Log, *, ticks: int) -> tuple[Holdback, list[LogRecord], list[dict[str, Any]]]:
    """Run the kernel over a log that also gets the kernel's own records, as in the stream; then only ticks."""
    kernel = Holdback(order=log.order, limits=log.limits, patience=QUICK)
    through: list[LogRecord] = []
    told: list[dict[str, Any]] = []
    waiting = list(reversed(log.records))
    now_ms = 0
    while waiting or ticks:
        if not waiting:
            ticks -= 1
            now_ms += 1_000 if ticks > 4 else ASK_AGAIN_MS_MAX
            waiting += [LogRecord(TICK, None, partition, 0, now_ms) for partition in (0, 1)]
        record = waiting.pop()._replace(offset=len(through))
        now_ms = max(now_ms, record.timestamp_ms)
        through.append(record)
        kernel.receive(*record)
        for one in kernel.own:
            if one.topic == "raw":
                waiting.insert(0, LogRecord(one.value, one.key, record.partition, 0, now_ms))
            else:
                told.append(json.loads(one.value))
        kernel.own.clear()
    return kernel, through, told


@every_order
def test_with_hope_ended_nothing_is_held_for_a_gap_and_every_gap_that_was_asked_for_has_ended(order: str) -> None:
    for seed in seeds(60):
        random = Random(f"{order} {seed}")
        log = timed(random, order)
        log = traffic.Log(order, Limits(), log.records)  # small limits may refuse what the job writes
        kernel, through, told = running(log, ticks=40)
        for one in kernel.held():
            # These logs have no gap that must be held for ever; cycles are not gaps.
            assert not one.missing, f"{one} in {log!r}"
        open_ids: set[tuple[str, str, int, int]] = set()
        for record in told:
            ids = {(record["group"], record["sender"], record["epoch"], seq) for seq in _seqs(record)}
            if record["kind"] == "ask":
                open_ids |= ids
            else:
                open_ids -= ids
        assert not open_ids
        again = feed(through, order=order, patience=QUICK)
        assert again.ordered == kernel.ordered, "a replay of the log, including the job's own records, differs"
        assert again.dead == kernel.dead


def _seqs(record: dict[str, Any]) -> range:
    return range(record["first"], record["last"] + 1)


# ── one thing at a time ───────────────────────────────────────────────────────────────────────────────────────────


def test_a_request_says_all_that_a_client_needs() -> None:
    tale = Tale().say("B1", "A2").tick(3)
    (one,) = tale.kernel.own
    assert (one.topic, one.key, one.offset) == ("control", b"g", 1)
    assert json.loads(one.value) == {
        "v": 1,
        "kind": "ask",
        "group": "g",
        "sender": "A",
        "epoch": 0,
        "first": 2,
        "last": 2,
        "to": "A",
        "asked": 1,
        "opened_ms": 0,
        "asked_ms": 3_010,
        "closed_ms": None,
        "waited": [["B", 0, 1]],
        "partition": 0,
        "offset": 1,
    }


def test_only_a_tick_lets_a_gap_become_overdue_so_messages_cost_nothing_for_it() -> None:
    tale = Tale().say("B1", "A2").wait(60)
    assert tale.say("C1").own == []
    assert tale.tick().own == ["asks A for A2"]


def test_a_gap_younger_than_ask_after_is_disorder_and_nobody_is_told() -> None:
    tale = Tale().say("B1", "A1")
    assert tale.tick(1.9).own == []
    tale.say("A1")
    assert tale.tick(60).own == []


def test_pauses_double_up_to_five_minutes() -> None:
    tale = Tale(patience=Patience(give_up_ms=0)).say("B1", "A1")
    asked = [second for second in range(4_000) if tale.tick(1).own]
    pauses = [later - earlier for earlier, later in pairwise(asked)]
    assert pauses[:4] == [2, 4, 8, 16]
    assert pauses == sorted(pauses)
    assert 290 <= pauses[-1] <= ASK_AGAIN_MS_MAX / 1000


def test_a_sender_that_left_or_came_back_is_not_asked_but_everybody_is() -> None:
    ways: list[dict[str, Any]] = [{"kind": "leave", "last": 5}, {"kind": "join", "epoch": 1}]
    for gone in ways:
        tale = Tale()
        tale.take(kind="join", sender="A").say("A5").say("B1", "A2").take(sender="A", **gone)
        assert tale.tick(3).own == ["asks everybody for A2"]


def test_what_a_fence_keeps_out_is_not_asked_for_but_given_up_at_once() -> None:
    tale = Tale().say("A1").take(kind="evict", member=["A", 0], cut=1).say("B1", "A2")
    assert tale.tick(3).own == ["writes abandon A2"]
    tale = Tale(patience=Patience(loss="hold")).say("A1").take(kind="evict", member=["A", 0], cut=1).say("B1", "A2")
    assert tale.tick(3).own == []
    assert tale.tick(3_600).own == []


def test_hope_that_ends_sooner_than_one_would_ask_still_lets_ask_once() -> None:
    tale = Tale().take(kind="create", options={"give_up_ms": 1_000}).say("B1", "A1")
    assert tale.tick(0.6).own == ["asks A for A1"]
    assert tale.tick(0.5).own == ["writes abandon A1"]


def test_the_options_of_a_group_stand_over_the_job_s() -> None:
    for options, expected in (
        ({"give_up_ms": 0}, False),
        ({"loss": "hold"}, False),
        ({"loss": "abandon"}, True),
        ({}, False),
    ):
        tale = Tale(patience=Patience(loss="hold")).take(kind="create", options=options).say("B1", "A1")
        tale.tick(3)
        assert ("writes abandon A1" in tale.tick(3_600).own) is expected, options


@pytest.mark.parametrize(("keys", "decides"), [(("A", "B"), False), (("A", "B", "precede"), True)])
def test_in_a_group_with_keys_the_job_decides_only_where_there_is_a_service(
    keys: tuple[str, ...], decides: bool
) -> None:
    tale = Tale(patience=Patience(service_key=public_bytes("precede")))
    tale.take(kind="create", options={"keys": publics(*keys)}).say("B1", "A1", by="B")
    assert tale.tick(3).own == ["asks A for A1"]
    tale.tick(901)
    assert ("writes abandon A1" in tale.own) is decides
    for one in list(tale.kernel.own):
        if one.topic == "raw":
            assert tale.raw(sign(one.value, private("precede"))).out == ["(A1)", "B1"]


@pytest.mark.parametrize("key", [None, "another"])
def test_a_job_that_lacks_the_service_s_key_says_so_and_goes_on_asking(key: str | None) -> None:
    patience = Patience(service_key=None if key is None else public_bytes(key))
    tale = Tale(patience=patience).take(kind="create", options={"keys": publics("A", "B", "precede")})
    tale.say("B1", "A1", by="B").say("B2", "A9", by="B").tick(3)
    for _ in range(3):
        told, *asked = sorted(tale.tick(901).own, key=lambda said: "service_key" not in said)
        assert "'g'" in told
        assert "`service_key`" in told
        assert asked == ["asks everybody for A1", "asks everybody for A9"]
    assert tale.held == {"B1": ["A1"], "B2": ["A9"]}
    assert [(gap.first, gap.asked) for gap in tale.kernel.gaps()] == [(1, 4), (9, 4)]


def test_a_job_that_is_given_the_service_s_key_ends_what_it_could_not_end_before() -> None:
    before = Tale().take(kind="create", options={"keys": publics("A", "B", "precede")}).say("B1", "A1", by="B")
    assert "`service_key`" in before.tick(3).tick(901).own[0]
    after = Tale(patience=Patience(service_key=public_bytes("precede")))
    after.kernel.load(before.kernel.dump())
    after.offset, after.waited_ms = before.offset, before.waited_ms
    assert after.tick(301).own == ["writes abandon A1"]


def test_a_new_key_of_the_service_is_the_one_that_the_job_must_have() -> None:
    tale = Tale(patience=Patience(service_key=public_bytes("precede")))
    tale.take(kind="create", options={"keys": publics("A", "B", "precede")})
    tale.take(kind="join", sender="precede", epoch=1, key=public("renewed"), by="precede")
    assert tale.say("B1", "A1", by="B").tick(3).tick(901).own[1:] == ["asks everybody for A1"]


def test_a_parent_far_beyond_the_window_cannot_be_abandoned_so_what_waits_for_it_is() -> None:
    tale = Tale().say("A1").say("B1", "A900000").say("C1", "B1")
    tale.tick(3)
    assert tale.tick(901).own == ["writes abandon B1"]
    tale.take(kind="abandon", ids=[["B", 0, 1, 1]])
    assert (tale.out, tale.dead) == (["(B1)", "C1"], ["abandoned B1"])
    assert tale.tick(1).own == ["dropped A900000"]


def test_a_run_of_a_hundred_thousand_lost_messages_is_one_gap_and_cheap() -> None:
    tale = Tale("fifo").say("A100000")
    assert tale.tick(3).own == ["asks A for A1 to A99999"]
    assert len(tale.kernel.dump()[b"g"]) < 200
    assert tale.tick(901).own == ["writes abandon A1 to A99999"]


def test_more_gaps_than_a_group_may_have_in_hand_wait_their_turn() -> None:
    tale = Tale(patience=Patience(give_up_ms=10_000))
    for seq in range(1, NOTICED_MAX + 51):
        tale.say(f"B{seq}", f"A{2 * seq}")
    assert len(tale.tick(5).own) == NOTICED_MAX
    assert len(tale.tick(10).own) == NOTICED_MAX
    tale.take(kind="abandon", ids=[["A", 0, 1, 2 * NOTICED_MAX]])
    assert [one.split()[0] for one in tale.tick(1).own].count("asks") == 50


def test_an_abandon_that_comes_too_late_for_its_gap_is_a_dead_letter_and_no_more() -> None:
    tale = Tale(patience=Patience(give_up_ms=3_000)).say("B1", "A1")
    tale.tick(2)
    assert tale.tick(2).own == ["writes abandon A1"]
    assert tale.say("A1").out == ["A1", "B1"]
    assert tale.take(kind="abandon", ids=[["A", 0, 1, 1]]).dead == ["late"]
    assert tale.tick(1).own == ["filled A1"]


def test_where_it_did_not_work_it_is_given_up_again_after_a_while() -> None:
    tale = Tale(patience=Patience(give_up_ms=3_000)).say("B1", "A1")
    tale.tick(2)
    assert tale.tick(2).own == ["writes abandon A1"]
    assert tale.tick(60).own == []
    assert tale.tick(300).own == ["writes abandon A1"]


def test_a_group_where_all_is_well_again_has_the_state_of_one_where_all_was() -> None:
    tale = Tale().say("A1").say("B1", "A2").tick(3).say("A2").tick(1)
    well = Tale().say("A1").say("A2")
    well.raw(b"bad").raw(b"bad")  # offsets do not matter to the state, only messages do
    well.say("B1", "A2")
    assert len(tale.kernel.dump()[b"g"]) == len(well.kernel.dump()[b"g"])


def test_a_tick_neither_reads_nor_writes_the_state_of_groups_where_nothing_is_due() -> None:
    tale = Tale().say("A1").say("B1", "A2")
    later = Holdback()
    unreadable = {f"idle {number}".encode(): b"\x01not a state" for number in range(1_000)}
    later.load(tale.kernel.dump() | unreadable)
    later.receive(TICK, None, 0, 10, 1_000)
    assert later.own == []
    later.receive(TICK, None, 0, 11, 2_500)
    assert [one.key for one in later.own] == [b"g"]
    blobs = later.dump()
    assert {key: blobs[key] for key in unreadable} == unreadable


def test_every_gap_can_be_seen_with_who_waits_for_it_and_how_often_it_was_asked_for() -> None:
    tale = Tale().say("B1", "A2").say("C1", "A2").say("C2", "C1").tick(3).tick(3).say("D2", "D1")
    kernel = Holdback()
    kernel.load(tale.kernel.dump())
    for one in (tale.kernel, kernel):
        gaps = [(gap.sender, gap.first, gap.last, gap.asked, gap.since_ms, gap.waited) for gap in one.gaps("g")]
        assert gaps == [
            ("A", 2, 2, 2, 0, [("B", 0, 1), ("C", 0, 1)]),
            ("D", 1, 1, 0, 6_050, [("D", 0, 2)]),
        ]


def test_looking_changes_nothing() -> None:
    blobs = dict(Tale().say("B1", "A2").kernel.dump())
    looked, plain = Holdback(), Holdback()
    for kernel in (looked, plain):
        kernel.load(blobs)
    assert list(looked.held())
    assert list(looked.gaps())
    for kernel in (looked, plain):
        kernel.receive(TICK, None, 0, 5, 10_000)
    assert looked.own == plain.own
    assert len(plain.own) == 1
    assert looked.dump() == plain.dump()


# ── invalid control records ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("record", "code"),
    [
        ({"kind": "abandon", "ids": [["A", 0, 1, 1]]}, "late"),
        ({"kind": "abandon", "ids": [["A", 0, 1, 10**9]]}, "seq_jump"),
        ({"kind": "abandon", "ids": [["X", 0, 5, 10**15]]}, "seq_jump"),
        ({"kind": "abandon", "ids": [["A", 0, 3, 2]]}, "malformed"),
        ({"kind": "evict", "member": ["A", 0], "cut": 10**9}, "seq_jump"),
        ({"kind": "evict", "member": ["X", 0], "cut": 0}, "unknown_member"),
        ({"kind": "leave", "sender": "A", "last": 10**9}, "seq_jump"),
        ({"kind": "join", "sender": "J", "epoch": 1}, "fenced"),
        ({"kind": "join", "sender": "J", "epoch": 2, "time": 1}, "bad_stamp"),
        ({"kind": "create", "options": {"give_up_ms": 1}}, "bad_stamp"),
    ],
)
def test_a_control_record_that_asks_too_much_is_refused_and_leaves_no_trace(record: dict[str, Any], code: str) -> None:
    tale = Tale().say("A1").take(kind="join", sender="J", epoch=2)
    before = dict(tale.kernel.dump())
    tale.take(**record)
    assert [one.split()[0] for one in tale.dead] == [code]
    assert tale.out == []
    assert tale.kernel.dump() == before
