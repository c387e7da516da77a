"""Times in the words that a person says."""

import pytest

from precede.inspect.answer import ago, ahead, lasting, times


@pytest.mark.parametrize(
    ("ms", "said"),
    [
        (0, "less than 1 ms"),
        (-5, "less than 1 ms"),
        (20, "20 ms"),
        (12_000, "12 s"),
        (119_000, "119 s"),
        (180_000, "3 minutes"),
        (7_199_000, "120 minutes"),
        (7_200_000, "2 hours"),
        (172_800_000, "2 days"),
    ],
)
def test_a_duration_has_the_unit_that_fits(ms: int, said: str) -> None:
    assert lasting(ms) == said


def test_a_moment_is_named_from_now_and_by_its_date_where_it_is_long_ago() -> None:
    now_ms = 1_790_000_000_000
    assert ago(now_ms - 180_000, now_ms) == "3 minutes ago"
    assert ago(now_ms + 50, now_ms) == "just now", "the broker's clock may be ahead"
    assert ago(now_ms - 40 * 86_400_000, now_ms) == "on 2026-08-12 14:13:20 UTC"
    assert ahead(now_ms + 840_000, now_ms) == "in 14 minutes"
    assert ahead(now_ms - 1, now_ms) == "with the next tick"
    assert [times(count) for count in (1, 2, 3)] == ["once", "twice", "3 times"]
