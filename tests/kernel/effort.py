"""How hard the random tests look: the same cases on every run, more and other ones when asked.

`make test-kernel` must not take long, and give the same verdict each time. PRECEDE_EXPLORE=20 in the environment makes
every random test twenty times as long and draws other cases each time.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, settings

EXPLORE = int(os.environ.get("PRECEDE_EXPLORE", "0"))


def effort(examples: int) -> Callable[[Any], Any]:
    """Settings of one hypothesis test that looks at so many examples."""
    return settings(
        max_examples=examples * max(EXPLORE, 1),
        derandomize=not EXPLORE,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
    )


def seeds(count: int) -> range:
    """The seeds of a test that draws its cases itself."""
    first = time.time_ns() // 1_000_000 if EXPLORE else 0
    return range(first, first + count * max(EXPLORE, 1))
