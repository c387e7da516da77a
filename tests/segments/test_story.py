"""Peers as processes on one segment, through what networks and machines do to them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.segments.story import Plan, play

SURVIVORS = {"ann", "bob", "cem", "eve", "fay", "gus", "ivy", "joe"}


@pytest.mark.timeout(120)
def test_without_a_log_a_cut_heals_and_all_who_survive_have_the_same(tmp_path: Path) -> None:
    outcome = play(tmp_path, Plan("causal", talk_s=12, has_log=False))
    assert set(outcome.survivors) == SURVIVORS
