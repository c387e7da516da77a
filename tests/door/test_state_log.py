"""Which states are written when, and how far the state topic covers the log."""

import pytest

from precede.streaming.monitoring.status import StatusLine
from precede.streaming.order.sink import Coverage
from precede.streaming.settings import Settings
from precede.udfs.state_log import StateLog, StateSettings

SETTINGS = StateSettings(topic="t", stream="s", every_ms=10_000)


def groups_of(records: list[tuple[bytes, bytes | None]]) -> list[bytes]:
    return [key for key, _ in records]


def take(log: StateLog, next_offset: int, now_ms: int) -> list[bytes]:
    return groups_of(log.take_due(0, next_offset, now_ms, lambda key: b"state of " + key, {}))


def test_a_change_is_written_once_its_time_of_the_log_has_passed() -> None:
    log = StateLog(SETTINGS)
    log.changed(b"a", 0, (5, 1_000))
    log.changed(b"b", 0, (6, 2_000))
    assert take(log, 10, 10_999) == []
    assert take(log, 11, 11_000) == [b'["a",0]']
    assert take(log, 12, 12_000) == [b'["b",0]']
    assert take(log, 13, 99_000) == []


def test_the_first_change_counts_until_the_state_is_written() -> None:
    log = StateLog(SETTINGS)
    log.changed(b"a", 0, (5, 1_000))
    log.changed(b"a", 0, (9, 9_000))
    assert log.uncovered() == {0: 5}
    assert take(log, 11, 11_000) == [b'["a",0]']
    assert log.uncovered() == {}
    log.changed(b"a", 0, (12, 12_000))
    assert log.uncovered() == {0: 12}


def test_each_partition_has_its_own_time_and_its_own_limit() -> None:
    log = StateLog(SETTINGS)
    log.changed(b"a", 0, (5, 1_000))
    log.changed(b"b", 1, (7, 1_000))
    assert take(log, 10, 11_000) == [b'["a",0]']
    assert log.uncovered() == {1: 7}


def test_what_is_not_written_yet_survives_a_restart() -> None:
    log = StateLog(SETTINGS)
    log.changed(b"a", 0, (5, 1_000))
    again = StateLog(SETTINGS, log.dump())
    assert again.uncovered() == {0: 5}
    assert take(again, 10, 11_000) == [b'["a",0]']


def test_no_state_is_written_that_stands_below_what_the_topic_covers_already() -> None:
    log = StateLog(StateSettings(topic="t", stream="s", every_ms=0, written_from={0: 100}))
    log.changed(b"a", 0, (5, 1_000))
    assert take(log, 99, 99_000) == []
    assert log.uncovered() == {0: 5}
    assert take(log, 100, 99_000) == [b'["a",0]']


def test_a_large_backlog_of_states_is_written_in_several_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("precede.udfs.state_log.STEP_BYTES_MAX", 100)
    log = StateLog(SETTINGS)
    for number in range(10):
        log.changed(b"%d" % number, 0, (number, 0))
    steps = [take(log, 10, 99_000) for _ in range(10)]
    assert [record for step in steps for record in step] == [b'["%d",0]' % number for number in range(10)]
    assert 1 < len([step for step in steps if step]) <= 10


def test_the_horizon_waits_for_every_shard_after_a_start() -> None:
    coverage = Coverage({0: 50}, 2, is_fresh=False)
    coverage.report(0, {})
    assert coverage.moved({0: 100}) == {}
    coverage.report(1, {})
    assert coverage.moved({0: 100}) == {0: 100}


def test_the_horizon_stays_below_the_first_change_that_is_not_in_the_topic() -> None:
    coverage = Coverage({}, 2, is_fresh=True)
    coverage.report(0, {0: 70})
    coverage.report(1, {0: 80, 1: 5})
    assert coverage.moved({0: 100, 1: 100}) == {0: 70, 1: 5}
    coverage.report(0, {})
    assert coverage.moved({0: 100}) == {0: 80}


def test_the_horizon_never_goes_back_nor_past_what_is_processed() -> None:
    coverage = Coverage({0: 50}, 1, is_fresh=True)
    assert coverage.moved({0: 40}) == {}
    coverage.commit(coverage.moved({0: 60}))
    coverage.report(0, {0: 55})
    assert coverage.moved({0: 90}) == {}
    assert coverage.published == {0: 60}


@pytest.mark.parametrize(("tick_s", "told"), [(0.0, True), (1.0, False)])
def test_without_ticks_the_status_line_says_that_changed_states_wait(tick_s: float, told: bool) -> None:
    coverage = Coverage({}, 1, is_fresh=True)
    status = StatusLine(Settings(tick_s=tick_s))
    assert "states wait" not in status.line("now")
    coverage.report(0, {0: 55})
    status.lacks_states = coverage.lacks_states
    assert ("states wait" in status.line("now")) == told
