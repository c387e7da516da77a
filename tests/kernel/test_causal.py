"""`causal` (lecture notes, 2.1: BSS): one test per claim, every vector, and the traps of the rule."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest

from precede.udfs.orders.causal import Causal
from tests.kernel.feeding import Tale, parsed
from tests.kernel.histories import vectors


def say(tale: Tale, name: str, **seen: int) -> list[str]:
    """Feed a message by its short name, with its vector: `say(tale, "b1", a=1, b=1)`."""
    sender, seq = name.rstrip("0123456789"), int(name.lstrip("abcdefghijklmnopqrstuvwxyzABC"))
    return tale.take(sender=sender, seq=seq, seen=[[who, 0, count] for who, count in seen.items()]).out


@pytest.mark.parametrize("vector", vectors("bss"), ids=lambda vector: vector["id"])
def test_every_vector_of_bss_is_delivered_as_it_says(vector: dict[str, Any]) -> None:
    kernel = Tale("causal")
    ids: dict[str, str] = {}
    for step in vector["steps"]:
        given = step["in"]
        sender = str(given["src"])
        seen = [[name, 0, seq] for name, seq in given["V"].items()]
        seq = given["V"][sender]
        ids[f"{sender}:{seq}"] = given["mid"]
        tale = kernel.take(sender=sender, seq=seq, seen=seen)
        delivered = [f"{one['sender']}:{one['seq']}" for one in parsed(tale.kernel.ordered)]
        assert [ids[name] for name in delivered] == step["deliver"]


def test_2_1_a_message_waits_for_all_its_sender_had_delivered_when_it_spoke() -> None:
    tale = Tale("causal")
    assert say(tale, "b1", a=1, b=1) == []
    assert tale.held == {"b1": ["a1"]}
    assert say(tale, "c1", c=1) == ["c1"]  # concurrent
    assert say(tale, "a1", a=1) == ["a1", "b1"]


def test_2_1_fifo_channels_are_not_needed_for_each_sender_s_own_order_is_kept() -> None:
    for arrival in permutations([1, 2, 3]):
        tale = Tale("causal")
        assert [name for seq in arrival for name in say(tale, f"a{seq}", a=seq)] == ["a1", "a2", "a3"]


def test_among_messages_ready_together_the_lowest_offset_goes_first() -> None:
    tale = Tale("causal")
    say(tale, "c1", c=1, a=1)
    say(tale, "b1", b=1, a=1)
    assert say(tale, "a1", a=1) == ["a1", "c1", "b1"]


def test_of_everything_held_the_missing_ids_are_named_and_not_those_held_in_between() -> None:
    tale = Tale("causal")
    say(tale, "b1", a=2, b=1)
    say(tale, "a2", a=2)
    assert tale.held == {"b1": ["a1"], "a2": ["a1"]}


def test_with_loss_only_what_causally_follows_waits_and_giving_up_lets_it_go() -> None:
    tale = Tale("causal")
    say(tale, "a2", a=2)
    say(tale, "b1", a=2, b=1)
    assert say(tale, "c1", c=1) == ["c1"]
    assert tale.take(kind="abandon", ids=[["a", 0, 1, 1]]).out == ["(a1)", "a2", "b1"]
    assert say(tale, "a1", a=1) == []
    assert tale.dead == ["late a1"]


def test_an_abandoned_message_takes_its_turn_so_that_no_clock_jumps() -> None:
    # A rule that jumped the clock to forgive a loss delivered b4 before b2.
    tale = Tale("causal")
    say(tale, "b4", b=4)
    assert tale.take(kind="abandon", ids=[["b", 0, 3, 3]]).out == []
    say(tale, "b2", b=2)
    assert say(tale, "b1", b=1) == ["b1", "b2", "(b3)", "b4"]


@pytest.mark.parametrize(
    ("seen", "code"),
    [
        (None, "missing_stamp"),
        ([], "bad_stamp"),
        ([["a", 0, 2]], "bad_stamp"),
        ([["a", 1, 1]], "bad_stamp"),
        ([["a", 0, 1], ["a", 0, 1]], "bad_stamp"),
        ([["a", 0, 1], ["b", 0, 100_001]], "clock_poison"),
        ([["a", 0, 1.0]], "malformed"),
    ],
)
def test_a_vector_that_is_missing_wrong_or_poisoned_hurts_its_own_message_and_leaves_no_trace(
    seen: list[Any] | None, code: str
) -> None:
    stamp: dict[str, Any] = {} if seen is None else {"seen": seen}
    tale = Tale("causal").take(sender="a", seq=1, **stamp)
    assert [one.split()[0] for one in tale.dead] == [code]
    assert say(tale, "a1", a=1) == ["a1"]
    assert say(tale, "b1", b=1) == ["b1"]


def test_an_entry_of_somebody_unknown_is_waited_for_and_makes_nobody_a_member() -> None:
    tale = Tale("causal")
    say(tale, "a1", a=1, z=1)
    assert tale.held == {"a1": ["z1"]}
    assert say(tale, "b1", b=1) == ["b1"]


# ── the printed rule against the ruling ───────────────────────────────────────────────────────────────────────────


def test_the_printed_test_fails_for_one_s_own_message_and_a_receiver_that_is_nobody_needs_no_exception() -> None:
    def printed(vector: dict[str, int], sender: str, clock: dict[str, int]) -> bool:
        return vector[sender] == clock[sender] + 1 and all(vector[k] <= clock[k] for k in vector if k != sender)

    clock = {"a": 1, "b": 0}  # a counted its own message when it sent it
    assert not printed({"a": 1, "b": 0}, "a", clock)
    member = Causal.stamps_of("a")
    first = member.stamp()
    assert Tale("causal").take(**first).out == ["a1"]
    member.observe(first)  # it reads its own message back
    assert member.stamp()["seen"] == [["a", 0, 2]]


def test_each_entry_is_looked_at_once_however_often_its_message_is_woken() -> None:
    # 200 senders, and one message that waits for each of them in turn: a rescan would look at 20,000 entries.
    names = [f"s{number:03}" for number in range(200)]
    tale = Tale("causal").take(sender="z", seq=1, seen=[["z", 0, 1], *([name, 0, 1] for name in names)])
    (held,) = tale.kernel._groups["g"].held.values()
    for name in reversed(names):
        tale.take(sender=name, seq=1, seen=[[name, 0, 1]])
        assert held.message is not None
        assert len(held.message.seen) <= len(names) + 1  # type: ignore[arg-type]
    assert tale.out == ["s0001", "z1"]
