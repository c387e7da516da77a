"""Gateways between simulated segments and a simulated log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from precede.gateway.log_kernel import LogKernel
from precede.gateway.publish_queue import PublishQueue
from precede.ingest.live.kernel import KernelState
from precede.udfs.limits import Limits
from precede.udfs.records.messages import Id
from precede.udfs.records.published import GapRecord
from precede.udfs.records.wire import encode_message, read
from tests.kernel.gateways import SimulatedLog, World, with_full_gateway
from tests.kernel.medium import Weather
from tests.kernel.segments import GROUP
from tests.signing import Signs, publics


def world(*names: str, gateways: int = 1, weather: Weather | None = None, seed: int = 1, **options: Any) -> World:
    """One segment with gateways, and a group of these peers."""
    made = World(seed=seed, weather=weather)
    for number in range(gateways):
        made.gateway(f"gate{number}")
    for name in names:
        made.segments[0].start(name)
    made.run(3_000)
    made.together(*names, **options)
    return made


def test_what_is_said_on_a_segment_is_in_the_log_byte_for_byte_and_once() -> None:
    one = world("ann", "bob", order="fifo")
    said = [one.say(name, "hello") for name in ("ann", "bob") for _ in range(10)]
    one.run(1_000)
    assert sorted(one.log.delivered(GROUP)) == sorted(said)
    assert one.log.records("create")[0]["options"] == {"order": "fifo"}
    assert {join["sender"] for join in one.log.records("join")} == {"ann", "bob"}
    assert len(one.log.records("message")) == 20
    assert one.log.dead() == []
    values = {value for value, *_ in one.log.rows}
    kept = one.peer("ann").groups[GROUP].sync_schedule.kept.messages
    assert {value for _, value in kept.items()} <= values


def test_two_gateways_publish_hardly_anything_twice() -> None:
    one = world("ann", "bob", gateways=2, order="fifo", weather=Weather(loss=0.02))
    before = len(one.log.records("message"))
    for _ in range(100):
        one.say("ann", "a")
        one.say("bob", "b")
        one.run(10)
    one.run(3_000)
    assert len(one.log.delivered(GROUP)) == 200
    assert len(one.log.records("message")) - before <= 1.2 * 200


def test_two_gateways_publish_hardly_anything_twice_while_the_log_falls_behind() -> None:
    one = world("ann", "bob", gateways=2, order="fifo")
    before = len(one.log.records("message"))
    for number in range(400):
        one.log.way_ms = (3.0 * number, 3.0 * number + 6)
        one.say("ann", "a")
        one.run(10)
    one.run(3_000)
    assert len(one.log.delivered(GROUP)) == 400
    assert len(one.log.records("message")) - before <= 1.2 * 400


def test_another_gateway_is_waited_for_while_it_carries_and_not_for_what_it_has_passed_over() -> None:
    queue = PublishQueue(LogKernel(SimulatedLog(1).stream, KernelState({0: 0}, {}, {})), lambda _: None)
    records = [read(encode_message(GROUP, "ann", 1, seq), Limits()) for seq in range(1, 5)]
    for record in records:
        assert queue.hear(GROUP, b"{}", record, 1, 0.0)
    queue.took(GROUP, records[0], 200.0)
    assert queue.take(300.0) == []  # it carries what ann says, and has not come to the others yet
    queue.took(GROUP, records[2], 500.0)
    assert [entry.record for entry in queue.take(600.0)] == [records[1]]
    assert [entry.record for entry in queue.take(1_000.0)] == [records[3]]  # nothing came any more


@pytest.mark.parametrize("order", ["s_b", "fifo", "causal", "lamport", "two_clock"])
def test_two_segments_and_the_log_have_the_same_messages(order: str) -> None:
    one = World(segments=2, weather=Weather(loss=0.05))
    one.gateway("gate", at=(0, 1))
    one.segments[0].start("ann")
    one.segments[0].start("bob")
    one.segments[1].start("cem")
    one.segments[1].start("dan")
    one.run(3_000)
    one.together("ann", "cem", "bob", "dan", order=order)
    said = []
    for _ in range(20):
        said += [one.say(name, "x") for name in ("ann", "bob", "cem", "dan")]
        one.run(40)
    one.until(lambda: all(len(one.delivered(name)) == len(said) for name in ("ann", "bob", "cem", "dan")))
    one.until(lambda: len(one.log.delivered(GROUP)) == len(said))
    assert one.log.dead() == []
    if order == "lamport":
        assert all(one.delivered(name) == one.log.delivered(GROUP) for name in ("ann", "bob", "cem", "dan"))
    before = len(one.log.rows)
    one.run(20_000)
    assert len(one.log.rows) - before <= 40, "nothing runs in circles"


def on_two_segments(*, order: str, keys: Sequence[str] = (), loss: float = 0.05) -> World:
    """Four peers on two segments, with a gateway of each, in one group; with keys, each signs by its own."""
    one = World(segments=2, weather=Weather(loss=loss))
    one.gateway("gate0", at=(0,))
    one.gateway("gate1", at=(1,))
    for name, at in (("ann", 0), ("bob", 0), ("cem", 1), ("dan", 1)):
        one.segments[at].start(name, signer=Signs(name) if keys else None)
    one.run(3_000)
    more: dict[str, Any] = {"keys": publics(*keys)} if keys else {}
    one.together("ann", "cem", "bob", "dan", order=order, **more)
    return one


FOUR = ("ann", "bob", "cem", "dan")


def test_in_causal_p2p_each_member_gets_what_is_for_it_from_another_segment_too_as_the_log_says() -> None:
    one = on_two_segments(order="causal_p2p")
    said: dict[Id, list[str]] = {}
    for turn in range(20):
        for at, name in enumerate(FOUR):
            to = sorted({FOUR[(at + 1 + turn % 3) % 4], FOUR[(at + 1 + turn % 2) % 4]})
            said[one.say(name, "x", to=to)] = to
        one.run(40)
    for name in FOUR:
        mine = sorted(id_ for id_, to in said.items() if name in to)
        one.until(lambda name=name, mine=mine: sorted(one.delivered(name)) == mine)  # type: ignore[misc]
    places = sorted((id_, to) for id_, whom in said.items() for to in whom)
    one.until(lambda: sorted(one.log.places(GROUP)) == places)
    assert one.log.dead() == []


def test_in_an_object_group_what_a_message_depends_on_comes_first_on_both_segments_and_in_the_log() -> None:
    one = on_two_segments(order="object")
    follows: dict[Id, list[Id]] = {}
    for _ in range(20):
        for name in FOUR:
            before = one.delivered(name)[-2:]
            follows[one.say(name, "x", after=before)] = before
        one.run(40)
    one.until(lambda: all(len(one.delivered(name)) == len(follows) for name in FOUR))
    one.until(lambda: len(one.log.delivered(GROUP)) == len(follows))
    for sequence in (one.log.delivered(GROUP), *(one.delivered(name) for name in FOUR)):
        assert all(set(before) <= set(sequence[: sequence.index(id_)]) for id_, before in follows.items())
    assert one.log.dead() == []


@pytest.mark.parametrize("order", ["s_b", "causal", "lamport"])
def test_signed_records_of_two_segments_are_in_the_log_as_they_were_signed(order: str) -> None:
    one = on_two_segments(order=order, keys=FOUR)
    said = [one.say(name, "x") for _ in range(10) for name in FOUR]
    one.until(lambda: all(sorted(one.delivered(name)) == sorted(said) for name in FOUR))
    one.until(lambda: sorted(one.log.delivered(GROUP)) == sorted(said))
    assert one.log.dead() == []
    assert all("signature" in record for record in one.log.records("message"))


def test_two_gateways_between_the_same_two_segments_make_no_loop() -> None:
    one = World(segments=2)
    one.gateway("gate0", at=(0, 1))
    one.gateway("gate1", at=(0, 1))
    one.segments[0].start("ann")
    one.segments[1].start("bob")
    one.run(3_000)
    one.together("ann", "bob", order="causal")
    said = [one.say(name, "x") for _ in range(30) for name in ("ann", "bob")]
    one.until(lambda: len(one.delivered("ann")) == len(one.delivered("bob")) == len(said))
    one.run(5_000)
    assert len(one.log.records("message")) <= 1.2 * len(said)


def test_what_is_heard_while_the_log_is_away_goes_up_later() -> None:
    one = world("ann", "bob", gateways=2, order="fifo")
    one.log.is_away = True
    said = [one.say("ann", number) for number in range(50)]
    one.run(5_000)
    assert one.log.delivered(GROUP) == []
    assert len(one.disks["gate0"].rows) == 50
    one.log.is_away = False
    one.until(lambda: one.log.delivered(GROUP) == said)
    one.run(2_000)
    assert one.disks["gate0"].rows == one.disks["gate1"].rows == {}


def test_a_gateway_that_was_killed_publishes_what_its_disk_has_although_all_peers_are_gone() -> None:
    one = world("ann", order="fifo")
    one.log.is_away = True
    said = [one.say("ann", number) for number in range(20)]
    one.run(2_000)
    one.segments[0].medium.crash("ann")
    one.kill("gate0")
    one.log.is_away = False
    one.gateway("gate0")
    one.until(lambda: one.log.delivered(GROUP) == said)


def test_what_a_killed_gateway_did_not_publish_comes_from_the_peers_that_have_it() -> None:
    one = world("ann", "bob", order="causal")
    one.kill("gate0")
    said = [one.say("ann", number) for number in range(20)]
    one.run(500)
    one.segments[0].medium.crash("ann")
    one.disks.clear()
    one.gateway("gate1")
    one.until(lambda: one.log.delivered(GROUP) == said)


def test_at_the_limit_nothing_more_is_kept_and_the_peers_keep_theirs() -> None:
    one, gate, said = with_full_gateway("fifo")
    assert len(one.disks["gate"].rows) < 100
    assert any("no more is kept" in sentence for sentence in gate.said)
    one.peer("ann").groups[GROUP].sync_schedule.kept.bytes_max = 0
    one.log.is_away = False
    one.until(lambda: one.log.delivered(GROUP) == said, 60_000)
    one.until(lambda: one.peer("ann").groups[GROUP].log_coverage.lacking == [])


def test_a_message_whose_sender_is_gone_is_recovered_for_the_log_that_asks() -> None:
    one = world("ann", "bob", order="fifo")
    said = [one.say("ann", number) for number in range(3)]
    one.until(lambda: one.log.delivered(GROUP) == said)
    one.segments[0].medium.crash("ann")
    one.log.rows = [row for row in one.log.rows if b'"seq":2' not in (row[0] or b"")]  # as if it had never come
    rows, one.log.rows = one.log.rows, []
    for value, *_ in rows:
        one.log.write(value or b"")
    one.kill("gate0")
    gate = one.gateway("gate1")
    gap = GapRecord(
        kind="ask", group=GROUP, sender="ann", epoch=said[0][1], first=2, last=2,
        asked=1, opened_ms=0, asked_ms=0, waited=[], partition=0, offset=0,
    )  # fmt: skip
    gate.bridge.answer([gap], one.now_ms)
    one.until(lambda: one.log.delivered(GROUP) == said)


def test_the_first_create_in_the_log_stands_for_both_segments() -> None:
    one = World(segments=2)
    one.gateway("gate0", at=(0,))
    one.gateway("gate1", at=(1,))
    one.segments[0].start("ann")
    one.segments[1].start("bob")
    one.run(3_000)
    one.log.is_away = True
    one.segments[0].create("ann", order="fifo")
    one.segments[1].create("bob", order="causal")
    one.run(1_000)
    early = [one.say("ann", 1), one.say("bob", 2)]
    one.run(1_000)
    one.log.is_away = False
    one.run(5_000)
    late = [one.say("ann", 3), one.say("bob", 4)]
    one.until(lambda: {*early, *late} <= {*one.delivered("ann")} and {*early, *late} <= {*one.delivered("bob")})
    created = one.log.ordered().group(GROUP)
    assert created is not None
    for name in ("ann", "bob"):
        assert one.peer(name).groups[GROUP].order.name == created.order.name
    loser = "bob" if created.order.name == "fifo" else "ann"
    assert "bad_stamp" in one.place(loser).refused(loser)
    assert {*one.log.delivered(GROUP)} >= {*early, *late}


def test_a_leave_goes_up_behind_what_it_counts() -> None:
    one = world("ann", "bob", order="fifo")
    one.log.is_away = True
    said = [one.say("ann", number) for number in range(30)]
    one.segments[0].leave("ann")
    one.run(2_000)
    one.log.is_away = False
    one.until(lambda: one.log.records("leave") != [])
    kinds = [b'"leave"' in (value or b"") for value, *_ in one.log.rows]
    assert {row.count(b'"seq"') for row in (value or b"" for value, *_ in one.log.rows[kinds.index(True) :])} == {0}
    assert one.log.delivered(GROUP) == said


def test_nothing_of_a_group_is_in_the_log_before_its_create() -> None:
    one = world("ann", "bob", gateways=2, order="fifo", weather=Weather(loss=0.3))
    for number in range(20):
        one.say("ann", number)
    one.run(3_000)
    assert b'"create"' in (one.log.rows[0][0] or b"")


def test_evict_abandon_and_tick_of_a_segment_stay_there() -> None:
    one = world("ann", "bob", order="fifo")
    peer = one.peer("ann").groups[GROUP]
    for fields in (
        b'"kind":"evict","member":["bob",1],"cut":0',
        b'"kind":"abandon","ids":[["bob",1,1,1]]',
        b'"kind":"tick"',
    ):
        peer._say(b'{"group":"G",%b}' % fields, one.now_ms)
    one.peer("ann")._settle(peer, one.now_ms)
    one.segments[0].medium.poke("ann")
    one.run(3_000)
    assert one.log.records("evict") == one.log.records("abandon") == one.log.records("tick") == []


def test_a_group_of_the_log_is_offered_and_a_newcomer_gets_its_messages() -> None:
    one = World()
    one.log.write(b'{"group":"G","kind":"create","options":{"order":"causal"},"members":["zoe"]}')
    for seq in (1, 2, 3):
        one.log.write(b'{"group":"G","sender":"zoe","seq":%d,"seen":[["zoe",0,%d]]}' % (seq, seq))
    one.gateway("gate")
    one.segments[0].start("ann")
    one.until(lambda: one.segments[0].is_offered("ann"))
    one.segments[0].join("ann")
    one.until(lambda: len(one.delivered("ann")) == 3, 1_000)
    one.log.write(b'{"group":"G","sender":"zoe","seq":4,"seen":[["zoe",0,4]]}')
    one.until(lambda: len(one.delivered("ann")) == 4)
    one.until(lambda: one.segments[0].joined("ann"))
    said = one.say("ann", "hello")
    one.until(lambda: said in one.log.delivered(GROUP))


STAMPS = {"s_b": b'"after":[]', "fifo": b'"data":1', "causal": b'"seen":[["zoe",0,1]]'}


@pytest.mark.parametrize("order", STAMPS)
@pytest.mark.parametrize("runs_before", [False, True])
def test_a_group_that_the_log_began_without_a_create_is_offered_under_the_order_of_the_log(
    order: str, runs_before: bool
) -> None:
    one = World(order=order)
    first = b'{"group":"G","sender":"zoe","seq":1,%b}' % STAMPS[order]
    if runs_before:
        one.log.write(first)
    one.gateway("gate")
    one.segments[0].start("ann")
    one.run(3_000)
    if not runs_before:
        one.log.write(first)
    one.until(lambda: one.segments[0].is_offered("ann"), 1_000)
    one.segments[0].join("ann")
    one.until(lambda: one.delivered("ann") == [("zoe", 0, 1)], 2_000)
    assert one.peer("ann").groups[GROUP].order.name == order
    one.until(lambda: one.segments[0].joined("ann"))
    said = one.say("ann", "hello")
    one.until(lambda: one.log.delivered(GROUP) == [("zoe", 0, 1), said])
    one.segments[0].start("bob")
    one.until(lambda: one.segments[0].is_offered("bob"), 1_000)
    one.segments[0].join("bob")
    one.until(lambda: one.delivered("bob") == [("zoe", 0, 1), said])
    assert one.log.dead() == []
    assert one.log.records("create") == []


@pytest.mark.parametrize("order", ["total", "lamport"])
def test_a_group_without_a_create_that_needs_the_log_is_not_offered(order: str) -> None:
    one = World(order=order)
    one.gateway("gate")
    one.segments[0].start("ann")
    one.log.write(b'{"group":"G","sender":"zoe","seq":1,"time":1}')
    one.run(3_000)
    assert not one.segments[0].is_offered("ann")


def test_a_group_made_on_a_segment_has_its_order_in_a_log_with_another_default_too() -> None:
    one = World(order="causal")
    one.gateway("gate")
    one.segments[0].start("ann")
    one.run(3_000)
    one.together("ann")
    said = one.say("ann", "hello")
    one.until(lambda: one.log.delivered(GROUP) == [said])
    created = one.log.ordered().group(GROUP)
    assert created is not None
    assert created.order.name == one.peer("ann").groups[GROUP].order.name == "s_b"


def test_the_limits_of_the_log_hold_on_a_segment_and_at_its_gateway_too() -> None:
    """A stream may allow longer lists than usual: in the log, from the segment, and at who joins after both."""
    one = World(limits=Limits(after_max=50))
    one.gateway("gate")
    for name in ("ann", "bob"):
        one.segments[0].start(name)
    one.run(3_000)
    one.together("ann", "bob", order="object")
    roots = [one.say("ann", number) for number in range(40)]
    one.until(lambda: one.delivered("bob") == roots)
    one.say("bob", "from the segment", after=roots)
    one.run(1_000)
    one.log.write(encode_message(GROUP, "cli", 0, 1, data="from the log", after=roots))
    one.run(1_000)
    one.gateway("gate2")  # begins with both, and finds them before what it is offered
    one.segments[0].start("cem")
    one.until(lambda: one.place("cem").is_offered("cem"))
    one.place("cem").join("cem")
    one.until(lambda: len(one.delivered("cem")) == 42)
    assert one.log.dead() == []
    assert len(one.delivered("ann")) == len(one.delivered("bob")) == len(one.log.delivered(GROUP)) == 42
    assert one.segments[0].refused("ann") == one.segments[0].refused("cem") == []


def test_what_one_record_raises_at_a_gateway_is_counted_and_said_once_and_the_others_are_carried() -> None:
    one = world("ann", "bob", order="s_b")
    bridge = one.gateways["gate0"].bridge
    note, hear = bridge.history.note, bridge.queue.hear

    def note_or_raise(group: str, value: bytes, *more: Any, **options: Any) -> None:
        if b'"from the log 2"' in value:
            raise KeyError("an error in precede")
        note(group, value, *more, **options)

    def hear_or_raise(group: str, value: bytes, *more: Any) -> bool:
        if b'"from ann 2"' in value:
            raise KeyError("an error in precede")
        return hear(group, value, *more)

    bridge.history.note, bridge.queue.hear = note_or_raise, hear_or_raise  # type: ignore[method-assign, assignment]
    said = [one.say("ann", f"from ann {number}") for number in range(5)]
    for number in range(5):
        one.log.write(encode_message(GROUP, "cli", 0, number + 1, after=[], data=f"from the log {number}"))
    one.run(2_000)
    assert {id_ for id_ in one.log.delivered(GROUP) if id_[0] == "ann"} == {*said} - {said[2]}
    assert {id_[2] for id_ in one.delivered("bob") if id_[0] == "cli"} == {1, 2, 4, 5}
    assert bridge.errors >= 2
    assert [line for line in one.gateways["gate0"].said if "an error in precede" in line] == [
        "A record or an event was left out because of an error in precede (KeyError: 'an error in precede')."
    ]


def test_a_peer_goes_on_under_the_limits_that_it_stopped_with() -> None:
    one = World(limits=Limits(after_max=50))
    one.gateway("gate")
    one.segments[0].start("ann")
    one.run(3_000)
    one.together("ann", order="object")
    roots = [one.say("ann", number) for number in range(40)]
    one.run(100)
    answer = one.say("ann", "all of it", after=roots)
    state = one.peer("ann").dump()
    one.segments[0].medium.crash("ann")
    one.segments[0].start("ann", state=state)
    assert one.peer("ann").record_of(GROUP, answer) is not None
    again = one.say("ann", "all of it again", after=roots)
    one.run(1_000)
    assert again in one.log.delivered(GROUP)
    with pytest.raises(ValueError, match="`after` may name 50 at most, not 51"):
        one.say("ann", after=[*roots, *roots[:11]])


def test_what_the_log_fences_is_told_as_refused() -> None:
    one = world("ann", "bob", order="fifo")
    epoch = one.peer("bob").groups[GROUP].speaking.epoch
    one.run(500)
    one.log.write(b'{"group":"G","kind":"evict","member":["bob",%d],"cut":0}' % epoch)
    one.say("bob", "too late")
    one.run(3_000)
    assert "fenced" in one.segments[0].refused("bob")
    assert one.log.delivered(GROUP) == []


@pytest.mark.parametrize("order", ["lamport", "two_clock"])
def test_the_evict_of_the_log_lets_peers_of_both_segments_go_on_without_one_that_crashed(order: str) -> None:
    one = on_two_segments(order=order)
    said = [one.say(name, "x") for name in FOUR]
    one.until(lambda: all(len(one.delivered(name)) == 4 for name in FOUR))
    epoch = one.peer("dan").groups[GROUP].speaking.epoch
    one.segments[1].medium.crash("dan")
    for _ in range(3):
        said += [one.say(name, "y") for name in FOUR[:3]]
        one.run(500)
    one.run(10_000)
    assert len(one.delivered("ann")) < len(said), "it waits for the one that crashed"
    one.log.write(b'{"group":"G","kind":"evict","member":["dan",%d],"cut":1}' % epoch)
    one.until(lambda: all(sorted(one.delivered(name)) == sorted(said) for name in FOUR[:3]))
    one.until(lambda: sorted(one.log.delivered(GROUP)) == sorted(said))
    assert "dan" not in one.peer("ann").groups[GROUP].members
    said += [one.say(name, "z") for name in FOUR[:3]]
    one.until(lambda: all(sorted(one.delivered(name)) == sorted(said) for name in FOUR[:3]))
    assert one.log.dead() == []
