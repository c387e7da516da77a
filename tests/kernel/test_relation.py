"""What each order puts before what: counted efficiently, and again by checking every pair."""

from __future__ import annotations

from itertools import permutations
from random import Random
from typing import Any

import pytest

from precede.udfs.limits import Limits
from precede.udfs.orders import ORDERS
from precede.udfs.orders.relation import ByNamedIds, BySentStamp, Relation
from precede.udfs.records.messages import Message, Options
from precede.udfs.records.wire import encode_message, read
from tests.kernel.effort import seeds
from tests.simulation import NEEDS, converse


def message(name: str, **stamp: Any) -> Message:
    """A message by its short name."""
    record = read(encode_message("g", name[0], 0, int(name[1:]), **stamp), Limits())
    assert isinstance(record, Message)
    return record


def ids(*names: str) -> list[Any]:
    return [(name[0], 0, int(name[1:])) for name in names]


def chat() -> list[Message]:
    """The chat of "S_b", section II, in order of arrival (vector CNT-1)."""
    return [
        message("A1", after=ids("C1"), seen=ids("A1", "C2"), time=3, clock_ms=7_000),
        message("C1", after=[], seen=ids("C1"), time=1, clock_ms=1_000),
        message("B1", after=ids("C2"), seen=ids("B1", "C2"), time=3, clock_ms=8_000),
        message("C2", after=[], seen=ids("C2"), time=2, clock_ms=4_000),
    ]


@pytest.mark.parametrize(("order", "pairs", "sequences"), [("s_b", 2, 6), ("causal", 5, 2), ("total", 6, 1)])
def test_vector_cnt_1_ordered_pairs_and_linear_extensions_of_the_chat(order: str, pairs: int, sequences: int) -> None:
    relation = ORDERS[order].relation(chat(), Options())
    assert (relation.pairs().found, relation.sequences()) == (pairs, sequences)


@pytest.mark.parametrize("order", NEEDS)
def test_the_pairs_of_an_order_are_those_of_the_true_history(order: str) -> None:
    for seed in seeds(60):
        history = converse(Random(seed), order, messages=Random(seed).randint(1, 25))
        records = [read(said.value, Limits()) for said in history.said.values()]
        Random(seed).shuffle(records)
        found = ORDERS[order].relation(records, Options()).pairs().found  # type: ignore[arg-type]
        expected = sum(len(NEEDS[order](history, id_)) - 1 for id_ in history.said)
        if order == "total":  # nothing is required, yet all is in one sequence
            expected = len(records) * (len(records) - 1) // 2
        assert found == expected, seed


@pytest.mark.parametrize("order", ORDERS)
def test_counting_pairs_and_looking_at_each_message_agree(order: str) -> None:
    for seed in seeds(60):
        random = Random(seed)
        history = converse(random, order, messages=random.randint(0, 14), peers=random.randint(1, 5))
        records: list[Any] = [read(said.value, Limits()) for said in history.said.values()]
        options = Options(accuracy_ms=random.randint(0, 20), delay_min_ms=random.choice([0, 5, 60]))
        relation = ORDERS[order].relation(records, options)
        assert relation.pairs().found == sum(one.bit_count() for one in relation.before())


@pytest.mark.parametrize("order", ORDERS)
def test_the_sequences_told_are_all_that_keep_the_order(order: str) -> None:
    for seed in seeds(15):
        history = converse(Random(seed), order, messages=6, peers=3)
        records: list[Any] = [read(said.value, Limits()) for said in history.said.values()]
        relation = ORDERS[order].relation(records, Options(accuracy_ms=2))
        before = relation.before()
        kept = sum(
            all(not before[one] & ~sum(1 << other for other in sequence[:at]) for at, one in enumerate(sequence))
            for sequence in permutations(range(len(records)))
        )
        assert relation.sequences() == kept


def test_what_is_not_among_the_messages_is_passed_over_and_a_sender_s_gap_is_bridged_where_turns_are_kept() -> None:
    messages = [message("A1", seen=ids("A1")), message("A5", seen=ids("A5")), message("B1", seen=ids("B1", "A4"))]
    assert ORDERS["fifo"].relation(messages, Options()).pairs().found == 1
    assert ORDERS["causal"].relation(messages, Options()).pairs().found == 2


def test_what_stands_on_a_circle_or_behind_it_is_in_no_order() -> None:
    messages = [message("A1", after=ids("B1")), message("B1", after=ids("A1")), message("C1", after=ids("B1"))]
    messages += [message("D1", after=[]), message("D2", after=ids("D1"))]
    assert ORDERS["object"].relation(messages, Options()).pairs().found == 1


def test_of_many_messages_some_are_counted_and_stand_for_all() -> None:
    chain = [message(f"A{seq}") for seq in range(1, 401)]
    relation = ByNamedIds(chain, lambda _: [], in_turn=True)
    exact = relation.pairs()
    assert exact == (400 * 399 // 2, 1)
    relation.exact_max = 50
    estimated = relation.pairs()
    assert estimated.every == 8
    assert abs(estimated.found - exact.found) < 0.03 * exact.found


def test_of_many_messages_to_some_members_some_are_counted_too() -> None:
    chain = [
        message(f"A{seq}", to=["B"], seen=ids(f"A{seq}"), sent={"B": ids(f"A{seq - 1}")} if seq > 1 else {})
        for seq in range(1, 401)
    ]
    relation = BySentStamp(chain)
    assert relation.pairs() == (400 * 399 // 2, 1)
    relation.exact_pairs_max = 20_000
    estimated = relation.pairs()
    assert estimated.every == 8
    assert abs(estimated.found - 400 * 399 // 2) < 0.03 * 400 * 399 // 2


def test_a_long_chain_costs_neither_stack_nor_a_square_of_memory() -> None:
    chain = [message("A1", after=[]), *(message(f"A{seq}", after=ids(f"A{seq - 1}")) for seq in range(2, 20_001))]
    pairs = ORDERS["s_b"].relation(chain, Options()).pairs()
    assert pairs.every == 5
    assert abs(pairs.found - 20_000 * 19_999 // 2) < 0.01 * pairs.found


def test_two_clocks_relate_by_either_clock_and_one_source_by_its_seqs() -> None:
    def pairs(margin_by: int, *stamps: tuple[str, int, int]) -> int:
        messages = [message(name, time=time, clock_ms=clock) for name, time, clock in stamps]
        options = Options(accuracy_ms=1, delay_min_ms=margin_by)
        return ORDERS["two_clock"].relation(messages, options).pairs().found

    assert pairs(0, ("A1", 1, 102), ("B1", 2, 100)) == 1  # accuracy 1: a clock may be 2 later than what follows it
    assert pairs(0, ("A1", 1, 103), ("B1", 2, 100)) == 0
    assert pairs(5, ("A1", 1, 100), ("A2", 2, 101), ("A3", 3, 99)) == 3  # within one source, however close
    assert pairs(0, ("A1", 1, 0), ("B1", 1, 9)) == 0


def test_every_order_relates_no_messages_to_nothing() -> None:
    for order in ORDERS.values():
        assert isinstance(order.relation([], Options()), Relation)
        assert order.relation([], Options()).pairs().found == 0
