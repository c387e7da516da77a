"""What a gateway keeps is bounded over all groups."""

from __future__ import annotations

import json
from random import Random
from time import process_time

import pytest

from precede.udfs.engine.runs import Runs
from precede.udfs.peers.events import Delivered
from precede.udfs.peers.sync_schedule import SyncSchedule
from tests.kernel.effort import seeds
from tests.kernel.gateways import World


@pytest.mark.parametrize("seed", seeds(3))
def test_all_groups_together_keep_no_more_than_the_limit_and_the_small_ones_keep_all(seed: int) -> None:
    one = World(seed=seed)
    gate = one.gateway("gate", segments_bytes_max=60_000)
    one.segments[0].start("ann")
    sizes = {f"g{number}": 2 if number < 5 else 60 for number in range(10)}
    for group, count in sizes.items():
        for seq in range(1, count + 1):
            said = {"group": group, "sender": "zoe", "seq": seq, "after": [], "data": "x" * 1_000}
            one.log.write(json.dumps(said).encode())
    one.until(lambda: set(one.segments[0].offers("ann")) == set(sizes))
    for group in sizes:
        one.peer("ann").join(group, one.now_ms)
    one.run(10_000)
    kept = {group: peer.sync_schedule.kept for group, peer in gate.bridge.sides[0].segment.groups.items()}
    assert sum(found.size for found in kept.values()) <= 60_000
    assert all(len(kept[group].messages) == 2 for group, count in sizes.items() if count == 2)
    assert all(0 < len(kept[group].messages) < 60 for group, count in sizes.items() if count == 60)
    for group, found in kept.items():
        told = one.segments[0].of("ann", Delivered)
        came = {event.record.seq for event in told if event.group == group and event.record.sender == "zoe"}
        assert {seq for _, _, seq in found.messages} <= came, "a peer that comes late gets what is left"
        assert one.peer("ann").held(group) == [], "and waits for nothing else"


def test_groups_of_the_log_that_rest_are_put_away_and_still_known() -> None:
    one = World()
    gate = one.gateway("gate")
    for number in range(200):
        one.log.write(b'{"group":"g%d","sender":"zoe","seq":1,"after":[]}' % number)
    one.run(2_000)
    assert gate.kernel.decoded == 200
    one.run(30_000)
    assert gate.kernel.decoded == 0
    assert len(gate.kernel.groups()) == 200
    assert gate.kernel.has("g7", ("zoe", 0, 1))
    assert not gate.kernel.has("g7", ("zoe", 0, 2))


def test_what_a_log_has_settled_in_many_runs_is_noted_in_one_pass_over_them() -> None:
    runs = Runs()
    runs.fill([1, *(bound for low in range(10, 200_000, 10) for bound in (low, low + 1))])
    schedule = SyncSchedule("gate", 0, "G", Random(1))
    before_s = process_time()
    schedule.note_forgotten([(("ann", 0), runs)], 0)
    assert process_time() - before_s < 2.0, "each run cost a pass over all"
    assert schedule._forgotten["ann", 0].dump() == runs.dump()
