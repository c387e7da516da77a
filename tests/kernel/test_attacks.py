"""Every attack of the protocols' table, and some more: its result, and that it affects no other sender."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from typing import Any

import pytest

from precede.udfs.engine import abandon as giving_up
from precede.udfs.engine.senders import SenderRuns
from precede.udfs.limits import Limits
from precede.udfs.orders import ORDERS
from tests.kernel.feeding import Outcome, Taken, Tale, feed, parsed
from tests.signing import public

Fields = dict[str, Any]


def honest(order: str) -> list[Fields]:
    """A and B answer each other in turn, stamped for the order; every member receives everything."""
    members = {name: ORDERS[order].stamps_of(name) for name in "AB"}
    said: list[Fields] = []
    for at in range(6):
        after = [(said[-1]["sender"], 0, said[-1]["seq"])] if said else []
        record = {"group": "g", **members["AB"[at % 2]].stamp(after=after, clock_ms=10 * at)}
        said.append(record)
        for member in members.values():
            member.observe(record)
    return said


def run(order: str, attack: list[Fields]) -> tuple[Outcome, Outcome]:
    """The conversation alone, and with the attack in the middle; offsets are the same in both."""
    options = {"order": order, **({"accuracy_ms": 5} if order == "two_clock" else {})}
    created = {"group": "g", "kind": "create", "options": options, "members": ["A", "B"]}
    talk = [(100 * at, one) for at, one in enumerate([created, *honest(order)])]
    talk[3], talk[4] = (talk[3][0], talk[4][1]), (talk[4][0], talk[3][1])  # one message arrives too early
    hostile = [(350 + at, {"group": "g", **one}) for at, one in enumerate(attack)]
    return feed([_taken(*one) for one in talk], order=order), feed(
        [_taken(*one) for one in sorted(talk + hostile, key=lambda one: one[0])], order=order
    )


def _taken(offset: int, record: Fields) -> Taken:
    return json.dumps(record).encode(), b"g", 0, offset, offset


def message(sender: str = "M", seq: int = 1, **stamp: Any) -> Fields:
    return {"sender": sender, "seq": seq, **stamp}


FAR = 10**9
S_B_SELF = message(after=[["M", 0, 1]])
REFUSED: dict[str, tuple[str, list[Fields], list[str]]] = {
    "duplicate id, other content": ("s_b", [message("A", 1, after=[], data="no, this")], ["equivocation"]),
    "self-parent in s_b": ("s_b", [S_B_SELF], ["self_parent"]),
    "self-parent in object": ("object", [message(to=["A"], **S_B_SELF)], ["self_parent"]),
    "own entry that is not the seq in causal": ("causal", [message("B", 4, seen=[["B", 0, 5]])], ["bad_stamp"]),
    "parent circle": (
        "s_b",
        [
            message("M", 1, after=[["M", 0, 2]]),
            message("M", 2, after=[["M", 0, 3]]),
            message("M", 3, after=[["M", 0, 1]]),
        ],
        ["cycle", "cycle", "cycle"],
    ),
    "seq jump in s_b": ("s_b", [message(seq=FAR, after=[])], ["seq_jump"]),
    "seq jump in causal": ("causal", [message("B", FAR, seen=[["B", 0, FAR]])], ["seq_jump"]),
    "seq jump in lamport": ("lamport", [message("B", FAR, time=5)], ["seq_jump"]),
    "vector entry absurdly high": ("causal", [message(seen=[["M", 0, 1], ["A", 0, FAR]])], ["clock_poison"]),
    "linear time absurdly high": ("lamport", [message("B", 4, time=FAR)], ["clock_poison"]),
    "linear time beyond 64 bits": ("lamport", [message("B", 4, time=2**64)], ["clock_poison"]),
    "promise absurdly high": ("lamport", [{"kind": "heartbeat", **message("B", 4, time=FAR)}], ["clock_poison"]),
    "promise below any clock": ("lamport", [{"kind": "heartbeat", **message("B", 9, time=-(2**70))}], ["bad_stamp"]),
    "join at a time absurdly high": ("lamport", [{"kind": "join", "sender": "M", "time": FAR}], ["clock_poison"]),
    "physical time of no clock": ("two_clock", [message("B", 4, time=9, clock_ms=2**70)], ["bad_stamp"]),
    "more than twenty parents": ("object", [message(after=[["A", 0, 1]] * 21)], ["malformed"]),
    "vector of more than ten thousand": ("causal", [message(seen=[["M", 0, 1]] * 10_001)], ["malformed"]),
    "payload too large": ("s_b", [message(after=[], data="x" * 600_000)], ["oversize"]),
    "billion ids given up": ("s_b", [{"kind": "abandon", "ids": [["A", 0, 4, FAR]]}], ["seq_jump"]),
    "ids given up to the last there is": ("s_b", [{"kind": "abandon", "ids": [["M", 0, 1, 2**53 - 1]]}], ["seq_jump"]),
    "delivered ids given up": ("s_b", [{"kind": "abandon", "ids": [["A", 0, 1, 1]]}], ["late"]),
    "cut past the end": ("s_b", [{"kind": "evict", "member": ["A", 0], "cut": FAR}], ["seq_jump"]),
    "last seq past the end": ("s_b", [{"kind": "leave", "sender": "A", "last": FAR}], ["seq_jump"]),
    "evicting nobody": ("s_b", [{"kind": "evict", "member": ["M", 0], "cut": 0}], ["unknown_member"]),
    "joining as who is in": ("s_b", [{"kind": "join", "sender": "A"}], ["bad_stamp"]),
    "creating once more": ("s_b", [{"kind": "create", "options": {"order": "total"}}], ["bad_stamp"]),
    "heartbeat of an outsider": ("lamport", [{"kind": "heartbeat", **message(time=1)}], ["not_member"]),
    "forged positions": ("s_b", [message(after=[], position=1)], ["malformed"]),
}


@pytest.mark.parametrize("attack", REFUSED)
def test_what_is_refused_leaves_everybody_s_output_as_if_it_had_not_come(attack: str) -> None:
    order, records, codes = REFUSED[attack]
    alone, attacked = run(order, records)
    assert len(alone.ordered) >= 3
    assert [one["code"] for one in parsed(attacked.dead)] == codes
    assert attacked.ordered == alone.ordered
    assert attacked.held == alone.held


HELD: dict[str, tuple[str, list[Fields]]] = {
    "parent that never arrives": ("s_b", [message(after=[["Z", 0, 1]]), message("M", 2, after=[["M", 0, 1]])]),
    "parent of another group": ("s_b", [message(after=[["somebody elsewhere", 0, 7]])]),
    "vector entry of somebody unknown": ("causal", [message(seen=[["M", 0, 1], ["Z", 0, 1]])]),
    "circle of dependencies": (
        "object",
        [message("M", 1, after=[["M", 0, 2]]), message("M", 2, after=[["M", 0, 1]])],
    ),
    "circle of vectors": (
        "causal",
        [message(epoch=epoch, seen=[["M", epoch, 1], ["M", 1 - epoch, 1]]) for epoch in (0, 1)],
    ),
    "circle of sent tables": (
        "causal_p2p",
        [message(epoch=epoch, to=["A"], seen=[["M", epoch, 1]], sent={"A": [["M", 1 - epoch, 1]]}) for epoch in (0, 1)],
    ),
    "outsider of a group by clocks": ("lamport", [message(time=1)]),
}


@pytest.mark.parametrize("attack", HELD)
def test_what_is_held_for_ever_holds_nobody_else(attack: str) -> None:
    order, records = HELD[attack]
    alone, attacked = run(order, records)
    assert attacked.dead == []
    assert attacked.ordered == alone.ordered
    assert [one for one in attacked.held if one.sender != "M"] == alone.held
    assert sum(1 for one in attacked.held if one.sender == "M") == len(records)


def test_an_exact_copy_is_dropped_and_counted_and_nothing_else() -> None:
    first = honest("s_b")[0]
    alone, attacked = run("s_b", [{name: first[name] for name in first}] * 3)
    assert (attacked.ordered, attacked.dead, attacked.duplicates) == (alone.ordered, [], 3)


def test_linear_time_that_does_not_rise_hurts_its_sender_alone_and_is_no_reason_to_evict() -> None:
    tale = Tale().take(kind="create", options={"order": "lamport"}, members=["A", "B"])
    tale.take(sender="A", seq=1, time=5).take(sender="A", seq=2, time=5)
    assert tale.dead == ["clock_regression A2"]
    assert tale.take(sender="B", seq=1, time=7).out == ["A1"]
    assert tale.take(sender="A", seq=2, time=8).out == ["B1", "A2"]


def test_what_comes_below_what_is_delivered_is_late_and_never_delivered_out_of_order() -> None:
    tale = Tale("lamport").take(sender="A", seq=1, time=9)
    assert (tale.out, tale.take(sender="B", seq=1, time=3).dead) == (["A1"], ["late B1"])


def test_no_clock_runs_past_what_a_snapshot_holds_whatever_window_a_group_chose() -> None:
    tale = Tale().take(kind="create", options={"order": "lamport", "window": 2**53 - 1}, members=["A"])
    assert tale.take(sender="A", seq=1, time=2**53 - 1).out == ["A1"]
    assert tale.take(sender="A", seq=2, time=2**53).dead == ["clock_poison A2"]
    assert tale.take(kind="join", sender="B", time=2**53).dead == ["clock_poison"]
    assert tale.kernel.dump()


def test_a_physical_clock_far_off_moves_its_own_messages_and_nobody_else_s() -> None:
    for shown in (-(10**12), 10**12):
        tale = Tale().take(kind="create", options={"order": "two_clock", "accuracy_ms": 5}, members=["A", "B", "M"])
        tale.take(sender="M", seq=1, time=1, clock_ms=shown)
        tale.take(kind="heartbeat", sender="M", seq=2, time=50, clock_ms=shown)
        tale.take(sender="A", seq=1, time=2, clock_ms=100)
        assert tale.take(sender="B", seq=1, time=3, clock_ms=110).out[:1] == ["A1"]


def test_an_outsider_of_a_closed_group_is_held_and_given_up_on_is_no_member() -> None:
    tale = Tale().take(kind="create", options={"closed": True}, members=["A"]).say("M1")
    assert tale.say("A1").out == ["A1"]
    assert tale.take(kind="abandon", ids=[["M", 0, 1, 1]]).dead == ["not_member M1"]


@pytest.mark.parametrize("order", ORDERS)
def test_what_an_old_key_said_ahead_of_the_epoch_of_a_new_one_is_forged_when_that_begins(order: str) -> None:
    def said(epoch: int, data: str, by: str) -> Fields:
        id_ = ["A", epoch, 1]
        clocks = {"seen": [id_], "time": 1, "clock_ms": 1}
        return {
            "sender": "A",
            "epoch": epoch,
            "seq": 1,
            "after": [],
            "to": ["A"],
            "sent": {},
            "data": data,
            "by": by,
            **clocks,
        }

    keys = {"A": public("stolen"), "precede": public("service")}
    tale = Tale().take(kind="create", options={"order": order, "closed": True, "keys": keys}, members=["A"])
    for epoch in (1, 2):
        tale.take(**said(epoch, "the thief", "stolen"))
        assert (tale.out, tale.dead) == ([], [])
    tale.restart().take(kind="join", sender="A", epoch=1, key=public("new"), by="service")
    assert [code.split()[0] for code in tale.dead] == ["forged", "forged"]
    assert list(tale.restart().kernel.held()) == []
    tale.take(**said(1, "A itself", "new"))
    assert [one["data"] for one in parsed(tale.kernel.ordered)] == ["A itself"]


# ── what one record may cost ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("order", ["s_b", "total", "fifo"])
def test_seqs_with_a_gap_after_each_are_stopped_at_the_limit_of_runs(order: str) -> None:
    tale = Tale(order, Limits(runs_max=50, held_max=50))
    codes = [code for at in range(1, 200) for code in tale.say(f"M{2 * at}").dead]
    assert len(codes) == 199 - 50
    assert {code.split()[0] for code in codes} == {"backpressure"}
    assert tale.say("A1").out == ["A1"]


def test_ids_taken_by_refusals_with_a_gap_after_each_are_stopped_there_too() -> None:
    tale = Tale(limits=Limits(runs_max=50))
    codes = [tale.say(f"M{2 * at}", f"M{2 * at}").dead[0].split()[0] for at in range(1, 101)]
    assert codes == ["self_parent"] * 50 + ["backpressure"] * 50
    assert tale.say("M101", "M101").dead == ["self_parent M101"]  # it is next to one that is there
    assert tale.say("M300", "Z1").dead == ["backpressure M300"]  # if held, it might have to be refused
    assert tale.say("M1").out == ["M1"]
    assert tale.say("A1", "M2").dead == ["orphan A1"]


def test_of_too_many_runs_of_given_up_ids_the_first_is_forgotten_and_what_comes_under_it_counts_as_a_copy() -> None:
    tale = Tale("total", Limits(runs_max=3))
    for at in range(1, 9, 2):
        tale.say(f"M{at}").take(kind="abandon", ids=[["M", 0, at + 1, at + 1]])
    assert tale.say("M4").dead == ["late M4"]
    assert (tale.say("M2").dead, tale.kernel.duplicates) == ([], 1)


def test_stand_ins_that_wait_their_turn_take_the_room_there_is_and_no_more() -> None:
    tale = Tale("fifo", Limits(held_max=3, window=100)).say("M9")
    assert tale.take(kind="abandon", ids=[["M", 0, 4, 5]]).dead == []
    assert tale.take(kind="abandon", ids=[["M", 0, 7, 7]]).dead == ["backpressure"]
    assert tale.take(kind="abandon", ids=[["M", 0, 9, 9]]).dead == [
        "abandoned M9"
    ]  # it takes the place of the message it abandons
    assert tale.take(kind="abandon", ids=[["M", 0, 1, 3]]).out == ["(M1)", "(M2)", "(M3)", "(M4)", "(M5)"]
    assert tale.take(kind="abandon", ids=[["M", 0, 7, 7]]).dead == []


def seconds(tale: Tale, records: list[bytes], *, key: bytes | None = b"") -> float:
    began = time.process_time()
    for record in records:
        tale.raw(record, key=key)
    return time.process_time() - began


def test_one_record_of_many_names_is_refused_in_one_walk() -> None:
    names = ",".join(f'"{number:x}":1' for number in range(45_000))
    assert (
        seconds(Tale(), [f'{{"group":"g","sender":"a","seq":1,{names},"1":1}}'.encode()]) < 2
    )  # quadratic: half a minute


def test_giving_up_what_is_given_up_or_refused_already_costs_nothing_however_wide_the_range() -> None:
    again = json.dumps({"group": "g", "kind": "abandon", "ids": [["M", 0, 2, 100_000]]}).encode()
    waiting = Tale("fifo").raw(again)
    assert seconds(waiting, [again] * 300) < 1  # checking each id: ten seconds
    assert waiting.dead == ["late"]
    refused = Tale()
    for seq in range(2, 20_000):
        refused.say(f"M{seq}", f"M{seq}")
    late = json.dumps({"group": "g", "kind": "abandon", "ids": [["M", 0, 2, 19_999]]}).encode()
    assert seconds(refused, [late] * 300) < 1
    assert refused.dead == ["late"]


def test_an_abandon_for_which_there_is_no_room_is_refused_without_a_look_at_each_id() -> None:
    full = Tale("fifo").raw(b'{"group":"g","kind":"abandon","ids":[["M",0,2,100000],["N",0,2,100000]]}')
    many = {"group": "g", "kind": "abandon", "ids": [[f"s{number}", 0, 2, 100_000] for number in range(10)]}
    assert seconds(full, [json.dumps(many).encode()] * 300) < 1  # checking each id: 40 seconds
    assert full.dead == ["backpressure"]
    assert full.take(kind="abandon", ids=[["s0", 0, 2, 4]]).dead == ["backpressure"]
    assert full.take(kind="abandon", ids=[["s0", 0, 2, 3]]).dead == [], "two places are left"


def test_an_abandon_that_names_the_same_ids_again_and_again_is_refused_without_a_look_at_all_of_them() -> None:
    tale = Tale("total")
    for seq in range(1, 20_000, 2):
        tale.say(f"M{seq}")
    again = {"group": "g", "kind": "abandon", "ids": [["M", 0, 2, 19_998]] * 25_000}
    assert seconds(tale, [json.dumps(again, separators=(",", ":")).encode()]) < 3  # checking each: two minutes
    assert tale.dead == ["seq_jump"]


def test_what_one_record_gives_up_fits_into_memory_however_long_the_names_are(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "\x01" * 255  # six bytes each, as JSON writes it
    wide = [[name, epoch, 1, 100_000] for epoch in range(10)]
    assert Tale("total", group=name).take(kind="abandon", ids=wide).dead == ["seq_jump"]
    monkeypatch.setattr(giving_up, "ABANDONED_BYTES_MAX", 1024 * 1024)
    tale = Tale("fifo", group=name).take(sender=name, seq=1_000).tick(6).tick(1_000)
    written = 0
    while given_up := [one.value for one in tale.kernel.own if one.topic == "raw"]:
        assert tale.raw(given_up[0]).dead == []
        written += len(tale.kernel.ordered)
        assert sum(map(len, tale.kernel.ordered)) < 2 * 1024 * 1024
        tale.tick(1_000)
    assert written == 1_000, "the job requests no more at once, and so it finishes"


@pytest.mark.parametrize("seed", range(20))
def test_the_room_that_stand_ins_need_is_what_a_count_one_by_one_finds(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(50):
        limits = Limits(held_max=chance.randint(1, 12), window=60)
        tale = Tale("fifo", limits)
        for _ in range(chance.randint(0, 8)):
            tale.say(f"{chance.choice('AB')}{chance.randint(1, 20)}")
        ids: list[tuple[str, int, int]] = []
        for _ in range(chance.randint(1, 3)):
            first = chance.randint(1, 20)
            ids.append((chance.choice("AB"), first, first + chance.randint(0, 8)))
        group = tale.kernel._group(b"g", 0)
        senders, room, before = group.senders, limits.held_max - len(group.held), set(group.held)
        seqs = {(name, seq) for name, first, last in ids for seq in range(first, last + 1)}
        reach = {name: _reach(senders.get(name), {seq for who, seq in seqs if who == name}) for name in "AB"}
        waiting = {one for one in seqs if one[1] > reach[one[0]] and not _is_settled(senders.get(one[0]), one[1])}
        needed = sum(1 for name, seq in waiting if (name, 0, seq) not in before)
        tale.take(kind="abandon", ids=[[name, 0, first, last] for name, first, last in ids])
        assert (tale.dead == ["backpressure"]) == (needed > 0 and needed > room)


def _reach(sender: SenderRuns | None, given_up: set[int]) -> int:
    """The seq up to which everything is settled once these are abandoned."""
    seq = 0
    while seq + 1 in given_up or _is_settled(sender, seq + 1):
        seq += 1
    return seq


def _is_settled(sender: SenderRuns | None, seq: int) -> bool:
    return sender is not None and seq in sender


@pytest.mark.parametrize("step", [1, -1])
def test_a_copy_costs_the_same_however_many_digests_there_are(step: int) -> None:
    tale = Tale("total").take(kind="create", options={"order": "total", "digests": 100_000})
    seqs = range(1, 30_001)[::step]
    for seq in seqs:
        tale.say(f"M{seq}")
    copy = json.dumps({"group": "g", "sender": "M", "seq": seqs[-1], "after": []}).encode()
    assert seconds(tale, [copy] * 1_000) < 0.4  # a walk through the digests: a second
    assert tale.kernel.duplicates == 1_000


@pytest.mark.parametrize("order", ["s_b", "fifo"])
def test_a_tick_on_which_nothing_is_due_does_not_look_at_what_is_held(order: str) -> None:
    tale = Tale(order)
    for seq in range(2, 20_001):
        tale.say(f"M{seq}", f"M{seq - 1}")
    tale.waited_ms = -10 * tale.offset  # too young to be due
    assert seconds(tale, [b'{"kind":"tick"}'] * 300, key=None) < 0.3  # checking each: two seconds
    assert len(tale.say("M1").out) == 20_000


@pytest.mark.parametrize(("order", "count"), [("causal", 3_000), ("causal_p2p", 1_000)])
def test_a_stamp_that_names_one_sender_again_and_again_costs_a_tick_one_walk(order: str, count: int) -> None:
    tale = Tale(order)
    again = [["A", 0, count + 1]] * count
    for number in range(3):
        own = ["M", number, 1]
        stamp = {"seen": [own, *again]} if order == "causal" else {"seen": [own], "to": ["B"], "sent": {"B": again}}
        tale.take(sender="M", epoch=number, seq=1, **stamp)
    for seq in range(2, count + 1):
        tale.take(sender="A", seq=seq, seen=[["A", 0, seq], ["Z", 0, 1]], to=["B"], sent={"B": [["Z", 0, 1]]})
    assert seconds(tale.wait(3_600), [b'{"kind":"tick"}'] * 2, key=None) < 1  # a walk for each: several
    assert tale.kernel.held_growth == count + 2


def test_a_long_way_from_message_to_message_to_the_one_who_is_waited_for_costs_a_tick_one_look_at_each() -> None:
    names = [f"M{number:04}" for number in range(800)]
    options = {"order": "two_clock", "accuracy_ms": 1}
    tale = Tale().take(kind="create", options=options, members=["S", *names])
    tale.take(kind="heartbeat", sender="S", seq=1, time=1, clock_ms=10_002)
    for number in reversed(range(800)):  # each waits for its predecessor, and only the first for S
        tale.take(sender=names[number], seq=1, time=10 + number, clock_ms=10_000 - 2 * number)
        tale.take(kind="heartbeat", sender=names[number], seq=2, time=50_000, clock_ms=20_000)
    assert seconds(tale.wait(3_600), [b'{"kind":"tick"}'], key=None) < 0.3  # checking all from each: seconds
    group = tale.kernel._group(b"g", 0)
    assert group.release.silent(group.held[names[-1], 0, 1], 20) == ["S"]


@pytest.mark.parametrize("order", ["s_b", "lamport"])
def test_a_join_that_ends_many_epochs_looks_once_at_what_each_has_held(order: str) -> None:
    tale = Tale().take(kind="create", options={"order": order, "closed": True}, members=["A"])
    for epoch in range(1, 5_001):
        tale.take(sender="M", epoch=epoch, seq=5_000, after=[], time=1)
        if order == "s_b":
            tale.take(sender="A", seq=epoch, after=[["M", epoch, 5_000]])
    join = b'{"group":"g","kind":"join","sender":"M","epoch":6000}'
    assert seconds(tale, [join]) < 0.5  # checking all held messages for each epoch: seconds
    assert Counter(code.split()[0] for code in tale.dead) == {"fenced": 5_000}


def test_putting_somebody_out_looks_at_nobody_else_s_held_messages() -> None:
    tale = Tale()
    for seq in range(1, 30_001):
        tale.say(f"A{seq}", "Z1")
    churn = []
    for number in range(300):
        churn.append({"group": "g", "sender": f"m{number}", "seq": 1, "after": [["Z", 0, 1]]})
        churn.append({"group": "g", "kind": "evict", "member": [f"m{number}", 0], "cut": 0})
    assert seconds(tale, [json.dumps(one).encode() for one in churn]) < 1  # checking all held messages: several
    assert len(tale.say("Z1").out) == 30_001
