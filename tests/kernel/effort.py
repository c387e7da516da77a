"""The effort of the random tests: the same cases on every run, or more and different ones on request.

`make test-kernel` must be short and give the same verdict each time. PRECEDE_EXPLORE=20 in the environment makes every
random test twenty times as long and draws different cases each time.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, settings

EXPLORE = int(os.environ.get("PRECEDE_EXPLORE", "0"))


def effort(examples: int) -> Callable[[Any], Any]:
    """The settings of a hypothesis test with this many examples."""
    return settings(
        max_examples=examples * max(EXPLORE, 1),
        derandomize=not EXPLORE,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
    )


def seeds(count: int) -> range:
    """The seeds of a test that draws its own cases."""
    first = time.time_ns() // 1_000_000 if EXPLORE else 0
    return range(first, first + count * max(EXPLORE, 1))
