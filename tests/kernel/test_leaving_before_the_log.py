"""Peers that leave before the log has all that they said: their next start hands it to a gateway."""

from __future__ import annotations

import pytest

from tests.kernel.gateways import with_full_gateway
from tests.kernel.segments import GROUP


@pytest.mark.parametrize("order", ["fifo", "causal", "lamport"])
@pytest.mark.parametrize("again", ["stays away", "joins again"])
def test_what_the_log_lacks_of_a_peer_that_has_left_comes_from_its_next_start(order: str, again: str) -> None:
    one, _, said = with_full_gateway(order)
    assert one.peer("ann").owed(GROUP)
    one.segments[0].leave("ann")
    one.run(1_000)
    for _ in "12":  # one start finds the log still away
        one.peer("ann").due(one.now_ms)
        state = one.peer("ann").dump()
        one.segments[0].medium.crash("ann")
        one.segments[0].start("ann", state=state)
        one.run(500)
    one.log.is_away = False
    if again == "joins again":
        one.segments[0].join("ann")
        one.until(lambda: one.peer("ann").groups[GROUP].own_join.joined, 60_000)
        said.append(one.say("ann", "back"))
    one.until(lambda: one.log.delivered(GROUP) == said, 60_000)
    one.until(lambda: one.peer("ann").owed(GROUP) == [])
    assert bool(one.peer("ann").dump()["groups"]) is (again == "joins again"), "it keeps a left group no longer"
