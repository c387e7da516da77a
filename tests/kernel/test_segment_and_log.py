"""What peers do for gateways and hear from them: the log's word on a segment."""

from __future__ import annotations

import json
from typing import Any

import pytest

from precede.udfs.engine.runs import Runs
from precede.udfs.errors import Refused
from precede.udfs.peers import log_coverage
from precede.udfs.peers.events import Accepted, Delivered
from precede.udfs.peers.notes import InLog, JoinAnswer, RefusedByLog
from tests.kernel.medium import Weather
from tests.kernel.segments import GROUP, Segments


def with_gateway(*names: str, order: str, weather: Weather | None = None) -> Segments:
    segments = Segments(weather=weather)
    segments.start("gate", is_gateway=True)
    for name in names:
        segments.start(name)
    segments.run(300)
    segments.create(names[0], order=order)
    segments.until(lambda: segments.is_offered("gate"))
    segments["gate"].attend(GROUP, segments.medium.now_ms)
    segments.run(1_500)
    for name in names[1:]:
        segments.join(name)
    segments.run(1_500)
    return segments


def log_has_join(segments: Segments, name: str, time: int = 1) -> None:
    """The gateway says that the log has this join."""
    epoch = segments[name].groups[GROUP].speaking.epoch
    segments["gate"].tell(JoinAnswer(GROUP, name, epoch, "gate", time), segments.medium.now_ms)
    segments.medium.poke("gate")
    segments.run(500)


def control(kind: str, **fields: Any) -> bytes:
    return json.dumps({"group": GROUP, "kind": kind, **fields}).encode()


def test_a_gateway_is_told_of_each_record_once_and_is_no_member() -> None:
    segments = with_gateway("ann", "bob", order="causal", weather=Weather(loss=0.2, repeat=0.2))
    for _ in range(20):
        segments.say("ann", "x")
        segments.say("bob", "y")
        segments.run(10)
    segments.run(2_000)
    values = [one.value for one in segments.of("gate", Accepted)]
    assert len(values) == len(set(values))
    kinds = [json.loads(value).get("kind", "message") for value in values]
    assert (kinds.count("message"), kinds.count("join"), kinds.count("create")) == (40, 2, 1)
    assert kinds[0] == "create"
    assert list(segments["ann"].groups[GROUP].members) == ["ann", "bob"]


def test_a_join_by_clocks_waits_for_the_gateways_answer_too() -> None:
    segments = with_gateway("ann", order="lamport")
    log_has_join(segments, "ann")
    segments.start("bob")
    segments.until(lambda: segments.is_offered("bob"))
    segments.join("bob")
    segments.run(2_000)
    assert not segments.joined("bob"), "ann has answered, and the log has not"
    log_has_join(segments, "bob", 77)
    assert segments.joined("bob")
    segments.say("bob", "hello")
    segments.run(300)
    (record,) = [one.record for one in segments.of("ann", Delivered) if getattr(one.record, "seq", None) == 1]
    assert record.time > 77


def test_an_evict_of_the_log_frees_a_group_and_one_of_a_peer_does_nothing() -> None:
    segments = with_gateway("ann", order="lamport")
    log_has_join(segments, "ann")
    segments.start("bob")
    segments.until(lambda: segments.is_offered("bob"))
    segments.join("bob")
    segments.run(100)
    epoch = segments["bob"].groups[GROUP].speaking.epoch
    log_has_join(segments, "bob")
    segments.run(2_000)
    segments.medium.crash("bob")
    said = [segments.say("ann", "behind bob") for _ in range(9)]
    segments.run(1_000)
    assert segments.delivered("ann") != said
    held = segments["ann"].groups[GROUP].ordering.held()
    assert [one.silent for one in held] == [["bob"]] * len(held)
    evict = control("evict", member=["bob", epoch], cut=0)
    segments["ann"].inject(GROUP, evict, segments.medium.now_ms)  # ann itself believes it, as its own log
    segments.run(200)
    assert segments["gate"].groups[GROUP].counts["not_from_log"] == 1
    segments["gate"].inject(GROUP, evict, segments.medium.now_ms)
    segments.medium.poke("gate")
    segments.run(200)
    assert segments.delivered("ann") == segments.delivered("gate") == said


def test_what_the_log_gave_up_is_given_up_here() -> None:
    segments = with_gateway("ann", "bob", order="fifo")
    epoch = segments["bob"].groups[GROUP].speaking.epoch
    segments["gate"].inject(GROUP, control("abandon", ids=[["cem", 0, 1, 1]]), segments.medium.now_ms)
    segments["gate"].inject(GROUP, control("leave", sender="bob", epoch=epoch, last=0), segments.medium.now_ms)
    segments.medium.poke("gate")
    segments.run(200)
    assert [one.record.sender for one in segments.of("ann", Delivered) if one.is_abandoned] == ["cem"]
    assert list(segments["ann"].groups[GROUP].members) == ["ann"]


def test_own_messages_are_kept_until_the_log_has_them_and_at_the_limit_nothing_more_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    segments = with_gateway("ann", order="s_b")
    peer = segments["ann"].groups[GROUP]
    monkeypatch.setattr(peer.log_coverage, "_bytes_max", 1_000)
    epoch = peer.speaking.epoch
    for _ in range(20):
        segments.say("ann", "nobody has told of a log")
    tell(segments, {})
    with pytest.raises(Refused, match="The log has not taken"):
        segments.say("ann", "x")
    peer.sync_schedule.kept.bytes_max = 0
    segments.run(1_000)
    assert len(peer.sync_schedule.kept.messages) == 20
    tell(segments, {"ann": (epoch, 19)})
    segments.run(1_000)
    assert list(peer.sync_schedule.kept.messages) == peer.log_coverage.lacking == [("ann", epoch, 20)]
    segments.say("ann", "there is room again")
    assert log_coverage.UNLOGGED_BYTES_MAX > 1_000


def test_without_a_gateway_what_is_forgotten_is_not_listed_for_one_either() -> None:
    segments = Segments()
    segments.start("ann", kept_bytes_max=20_000)
    segments.together("ann", order="s_b")
    for _ in range(500):
        segments.say("ann", "x" * 100)
        segments.run(20)
    segments.run(1_000)
    peer = segments["ann"].groups[GROUP]
    mine = [id_ for id_ in peer.sync_schedule.kept.messages if id_[0] == "ann"]
    assert 0 < len(mine) < 200
    assert peer.log_coverage.lacking == mine
    assert peer.log_coverage.size <= 20_000


def tell(segments: Segments, have: dict[str, tuple[int, int]]) -> None:
    dumped = []
    for name, (epoch, last) in have.items():
        runs = Runs()
        runs.add_range(1, last)
        dumped.append((name, epoch, runs.dump()))
    segments["gate"].tell(InLog(GROUP, "gate", None, dumped), segments.medium.now_ms)
    segments.medium.poke("gate")
    segments.run(200)


def test_what_the_log_refused_is_told() -> None:
    segments = with_gateway("ann", order="s_b")
    id_ = segments.say("ann", "x")
    segments["gate"].tell(RefusedByLog(GROUP, id_, "fenced", "Too late."), segments.medium.now_ms)
    segments.medium.poke("gate")
    segments.run(200)
    assert segments.refused("ann") == ["fenced"]
    segments["ann"].tell(RefusedByLog(GROUP, id_, "fenced", "I am no gateway."), segments.medium.now_ms)
    segments.medium.poke("ann")
    segments.run(200)
    assert segments.refused("gate") == []


def test_the_create_of_the_log_stands_against_the_segments() -> None:
    segments = with_gateway("ann", order="s_b")
    first = segments.say("ann", "under my own create")
    create = control("create", options={"order": "s_b", "window": 7_000}, members=[])
    segments["gate"].tell(InLog(GROUP, "gate", create, []), segments.medium.now_ms)
    segments.medium.poke("gate")
    segments.run(500)
    assert segments["ann"].groups[GROUP].records.create == create
    assert segments.refused("ann") == ["bad_stamp"]
    second = segments.say("ann", "under the log's", after=[first])
    segments.run(200)
    assert segments.delivered("ann") == [first, second]


@pytest.mark.parametrize("order", ["causal", "lamport", "s_b"])
def test_where_the_logs_create_refuses_what_was_said_a_new_epoch_goes_on_and_nothing_waits_for_that(order: str) -> None:
    segments = with_gateway("ann", "bob", order="fifo")
    early = [segments.say("ann", number) for number in range(2)]
    segments.run(500)
    create = control("create", options={"order": order}, members=[])
    segments["gate"].tell(InLog(GROUP, "gate", create, []), segments.medium.now_ms)
    segments.medium.poke("gate")
    segments.run(500)
    assert segments.refused("bob") == ["bad_stamp", "missing_stamp", "missing_stamp"]
    for _ in "12":  # by clocks, the second answer tells of a clock above the first one's
        for name in ("ann", "bob") if order == "lamport" else ():
            log_has_join(segments, name)
    segments.run(2_500)
    late = [segments.say("ann", number) for number in range(2)]
    segments.run(2_500)
    assert [id_[2] for id_ in late] == [1, 2], "an epoch that begins anew"
    assert segments.delivered("ann") == segments.delivered("bob") == early + late
    assert segments["ann"].groups[GROUP].log_coverage.lacking == late
