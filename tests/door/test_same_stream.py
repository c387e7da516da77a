"""Which rules a job may go on under."""

from __future__ import annotations

import msgspec
import pytest

from precede.ingest.kafka.topics import Topic
from precede.ingest.progress import Owner, StreamTopics, new_owner
from precede.streaming.order.same_stream import check_rules
from precede.udfs.errors import Refused
from precede.udfs.limits import Limits
from precede.udfs.rules import RULES


@pytest.mark.parametrize(
    ("rules", "again", "sentence"),
    [
        (RULES, True, None),
        (RULES, False, None),
        (RULES - 1, False, None),
        (
            RULES - 1,
            True,
            rf"under rules of version {RULES - 1}; .* start with the checkpoint that belongs to t, or take a",
        ),
        (RULES + 1, False, "run the newer one"),
        (RULES + 1, True, "run the newer one"),
    ],
)
def test_a_log_is_read_again_under_the_same_rules_only(rules: int, *, again: bool, sentence: str | None) -> None:
    owner: Owner = msgspec.structs.replace(a_record(), rules=rules)
    if sentence is None:
        check_rules("t", owner, reads_log_again=again)
        return
    with pytest.raises(Refused, match=sentence) as refused:
        check_rules("t", owner, reads_log_again=again)
    assert "same positions" not in str(refused.value)


def a_record() -> Owner:
    """Any owner record."""
    topics = StreamTopics(Topic("r", "rrr", 1), Topic("t", "ooo", 1), Topic("d", "ddd", 1), Topic("s", "sss", 1))
    return new_owner(topics, job="j", order="s_b", limits=Limits(), partitioner="murmur2")
