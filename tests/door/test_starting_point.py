"""Where the order query begins, by what checkpoint, token, horizon and log say."""

from __future__ import annotations

from typing import Any

import pytest

from precede.streaming.job.starting_point import Position, StartingPoint, find
from precede.streaming.settings import Settings
from precede.udfs.errors import Refused

WHOLE = {0: (0, 100), 1: (0, 100)}
CUT = {0: (40, 100), 1: (0, 100)}


def position(**more: Any) -> Position:
    known: dict[str, Any] = {"reached": None, "token": {}, "horizon": {}, "ends": WHOLE}
    return Position(**(known | more))


def start(records: bool = True, settings: Settings | None = None, **more: Any) -> StartingPoint:
    return find(settings or Settings(), position(**more), lambda *_: records)


def test_a_new_stream_begins_with_the_log() -> None:
    assert start() == StartingPoint()


def test_without_a_horizon_the_whole_log_is_read_again() -> None:
    assert start(token={0: 50, 1: 20}) == StartingPoint()


def test_a_fresh_checkpoint_begins_at_the_horizon_and_where_there_is_none_at_the_beginning() -> None:
    assert start(token={0: 50, 1: 20}, horizon={0: 40}, ends=CUT) == StartingPoint({0: 40, 1: 0})


def test_a_checkpoint_behind_the_token_goes_on() -> None:
    assert start(reached={0: 40, 1: 7}, token={0: 90, 1: 20}, horizon={0: 80, 1: 20}, ends=CUT) == StartingPoint()


def test_a_checkpoint_that_the_log_has_left_behind_is_set_aside() -> None:
    found = start(reached={0: 39, 1: 7}, token={0: 90, 1: 20}, horizon={0: 80, 1: 20}, ends=CUT)
    assert found.offsets == {0: 80, 1: 20}
    assert found.set_aside == "it is at offset 39 of partition 0, and the raw topic precede.raw now begins at 40"


def test_a_checkpoint_from_before_its_own_restore_is_set_aside() -> None:
    found = start(reached={0: 50, 1: 7}, token={0: 50, 1: 20}, horizon={0: 50, 1: 20}, lacks_state=True)
    assert found == StartingPoint({0: 50, 1: 20}, "it is older than state that was restored into it")


@pytest.mark.parametrize("horizon", [{}, {0: 50}])
def test_the_mark_of_a_transaction_does_not_put_a_checkpoint_ahead_of_the_token(horizon: dict[int, int]) -> None:
    assert start(records=False, reached={0: 51}, token={0: 50}, horizon=horizon) == StartingPoint()


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (
            {"reached": {0: 60}, "token": {0: 50}},
            "The checkpoint checkpoints/ is ahead of the stream: in partition 0 it is at offset 60, .* below 50 is ",
        ),
        (
            {"token": {0: 50}, "horizon": {0: 39}, "ends": CUT},
            "no longer reaches back to the horizon: its partition 0 begins at offset 40, .*covers what is below 39",
        ),
        ({"ends": CUT}, r"is gone \(partition 0 starts at offset 40\), so a fresh start would count positions"),
        (
            {"ends": CUT, "token": {0: 50}},
            r"is gone, and the positions in .* are counted from it .* set accept_cut_log and choose a new",
        ),
        (
            {"reached": {0: 30}, "token": {0: 35}, "ends": CUT},
            "has lost messages that were not ordered yet: its partition 0 begins at offset 40, .* is at 30",
        ),
        (
            {"reached": {0: 30}, "token": {0: 60}, "horizon": {0: 35}, "ends": CUT},
            "cannot be continued, because it is at offset 30 of partition 0, .*precede.state does not cover what",
        ),
        ({"reached": {0: 101}, "token": {0: 101}}, "has lost its end: its partition 0 ends at offset 100"),
    ],
)
def test_where_no_start_would_be_right_it_is_refused(more: dict[str, Any], sentence: str) -> None:
    with pytest.raises(Refused, match=sentence):
        start(**more)


@pytest.mark.parametrize("horizon", [{}, {0: 39}])
def test_the_engine_process_is_not_sent_to_a_checkpoint_or_tables_that_it_does_not_have(
    horizon: dict[int, int],
) -> None:
    with pytest.raises(Refused) as refused:
        start(settings=Settings(engine="process"), token={0: 50}, horizon=horizon, ends=CUT)
    said = str(refused.value)
    assert said.endswith(
        "; set accept_cut_log and choose a new ordered_topic and dead_letter_topic, where positions start over."
    )
    with pytest.raises(
        Refused, match="start with the old checkpoint, or set accept_cut_log and choose .* delta folder"
    ):
        start(token={0: 50}, horizon=horizon, ends=CUT)


def test_accept_cut_log_is_for_logs_without_any_horizon() -> None:
    settings = Settings(accept_cut_log=True)
    assert start(settings=settings, ends=CUT) == StartingPoint()
    with pytest.raises(Refused, match="and the positions in precede.ordered are counted from it"):
        start(settings=settings, ends=CUT, token={0: 50})
    never_ordered = start(settings=settings, ends=CUT, token={1: 50}, horizon={1: 50})
    assert never_ordered == StartingPoint({0: 40, 1: 50})
    with pytest.raises(Refused, match="no longer reaches back to the horizon"):
        start(settings=settings, ends=CUT, token={0: 50}, horizon={0: 39})
