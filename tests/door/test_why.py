"""What `precede why` answers for each end that a message can have, from literal records of one partition."""

from typing import Any

import pytest

from precede.inspect.answer import Answer
from precede.inspect.findings import Findings, TracedKernel
from precede.inspect.why import put_together
from precede.udfs.engine.inspection import known_message
from precede.udfs.holdback import Holdback
from precede.udfs.limits import Patience
from precede.udfs.records.messages import Id, LogRecord

NOW_MS = 1_000_000
PATIENCE = Patience(ask_after_ms=2_000, give_up_ms=60_000, silent_ms=30_000)


def message(sender: str, seq: int, *after: str, **more: Any) -> dict[str, Any]:
    """A message of group g; `after` names messages as `sender:seq`."""
    ids = [[name, 0, int(number)] for name, _, number in (text.partition(":") for text in after)]
    return {"group": "g", "sender": sender, "seq": seq, "after": ids, **more}


def control(kind: str, **fields: Any) -> dict[str, Any]:
    return {"group": "g", "kind": kind, **fields}


TICK = {"kind": "tick"}


def answered(
    id_: Id, *records: tuple[int, dict[str, Any]], state_at: int = 0, order: str = "s_b", published: int = 10**9
) -> Answer:
    """The answer for a log of (seconds before now, record); `state_at` is how many of them the stored state has.

    What the log gave below that is found as in the topics.
    """
    import json

    log = [
        LogRecord(
            json.dumps(value).encode(),
            None if value.get("kind") == "tick" else b"g",
            0,
            offset,
            NOW_MS - round(before_s * 1000),
        )
        for offset, (before_s, value) in enumerate(records)
    ]
    findings = Findings("g", id_)
    earlier = Holdback(order=order, patience=PATIENCE)
    for record in log[:state_at]:
        earlier.receive(record.value, record.key, 0, record.offset, record.timestamp_ms)
    kernel = Holdback(order=order, patience=PATIENCE)
    kernel.load(earlier.dump(), {b"g": state_at})
    trace = TracedKernel(kernel, findings)
    for record in log:
        trace.receive(record)
    group = kernel.group("g")
    known = None if group is None else known_message(group, id_, PATIENCE)
    if known is None or known.standing != "held":
        for value in earlier.ordered:
            findings.take_ordered(value)
        for value in earlier.dead:
            findings.take_letter(value)
    answer = put_together(findings, known, lambda _, offset: log[offset], published=published)
    answer.looked_ms, answer.next_offset, answer.behind_job = NOW_MS, len(log), max(0, len(log) - published)
    return answer


ANN_LATE = [(200, message("bob", 1, "ann:1")), (188, message("ann", 1))]
"""Bob's answer comes 12 s before the question."""


@pytest.mark.parametrize("state_at", [0, 1, 2])
def test_a_delivered_message_tells_where_when_and_what_it_waited_for(state_at: int) -> None:
    answer = answered(("bob", 0, 1), *ANN_LATE, state_at=state_at)
    assert answer.end == "delivered"
    assert str(answer) == (
        "bob:1 in g was delivered at position 2 (partition 0, offset 0), 3 minutes ago. It had waited 12 s for ann:1."
    )
    assert [(one.position, one.released_offset, one.cause.id) for one in answer.deliveries] == [(2, 1, ("ann", 0, 1))]


def test_what_was_delivered_at_once_says_so_and_what_the_job_has_not_published_yet_too() -> None:
    assert str(answered(("ann", 0, 1), *ANN_LATE, published=1)) == (
        "ann:1 in g was delivered at position 1 (partition 0, offset 1), 3 minutes ago. It did not have to wait.\n"
        "The job has not written this to the ordered topic yet; it is 1 raw record behind."
    )


@pytest.mark.parametrize("state_at", [0, 1, 2, 3])
def test_a_held_message_tells_what_for_since_when_how_often_that_was_asked_for_and_when_it_is_given_up(
    state_at: int,
) -> None:
    log = [(12, message("bob", 1, "ann:1")), (9, TICK), (3, TICK), (1, message("eve", 1, "bob:1"))]
    answer = answered(("bob", 0, 1), *log, state_at=state_at)
    assert answer.end == "held"
    assert str(answer) == (
        "bob:1 in g has been held for 12 s (it came at partition 0, offset 0).\n"
        "It waits for ann:1.\n"
        "ann:1 has been missing for 12 s; it was asked for twice, the last time 3 s ago. "
        "If it does not come, it is given up in 48 s."
    )
    behind = answered(("eve", 0, 1), *log, state_at=state_at)
    assert (behind.end, behind.behind, behind.waits[0].missing) == ("held", ("bob", 0, 1), [("ann", 0, 1)])


def test_a_message_that_others_wait_for_is_missing_and_the_answer_names_them() -> None:
    log = [(12, message("bob", 1, "ann:1")), (11, message("chen", 1, "ann:1"))]
    answer = answered(("ann", 0, 1), *log)
    assert answer.end == "missing"
    assert str(answer) == (
        "ann:1 in g has not come.\n"
        "bob:1 and chen:1 have waited for it for 12 s; it was not asked for yet. "
        "If it does not come, it is given up in 48 s."
    )


@pytest.mark.parametrize("state_at", [0, 3])
def test_a_message_given_up_names_the_record_that_did_it_and_what_came_too_late(state_at: int) -> None:
    log = [
        (200, message("bob", 1, "ann:1")),
        (130, control("abandon", ids=[["ann", 0, 1, 1]])),
        (120, message("ann", 1)),
    ]
    answer = answered(("ann", 0, 1), *log, state_at=state_at)
    assert answer.end == "abandoned"
    assert str(answer) == (
        "ann:1 in g was given up 2 minutes ago, by an abandon record at partition 0, offset 1.\n"
        "A record without data stands in its place at position 1.\n"
        "A record with this id was refused as late; it came 2 minutes ago at partition 0, offset 2. "
        "The group has given up on this message; another record stands in its place."
    )
    assert str(answered(("bob", 0, 1), *log)).endswith("It had waited 70 s for ann:1 to be given up.")


def test_a_record_that_stands_for_an_abandoned_message_may_wait_for_its_turn() -> None:
    log = [(50, message("ann", 3)), (20, control("abandon", ids=[["ann", 0, 2, 2]]))]
    answer = answered(("ann", 0, 2), *log, order="fifo")
    assert (answer.end, answer.deliveries) == ("abandoned", [])
    assert str(answer) == (
        "ann:2 in g was given up 20 s ago, by an abandon record at partition 0, offset 1.\n"
        "The record that stands in its place still waits for its turn."
    )


@pytest.mark.parametrize("state_at", [0, 1])
def test_a_refused_message_tells_the_code_and_the_reason(state_at: int) -> None:
    answer = answered(("ann", 0, 1), (5, message("ann", 1, "ann:1")), state_at=state_at)
    assert (answer.end, [refusal.code for refusal in answer.refusals]) == ("refused", ["self_parent"])
    assert str(answer).startswith("ann:1 in g was refused as self_parent; it came 5 s ago at partition 0, offset 0. ")


def test_a_refusal_that_leaves_no_trace_is_told_together_with_what_still_waits() -> None:
    log = [(9, message("bob", 1, "ann:1")), (5, {"group": "g", "sender": "ann", "seq": 1})]
    answer = answered(("ann", 0, 1), *log)
    assert (answer.end, answer.gaps[0].waited) == ("refused", [("bob", 0, 1)])
    assert "refused as missing_stamp" in str(answer)
    assert "bob:1 has waited for it for 9 s" in str(answer)


def test_another_content_under_the_id_of_a_delivered_message_is_told_beside_it() -> None:
    answer = answered(("ann", 0, 1), (9, message("ann", 1, data=1)), (5, message("ann", 1, data=2)))
    assert answer.end == "delivered"
    assert "A record with this id was refused as equivocation; it came 5 s ago" in str(answer)


def test_an_exact_copy_is_told_beside_the_message_that_it_copies() -> None:
    answer = answered(("ann", 0, 1), (9, message("ann", 1)), (8, message("bob", 1)), (5, message("ann", 1)))
    assert [copy.offset for copy in answer.copies] == [2]
    assert str(answer).endswith("An exact copy came 5 s ago at partition 0, offset 2 and was dropped.")


def test_a_message_that_never_came_tells_how_far_its_sender_is() -> None:
    answer = answered(("ann", 0, 7), (5, message("ann", 1)))
    assert answer.end == "unseen"
    assert (
        str(answer) == "No record of ann:7 in g has come, and nothing waits for it.\nThe highest seq seen of ann is 1."
    )
    later = answered(("ann", 0, 1), (5, message("ann", 4)))
    assert str(later).endswith("Later messages of ann have come, up to seq 4.")
    assert str(answered(("eve", 0, 1), (5, message("ann", 1)))).endswith("Nothing of eve was ever accepted in g.")
    assert str(answered(("eve", 2, 1))).endswith("Nothing of the group g was ever accepted.")


def test_what_lies_above_a_fence_is_named_as_fenced_before_it_comes_and_after() -> None:
    log = [(50, message("ann", 1)), (40, control("leave", sender="ann", last=1))]
    told = "If it comes, it is refused as fenced: nothing above seq 1 of ann in epoch 0 counts any more."
    assert str(answered(("ann", 0, 2), *log)).endswith(told)
    late = answered(("ann", 0, 2), *log, (3, message("ann", 2)))
    assert (late.end, [refusal.code for refusal in late.refusals]) == ("refused", ["fenced"])


def test_in_a_closed_group_a_stranger_waits_for_its_join_until_it_is_given_up() -> None:
    log = [(50, control("create", options={"closed": True}, members=["ann"])), (40, message("eve", 1))]
    answer = answered(("eve", 0, 1), *log)
    assert answer.waits[0].joins == ["eve"]
    assert str(answer).splitlines()[1:] == [
        "It waits for eve to join: the group is closed.",
        "If nothing changes, it is given up in 20 s.",
    ]


def test_a_message_that_waits_for_a_silent_member_names_it_and_when_it_is_put_out() -> None:
    log = [
        (50, control("create", options={"order": "lamport"}, members=["ann", "bob"])),
        (12, {"group": "g", "sender": "ann", "seq": 1, "time": 5}),
    ]
    answer = answered(("ann", 0, 1), *log)
    assert [(one.sender, one.evicted_ms) for one in answer.waits[0].silent] == [("bob", NOW_MS + 18_000)]
    assert str(answer).splitlines()[1:] == [
        "It waits for a word of bob, silent for 12 s and put out of the group in 18 s if that goes on."
    ]


def test_with_destinations_each_place_is_told() -> None:
    first = {"group": "g", "sender": "ann", "seq": 1, "to": ["bob"], "seen": [["ann", 0, 1]], "sent": {}}
    second = first | {
        "seq": 2,
        "to": ["bob", "chen"],
        "seen": [["ann", 0, 2]],
        "sent": {"bob": [["ann", 0, 1]], "ann": [["ann", 0, 1]]},
    }
    answer = answered(("ann", 0, 2), (7, second), order="causal_p2p")
    assert answer.end == "held"
    assert "was delivered to chen at position 1" in str(answer)
    assert "For bob it waits for ann:1." in str(answer)
    whole = answered(("ann", 0, 2), (7, second), (5, first), order="causal_p2p")
    assert [(one.destination, one.position) for one in whole.deliveries if one.destination != "ann"] == [
        ("bob", 2),
        ("chen", 1),
    ]


def test_with_destinations_a_message_to_nobody_is_settled_without_a_place() -> None:
    told = {"group": "g", "sender": "ann", "seq": 1, "to": [], "seen": [["ann", 0, 1]], "sent": {}}
    answer = answered(("ann", 0, 1), (7, told), order="causal_p2p")
    assert (answer.end, answer.deliveries) == ("delivered", [])
    assert str(answer).startswith("ann:1 in g is settled: it was sent to no member, or ")


def test_an_answer_is_json_with_all_its_fields() -> None:
    import msgspec

    fields = msgspec.to_builtins(answered(("bob", 0, 1), *ANN_LATE))
    assert list(fields) == list(Answer.__struct_fields__)
    assert (fields["end"], fields["deliveries"][0]["cause"]["kind"]) == ("delivered", "message")
