"""Peers, gateways, broker and job as processes on two segments, through what networks and machines do to them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.segments.story import Plan, play


@pytest.mark.timeout(240)
def test_all_who_survive_have_what_the_log_has_in_a_lawful_order(tmp_path: Path) -> None:
    outcome = play(tmp_path, Plan("causal", talk_s=20))
    assert {"ann", "eve", "ivy", "joe"} <= set(outcome.survivors)
    assert not {"dan", "hal"} & set(outcome.survivors)
