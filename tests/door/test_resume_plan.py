"""How a member resumes, decided from what was read: tables of facts and of what follows from them."""

from __future__ import annotations

from typing import Any

import pytest

from precede.ingest.follower_token import FollowerToken, read_token
from precede.ingest.sender_state import KnownSender
from precede.member.resume_plan import (
    Found,
    History,
    JoinPlan,
    Reading,
    StartPlan,
    awaits_admission,
    needs_new_epoch,
    plan_join,
    plan_reading,
)
from precede.udfs.member.knowledge import Knowledge
from precede.udfs.peers.views import IN, OUT
from precede.udfs.records.messages import EPOCH_MAX, LogRecord


def found(position: int, **fields: Any) -> Found:
    """A record of partition 1, at ten times the offset of its position."""
    record = LogRecord(b"", b"g", 1, 10 * position, 0)
    return record, {"position": position, "status": "delivered", **fields}


def planned(
    *positions: int, history: History = "all", last: int | None = None, resumes: bool = False
) -> tuple[StartPlan, list[int]]:
    """A plan with these records added, and the positions that it skipped."""
    plan = StartPlan(Reading({0: 5, 1: 0}, last, resumes), history, "bob")
    skipped = [fields["position"] for at in positions for _, fields in plan.add(found(at))]
    return plan, skipped


def test_reading_begins_at_the_kept_offsets_unless_the_application_names_a_position() -> None:
    last = [("g", None, 3), ("g", "bob", 4), ("g", "eli", 9)]
    kept = FollowerToken(v=1, topic="t", offsets={1: 40, 2: 7}, last=last)
    assert plan_reading({0: 2, 1: 1}, kept, None, "bob") == Reading({0: 2, 1: 40}, 4, resumes=True)
    assert plan_reading({0: 2, 1: 1}, kept, 7, "bob") == Reading({0: 2, 1: 1}, 7, resumes=False)
    assert plan_reading({0: 2, 1: 1}, None, None, "bob") == Reading({0: 2, 1: 1}, None, resumes=False)


@pytest.mark.parametrize(
    ("given", "skipped", "position", "offset"),
    [
        ({}, [], 0, 0),
        ({"history": "none"}, [1, 2, 3], 3, 31),
        ({"history": 0}, [1, 2, 3], 3, 31),
        ({"history": 2}, [1], 1, 11),
        ({"history": 9}, [], 0, 0),
        ({"last": 2}, [1, 2], 2, 21),
        ({"last": 2, "history": "none"}, [1, 2], 2, 21),
        ({"last": 9}, [1, 2, 3], 3, 31),
    ],
)
def test_what_is_not_handed_over_decides_the_place(
    given: dict[str, Any], skipped: list[int], position: int, offset: int
) -> None:
    plan, skipped_now = planned(1, 2, 3, **given)
    start = plan.start(has_delta=False)
    assert skipped_now == skipped
    assert (start.position, start.offsets, start.from_delta) == (position, {0: 5, 1: offset}, None)


def test_records_for_another_destination_change_nothing() -> None:
    plan = StartPlan(Reading({1: 0}, None, resumes=False), "none", "bob")
    assert plan.add(found(1, destination="eli")) == []
    assert not plan.topic_has_records
    assert plan.add(found(1, destination="bob")) != []
    assert plan.start(has_delta=False).offsets == {1: 11}


@pytest.mark.parametrize(
    ("given", "position", "from_delta"),
    [
        ({}, 0, (1, 8)),
        ({"history": "none"}, 8, (9, 8)),
        ({"history": 3}, 5, (6, 8)),
        ({"last": 6}, 6, (7, 8)),
        ({"last": 6, "resumes": True, "history": 1}, 6, (7, 8)),
    ],
)
def test_where_the_topic_has_nothing_delta_hands_over_what_is_due(
    given: dict[str, Any], position: int, from_delta: tuple[int, int]
) -> None:
    plan, _ = planned(**given)
    start = plan.start(has_delta=True, delta_last=8)
    assert (start.position, start.from_delta) == (position, from_delta)
    assert plan.start(has_delta=False).from_delta is None


@pytest.mark.parametrize(("history", "position"), [("all", 0), (1, 6), (3, 4), (9, 0), ("none", 7)])
def test_the_last_messages_may_lie_before_the_first_record_of_the_topic(history: History, position: int) -> None:
    plan, _ = planned(6, 7, history=history)
    start = plan.start(has_delta=True)
    assert (start.position, start.from_delta) == (position, None)


def test_a_newcomer_learns_from_delta_who_came_before_the_topic_begins() -> None:
    assert planned(6)[0].lacks_beginning
    assert planned()[0].lacks_beginning
    assert not planned(1, 2)[0].lacks_beginning
    assert not planned(6, last=5, resumes=True)[0].lacks_beginning


def test_the_token_of_a_start_is_what_a_follower_resumes_from() -> None:
    plan, _ = planned(1, 2, last=1)
    token = plan.start(has_delta=False).token("t", "g", "bob")
    assert read_token(token.text()) == FollowerToken(
        v=2, topic="t", offsets={0: 5, 1: 11}, group="g", last=[("g", None, 1), ("g", "bob", 1)]
    )


@pytest.mark.parametrize(
    ("known", "standing", "is_new", "seq_in_log", "needed"),
    [
        ({"epoch": 2, "seq": 4}, None, False, 4, False),
        ({"epoch": 2, "seq": 4}, (2, IN), False, 0, False),
        ({"epoch": 2, "seq": 4}, (2, OUT), False, 0, True),
        ({"epoch": 2, "seq": 4}, (3, IN), False, 0, True),
        ({"epoch": 2, "seq": 4}, None, False, 5, True),
        ({"epoch": EPOCH_MAX + 1}, None, False, 0, True),
        ({}, None, True, 0, True),
    ],
)
def test_an_epoch_that_has_ended_or_that_the_file_is_behind_of_is_not_used_again(
    known: dict[str, Any], standing: Any, is_new: bool, seq_in_log: int, needed: bool
) -> None:
    knowledge = Knowledge()
    if standing is not None:
        knowledge.view["bob"] = standing
    sender = KnownSender("log", "g", "bob", **known)
    assert needs_new_epoch(sender, knowledge, is_new=is_new, seq_in_log=seq_in_log) is needed


@pytest.mark.parametrize(
    ("closed", "by_clocks", "keys", "joined", "is_in", "why_forged", "plan"),
    [
        (False, False, {}, False, False, None, JoinPlan("none")),
        (True, False, {}, False, False, None, JoinPlan("join")),
        (False, True, {}, False, False, None, JoinPlan("join")),
        (True, False, {}, True, False, None, JoinPlan("none")),
        (True, False, {}, False, True, None, JoinPlan("none")),
        (False, False, {"ann": [(0, "K")]}, False, False, None, JoinPlan("join", brings_key=True)),
        (False, False, {"bob": [(0, "K")]}, False, False, None, JoinPlan("none")),
        (True, False, {"ann": [(0, "K")]}, False, False, "no key", JoinPlan("only listen")),
        (True, True, {"ann": [(0, "K")]}, False, True, "no key", JoinPlan("refuse")),
        (False, False, {"bob": [(0, "K")]}, False, False, "no key", JoinPlan("none")),
    ],
)
def test_a_member_joins_where_its_group_expects_it(
    closed: bool, by_clocks: bool, keys: Any, joined: bool, is_in: bool, why_forged: str | None, plan: JoinPlan
) -> None:
    knowledge = Knowledge()
    knowledge.closed, knowledge.keys = closed, keys
    if is_in:
        knowledge.view["bob"] = (0, IN)
    known = KnownSender("log", "g", "bob", joined=joined)
    assert plan_join(known, knowledge, by_clocks=by_clocks, public_key="K", why_forged=why_forged) == plan


def test_only_in_a_closed_group_with_keys_a_newcomer_waits_to_be_admitted() -> None:
    knowledge = Knowledge()
    for knowledge.has_keys, knowledge.closed in ((False, True), (True, False)):
        assert not awaits_admission(knowledge, "bob")
    knowledge.has_keys = knowledge.closed = True
    assert awaits_admission(knowledge, "bob")
    knowledge.keys["bob"] = [(0, "K")]
    assert not awaits_admission(knowledge, "bob")
