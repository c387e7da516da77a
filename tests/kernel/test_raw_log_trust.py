"""A member trusts a raw record exactly if the kernel will accept it."""

from __future__ import annotations

import json

import pytest

from precede.udfs.member.speaker import Speaker
from precede.udfs.records.signatures import sign
from tests.kernel.feeding import Tale, parsed
from tests.signing import private, public, publics


@pytest.mark.parametrize("order", ["lamport", "two_clock"])
@pytest.mark.parametrize("named", [("ann",), ("ann", "precede")])
@pytest.mark.parametrize("name", ["ann", "cem", "precede"])
@pytest.mark.parametrize("by", ["ann", "cem", "precede"])
def test_a_join_is_believed_and_its_key_counts_exactly_where_the_kernel_takes_its_signature(
    order: str, named: tuple[str, ...], name: str, by: str
) -> None:
    tale, speaker = Tale(), Speaker("g", "ann", order=order)
    tale.take(kind="create", options={"order": order, "keys": publics(*named)}, members=["ann"])
    speaker.knowledge.learn(parsed(tale.kernel.ordered)[0])
    fields = {"group": "g", "kind": "join", "sender": name, "epoch": 1, "time": 5, "key": public("new")}
    join = sign(json.dumps(fields).encode(), private(by))
    is_taken = tale.raw(join).out == ["join"]
    assert is_taken or tale.dead == ["forged"]
    speaker.hear(join)
    assert (speaker._highest_time == 5) == is_taken
    assert (speaker.knowledge.key_of(name, 1) == public("new")) == is_taken
