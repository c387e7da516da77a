"""Some cases of each kind of hostile traffic; `make test-hostile` checks 200,000, different ones each time."""

from __future__ import annotations

import pytest

from tests.kernel import hostile
from tests.kernel.effort import seeds

COUNTS = {"accidents": 20_000, "attacks": 1_000, "traces": 2_000, "growth": 60}
"""About a minute on an idle machine; `make test-hostile` is the long form."""


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", hostile.CASES)
def test_hostile_traffic_raises_nothing_and_changes_nothing_for_others(kind: str) -> None:
    case, _ = hostile.CASES[kind]
    for number in seeds(COUNTS[kind]):
        case(f"{kind} {number}")
