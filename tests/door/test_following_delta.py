"""`precede.follow(delta=...)` on a topic in memory whose beginning is gone, and tables that have it."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from precede.ingest.follower_token import read_token
from precede.reading import from_delta
from precede.reading.following import Follower
from precede.reading.from_delta import FilledFromDelta
from precede.reading.ordered_topic import OrderedTopic
from precede.udfs.errors import Hole, Refused
from tests.door.test_delta_history import write
from tests.door.test_following import Topic, ordered


class CutTopic(Topic):
    """A topic whose first records retention has deleted."""

    def __init__(self, *partitions: list[bytes | None], first: int) -> None:
        super().__init__(*partitions)
        self.first = first

    def starts(self, topic: str, *, at_end: bool, timeout_s: float) -> dict[int, int]:
        return {number: len(one) if at_end else self.first for number, one in enumerate(self.partitions)}


def released(position: int, group: str, *, by: int, destination: str | None = None) -> bytes:
    """An ordered record that the raw record at offset `by` released."""
    fields: dict[str, Any] = json.loads(ordered(position, group=group, destination=destination))
    return json.dumps(fields | {"released_offset": by}).encode()


def followed(topic: Topic, root: Path, *, group: str | None = None, token: str | None = None) -> Follower:
    place = None if token is None else read_token(token)
    source = OrderedTopic(topic, topic="t", group=group, token=place)
    return Follower(FilledFromDelta(source, root, group), patience_s=0.02)


def places(follower: Follower) -> list[tuple[str, int]]:
    return [(delivery.group, delivery.position) for delivery in follower]


# Groups g and h; of h nothing is left in the topic. One tick, at offset 5, released for both.
LOG = [
    released(1, "g", by=1),
    released(1, "h", by=2),
    released(2, "g", by=5),
    released(3, "g", by=5),
    released(2, "h", by=5),
    released(4, "g", by=7),
    released(5, "g", by=8),
]
IN_ORDER = [(one["group"], one["position"]) for one in map(json.loads, LOG)]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write(tmp_path, *LOG[3:6])
    write(tmp_path, *LOG[:3])
    return tmp_path


def topic() -> CutTopic:
    return CutTopic([None, None, *LOG[5:]], first=2)


def test_delta_has_what_the_topic_has_lost_and_each_position_comes_once(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(from_delta, "WIDTH", 2)
    assert places(followed(topic(), root)) == IN_ORDER
    assert places(followed(topic(), root, group="g")) == [place for place in IN_ORDER if place[0] == "g"]
    assert places(followed(topic(), root, group="h")) == [("h", 1), ("h", 2)]


@pytest.mark.parametrize("group", ["g", "h"])
def test_a_follower_of_one_group_goes_on_from_any_token_without_repeating(root: Path, group: str) -> None:
    whole = [place for place in IN_ORDER if place[0] == group]
    for stop in range(len(whole) + 1):
        first = followed(topic(), root, group=group)
        seen = [(delivery.group, delivery.position) for delivery in islice(first, stop)]
        assert seen + places(followed(topic(), root, group=group, token=first.token)) == whole


def test_a_follower_of_all_groups_goes_on_from_any_token_and_loses_nothing(root: Path) -> None:
    for stop in range(len(IN_ORDER) + 1):
        first = followed(topic(), root)
        seen = [next(first) for _ in range(stop)]
        rest = places(followed(topic(), root, token=first.token))
        again = [(one.group, one.position) for one in seen if (one.group, one.position) in rest]
        assert again in ([], [("g", 4)]), "only what Delta and the topic both have may come again"
        assert sorted({*rest, *((one.group, one.position) for one in seen)}) == sorted(IN_ORDER)


def test_a_token_of_catching_up_says_how_far_delta_is_read_and_nothing_of_the_topic(root: Path) -> None:
    follower = followed(topic(), root)
    for _ in range(3):
        next(follower)
    assert json.loads(follower.token) == {"topic": "t", "v": 2, "topic_id": "one", "from_delta": {"0": [5, "g", 2]}}


def test_a_hole_in_the_topic_is_filled_and_one_in_both_is_raised(tmp_path: Path) -> None:
    write(tmp_path, *(ordered(position) for position in (1, 2, 3)))
    gapped = Topic([ordered(1), ordered(4), ordered(6)])
    follower = followed(gapped, tmp_path)
    assert [next(follower).position for _ in range(2)] == [1, 2]
    token = follower.token
    assert [next(follower).position for _ in range(2)] == [3, 4]
    with pytest.raises(Hole, match="position 5 is missing"):
        next(follower)
    assert next(follower).position == 6
    again = followed(gapped, tmp_path, token=token)
    assert [next(again).position for _ in range(2)] == [3, 4]


def test_delta_is_not_looked_at_where_the_topic_has_everything(tmp_path: Path) -> None:
    assert places(followed(Topic([ordered(1)]), tmp_path / "absent")) == [("g", 1)]
    with pytest.raises(Refused, match="There is no Delta table"):
        next(followed(topic(), tmp_path / "absent"))


def test_destinations_have_positions_of_their_own_in_delta_too(tmp_path: Path) -> None:
    sent = [released(n, "p", by=3, destination=name) for name in ("ann", "bob") for n in (1, 2)]
    write(tmp_path, *reversed(sent))
    cut = CutTopic([None, released(3, "p", by=4, destination="ann")], first=1)
    first = followed(cut, tmp_path)
    seen = [next(first) for _ in range(3)]
    again = followed(cut, tmp_path, token=first.token)
    assert [(one.destination, one.position) for one in [*seen, *again]] == [
        ("ann", 1), ("ann", 2), ("bob", 1), ("bob", 2), ("ann", 3),
    ]  # fmt: skip
