"""Jobs of some partitions, without Kafka: what the setting means, ids that never collide, and checkpoints."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import msgspec
import pytest

from precede.ingest.kafka.topics import Topic
from precede.ingest.progress import transactional_id
from precede.streaming import settings
from precede.streaming.job.starting_point import find, fresh
from precede.streaming.raw_partitions import as_text, named, owned
from precede.streaming.settings import Settings
from precede.streaming.spark import checkpoint
from precede.udfs.errors import Refused


@pytest.mark.parametrize(
    ("text", "partitions", "short"),
    [
        ("0-3,7", [0, 1, 2, 3, 7], "0-3,7"),
        ("5", [5], "5"),
        ("3,1,2,1-2", [1, 2, 3], "1-3"),
        ("0,2,4", [0, 2, 4], "0,2,4"),
    ],
)
def test_the_setting_names_partitions_and_ranges(text: str, partitions: list[int], short: str) -> None:
    assert named(text) == partitions
    assert as_text(partitions) == short


@pytest.mark.parametrize("text", ["", "a", "3-1", "1,", ",1", "1--2", "-1", "1 2", "0-", "123456", "0;1"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(Refused, match=r"The setting raw_partitions is .*, but must be .* such as 0-3,7\."):
        settings.load({"raw_partitions": text}, {})


def test_without_the_setting_a_job_orders_all_partitions() -> None:
    assert list(owned(None, "raw", 3)) == [0, 1, 2]
    assert owned("1-2", "raw", 3) == [1, 2]


def test_a_partition_that_the_raw_topic_does_not_have_is_refused() -> None:
    with pytest.raises(Refused, match=r"raw_partitions is 2-4, but the raw topic raw has 4 partitions, .* last is 3\."):
        owned("2-4", "raw", 4)


def test_history_alone_is_always_of_all_partitions() -> None:
    with pytest.raises(Refused, match="With only = history nothing is ordered"):
        settings.load({"raw_partitions": "0", "only": "history"}, {})
    assert settings.load({"raw_partitions": "0", "only": "order"}, {}).raw_partitions == "0"


def test_jobs_have_one_transactional_id_only_if_they_have_the_same_partitions() -> None:
    """Else a start would fence a job with which it shares nothing."""
    sets = [some for size in range(1, 5) for some in combinations(range(4), size)]
    sets += [tuple(range(0, 900, 2)), tuple(range(1, 900, 2))]
    ids = [transactional_id("a", None if some == (0, 1, 2, 3) else as_text(some)) for some in sets]
    assert len(set(ids)) == len(ids)
    assert max(map(len, ids)) < 250
    assert transactional_id("a", "0") not in {transactional_id(name) for name in ("a", "a.0", "a-0", "a:0"[:-2])}


def topics(found: Settings, partitions: int = 4) -> dict[str, Topic]:
    names = [found.raw_topic, found.ordered_topic, found.dead_letter_topic, found.progress_topic, found.control_topic]
    return {name: Topic(name, f"id of {name}", partitions) for name in names}


@pytest.mark.parametrize(
    ("before", "now", "sentence"),
    [
        ("0-1", "0", "is of the partitions 0-1 of precede.raw, and this job orders the partitions 0; take a new "),
        (None, "0", "is of all partitions of precede.raw, and this job orders the partitions 0"),
        ("0-2", None, "is of the partitions 0-2 of precede.raw, and this job orders all partitions"),
    ],
)
def test_a_checkpoint_of_other_partitions_is_refused(before: str | None, now: str | None, sentence: str) -> None:
    kept = checkpoint.order_part(Settings(raw_partitions=before), None, topics(Settings()))
    with pytest.raises(Refused, match=sentence):
        checkpoint.order_part(Settings(raw_partitions=now), kept, topics(Settings()))


@pytest.mark.parametrize(("before", "now"), [("0-1", "1,0"), ("0-3", None), (None, "3,0-2")])
def test_the_same_partitions_in_other_words_are_the_same(before: str | None, now: str | None) -> None:
    kept = checkpoint.order_part(Settings(raw_partitions=before), None, topics(Settings()))
    found = msgspec.json.decode(msgspec.json.encode(kept), type=checkpoint.OrderPart)
    assert checkpoint.order_part(Settings(raw_partitions=now), found, topics(Settings())) == kept


@pytest.mark.parametrize(
    ("more", "offsets"),
    [
        ({"horizon": {0: 40, 1: 30}, "token": {0: 50, 1: 40}}, {1: 30, 2: 0}),  # what others have does not count
        ({"horizon": {0: 40}, "token": {0: 50}}, None),
    ],
)
def test_a_job_begins_by_its_own_partitions_alone(more: dict[str, Any], offsets: dict[int, int] | None) -> None:
    ends = {1: (0, 100), 2: (0, 100)}
    assert find(Settings(), fresh(Settings(), more["token"], more["horizon"], ends)).offsets == offsets
