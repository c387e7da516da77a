"""An order of one's own at members and peers: what it says by its flags holds there, whatever its name is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import precede
from precede.member.group_member import GroupMember
from precede.peer.handing_over import as_peer_delivery
from precede.udfs.orders import ORDERS
from precede.udfs.orders.causal_p2p import CausalPointToPoint
from precede.udfs.orders.lamport import Lamport
from precede.udfs.peers.events import Delivered
from tests.door.test_publishing import Ann
from tests.kernel.segments import GROUP, Segments


class Letters(CausalPointToPoint):
    __slots__ = ()

    name = "letters"


class Queue(Lamport):
    __slots__ = ()

    name = "queue"


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    for order in (Letters, Queue):
        precede.register(order)
    yield
    for order in (Letters, Queue):
        ORDERS.pop(order.name)


def test_peers_send_each_message_to_its_destinations_alone() -> None:
    segments = Segments("ann", "bob", "cem")
    segments.together("ann", "bob", "cem", order="letters")
    with pytest.raises(ValueError, match="in letters a message needs `to`"):
        segments.say("ann")
    first = segments.say("ann", to=["bob"])
    segments.run(200)
    second = segments.say("bob", to=["ann", "cem"])
    segments.run(200)
    assert segments.delivered("ann") == [second]
    assert segments.delivered("bob") == [first]
    assert segments.delivered("cem") == [second]
    told = segments.of("cem", Delivered)[-1]
    assert as_peer_delivery(told, "letters", "cem").destination == "cem"


def test_peers_have_one_sequence_by_a_clock() -> None:
    segments = Segments("ann", "bob")
    segments.together("ann", "bob", order="queue")
    said = [segments.say(name) for name in ("ann", "bob", "bob", "ann")]
    segments.run(2_000)
    assert segments.delivered("ann") == segments.delivered("bob")
    assert set(segments.delivered("ann")) == set(said)
    assert segments["ann"].groups[GROUP].speaking.time > 1
    with pytest.raises(ValueError, match="in queue every message is for the whole group"):
        segments.say("ann", to=["bob"])


def test_a_member_keeps_the_clock_of_the_order_also_in_its_next_epoch(tmp_path: Path) -> None:
    ann = Ann(tmp_path, keys=False, order="queue")
    ann.log.plant(sender="bob", seq=1, time=40)
    ann.turn()
    assert ann.publisher.speaker.time > 40
    ann.publisher.send(b"1", [], None, None)
    assert ann.log.refused == []
    ann.publisher.begin_epoch(1)
    assert 1 < ann.publisher.speaker.time <= 100


@pytest.mark.parametrize(
    ("order", "to", "sentence"),
    [
        ("letters", None, "in letters a message needs `to`"),
        ("queue", ["bob"], "in queue every message is for the whole group"),
    ],
)
def test_a_member_asks_for_destinations_where_the_order_has_them(order: str, to: Any, sentence: str) -> None:
    member: Any = SimpleNamespace(order=order)
    with pytest.raises(ValueError, match=sentence):
        GroupMember._destinations(member, to)
    assert GroupMember._destinations(member, ["bob"] if order == "letters" else None) in (["bob"], None)
