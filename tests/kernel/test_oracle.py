"""Compares the kernel with the naive loop of oracle.py, on random logs of hostile and honest traffic."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from precede.udfs.holdback import Holdback
from tests.kernel import traffic
from tests.kernel.effort import effort, seeds
from tests.kernel.oracle_by_destination import OracleOfAll
from tests.kernel.oracle_orders import KNOWN
from tests.kernel.traffic import Log


def differences(log: Log, **place: Any) -> list[str]:
    """The first differences between the kernel and the naive loop, checked after each record."""
    kernel = Holdback(order=log.order, limits=log.limits, **place)
    oracle = OracleOfAll(order=log.order, limits=log.limits, **place)
    for record in log.records:
        kernel.receive(*record)
        oracle.receive(*record)
        held = [msgspec.to_builtins(one) for one in kernel.held()]
        found = [
            f"after offset {record.offset}, {what}:\n  kernel {mine}\n  oracle {other}"
            for what, mine, other in (
                ("ordered", kernel.ordered, oracle.ordered),
                ("ordered keys", kernel.ordered_keys, oracle.ordered_keys),
                ("dead letters", _letters(kernel.dead, oracle.dead), _sorted(oracle.dead)),
                ("keys of dead letters", sorted(map(repr, kernel.dead_keys)), sorted(map(repr, oracle.dead_keys))),
                ("duplicates", kernel.duplicates, oracle.duplicates),
                ("held", held, oracle.held()),
            )
            if mine != other
        ]
        if found:
            return found
    return []


def _letters(dead: list[bytes], expected: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The kernel's dead letters, without the sentence and without identities that the oracle does not compute."""
    letters = []
    for raw in dead:
        letter = json.loads(raw)
        assert letter.pop("reason").endswith(".")
        if letter["code"] in ("malformed", "oversize"):
            for name in ("group", "sender", "epoch", "seq"):
                del letter[name]
        letters.append(letter)
    return _sorted(letters)


def _sorted(letters: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(letters, key=lambda letter: json.dumps(letter, sort_keys=True))


def agree(log: Log, **place: Any) -> None:
    def compare(one: Log) -> list[str]:
        return differences(one, **place)

    if compare(log):
        small = traffic.smallest(log, compare)
        pytest.fail(f"{small!r}\n" + "\n".join(compare(small)))


@pytest.mark.parametrize("order", KNOWN)
def test_engine_and_naive_loop_agree_on_many_random_logs(order: str) -> None:
    for seed in seeds(400):
        agree(traffic.log(Random(f"{order} {seed}"), order))


@pytest.mark.parametrize("partitioner", ["murmur2", "crc32"])
@pytest.mark.parametrize("order", KNOWN)
def test_they_agree_where_the_key_says_the_partition(order: str, partitioner: str) -> None:
    for seed in seeds(60):
        random = Random(f"{order} {seed} {partitioner}")
        agree(traffic.log(random, order), partitions=random.randint(1, 4), partitioner=partitioner)


@pytest.mark.parametrize("order", KNOWN)
@effort(40)
@given(random=st.randoms(use_true_random=False))
def test_engine_and_naive_loop_agree_where_hypothesis_looks(order: str, random: Random) -> None:
    agree(traffic.log(random, order, length=15))
