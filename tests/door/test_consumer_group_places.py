"""Where a consumer group goes on in a partition, decided from literal offsets."""

from __future__ import annotations

from typing import Literal

import pytest

from precede.ingest.kafka.log_readers import GroupPlace, place_in
from precede.udfs.errors import Refused


@pytest.mark.parametrize(
    ("committed", "start", "place"),
    [
        (None, "beginning", GroupPlace(5, is_first=True)),
        (None, "end", GroupPlace(9, is_first=True)),
        (5, "end", GroupPlace(5, is_first=False)),
        (7, "beginning", GroupPlace(7, is_first=False)),
        (9, "beginning", GroupPlace(9, is_first=False)),
    ],
)
def test_a_group_goes_on_at_its_place_and_else_begins_where_it_is_told(
    committed: int | None, start: Literal["beginning", "end"], place: GroupPlace
) -> None:
    assert place_in("t", 2, "readers", committed, (5, 9), start) == place


@pytest.mark.parametrize(
    ("committed", "why"), [(4, "the retention has deleted what lies between"), (10, "the topic has lost its end")]
)
def test_a_place_that_is_gone_is_refused_with_the_way_out(committed: int, why: str) -> None:
    with pytest.raises(
        Refused, match=f"stands at offset {committed} of partition 2 of t.*5 to 9: {why}.*--to-earliest"
    ):
        place_in("t", 2, "readers", committed, (5, 9), "beginning")
