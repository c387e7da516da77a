"""Every history of at most four messages, in every arrival order, cut everywhere; `make test-exhaustive` takes five."""

from __future__ import annotations

import pytest

from tests.kernel import small_scope

MESSAGES_MAX = 4
HISTORIES = {"s_b": 395, "fifo": 23, "total": 23}
"""The number of stories: forests for s_b, sequences of senders if nothing else counts, pasts for the others."""


@pytest.mark.parametrize("order", small_scope.UNDER)
def test_every_small_history_in_every_arrival_order_and_cut_keeps_the_promise_of_its_order(order: str) -> None:
    checked = [small_scope.check(order, messages) for messages in range(1, MESSAGES_MAX + 1)]
    assert sum(count for count, _ in checked) == HISTORIES.get(order, 218)
