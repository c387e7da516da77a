"""Every order through a real broker, Spark, topics and Delta, in one run: as the kernel alone, and by its law."""

from __future__ import annotations

import json
from collections import Counter
from random import Random
from typing import Any

import pytest
from pyspark.sql import SparkSession

from precede.local.embedded_broker import Broker
from precede.udfs.orders import ORDERS
from tests import simulation
from tests.records import by_kernel
from tests.simulation import NAMES, Arrival, History, Id, converse, created
from tests.system.stream import Stream

MESSAGES = 60
DELAY = 150
"""Against 5 between two messages: many arrive before what they follow."""

Place = tuple[Id, str | None]
"""A message and its destination, or None in the group's one sequence."""

every_order = pytest.mark.parametrize("order", ORDERS)


class Played:
    """A stream that has handled, for every order, an honest group and one whose messages were lost and given up."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.honest = {order: play(order, order, loss=0.0) for order in ORDERS}
        self.lossy = {order: play(order, f"{order} with loss", loss=0.2) for order in ORDERS}
        self.ordered: dict[str, list[dict[str, Any]]] = {}

    def run(self, spark: SparkSession) -> None:
        """Send the logs of all groups in turn, and let the job handle them in many batches."""
        histories = [*self.honest.values(), *self.lossy.values()]
        longest = max(len(one.log) for one in histories)
        at = [one.log[turn] for turn in range(longest) for one in histories if turn < len(one.log)]
        self.stream.send((one.key, one.value) for one in at)
        self.stream.once(spark)
        for history in histories:
            key = history.group.encode()
            history.log = [Arrival(row[1] or b"", key, *row[2:]) for row in self.stream.raw() if row[0] == key]
        self.ordered = {
            key.decode(): [json.loads(record) for record in records] for key, records in self.stream.ordered().items()
        }

    def delivered(self, history: History) -> dict[Place, dict[str, Any]]:
        """The messages of a group by id and destination, in the order of the topic."""
        messages = [one for one in self.ordered[history.group] if "kind" not in one]
        found = {((one["sender"], one["epoch"], one["seq"]), one.get("destination")): one for one in messages}
        assert len(found) == len(messages), "a message came twice"
        return found


def play(order: str, group: str, *, loss: float) -> History:
    """A conversation of the group, its `create` first; what was lost is given up at the end."""
    by_clocks = ORDERS[order].waits_for_members
    more: dict[str, Any] = {"beats": 0.3, "skew": 10} if by_clocks else {}
    if order == "two_clock":
        more |= {"options": {"accuracy_ms": 10}}
    random = Random(f"{group} 1")
    history = converse(random, order, group=group, messages=MESSAGES, loss=loss, delay=DELAY, gateways=3, **more)
    if not by_clocks:
        history.log.insert(0, record(group, created(order, NAMES[:4], group=group)))
    if loss:
        ids = [[*id_, id_[2]] for id_ in sorted(history.lost())]
        abandon = {"group": group, "kind": "abandon", "ids": ids}
        history.log.append(record(group, json.dumps(abandon).encode()))
    history.log += [record(group, value) for value in history.final_heartbeats]
    return history


def record(group: str, value: bytes) -> Arrival:
    """A record whose place in the log is not known yet."""
    return Arrival(value, group.encode(), 0, 0, 0)


@pytest.fixture(scope="module")
def played(broker: Broker, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Played:
    folder = tmp_path_factory.mktemp("orders")
    played = Played(Stream(broker.bootstrap, folder, partitions=3, max_offsets_per_trigger=300))
    played.run(spark)
    return played


def test_the_topics_hold_what_the_kernel_alone_makes_of_the_raw_log(played: Played) -> None:
    ordered, dead = by_kernel(played.stream.raw(), partitions=3)
    assert played.stream.ordered() == ordered
    assert played.stream.dead() == dead == []
    assert {records[0]["order"] for records in played.ordered.values()} == set(ORDERS)


def test_positions_are_contiguous_in_each_group_and_in_causal_p2p_at_each_destination(played: Played) -> None:
    for records in played.ordered.values():
        positions: dict[str | None, list[int]] = {}
        for one in records:
            positions.setdefault(one.get("destination"), []).append(one["position"])
        assert (None in positions) == (records[0]["order"] != "causal_p2p")
        assert all(found == list(range(1, len(found) + 1)) for found in positions.values())


@pytest.mark.parametrize("order", simulation.NEEDS)
def test_each_message_is_delivered_in_the_step_that_brings_the_last_it_really_needed(
    played: Played, order: str
) -> None:
    history = played.honest[order]
    first = history.first_arrivals()
    delivered = played.delivered(history)
    steps = {(id_, at): simulation.step(history, id_, at, first) for id_ in history.said for at in history.places(id_)}
    assert {place: one["released_offset"] for place, one in delivered.items()} == steps
    waited = [one for one in delivered.values() if one["released_offset"] > one["offset"]]
    assert bool(waited) == (order != "total"), "nothing was held, so nothing was shown"
    for (id_, at), one in delivered.items():
        for needed in simulation.needs(history, id_, at):
            assert delivered[needed, at]["position"] <= one["position"]


@pytest.mark.parametrize("order", ["lamport", "two_clock"])
def test_by_clocks_all_is_delivered_and_after_all_that_really_came_before_it(played: Played, order: str) -> None:
    history = played.honest[order]
    delivered = played.delivered(history)
    sequence = [id_ for id_, _ in delivered]
    assert sorted(sequence) == sorted(history.said)
    for at, id_ in enumerate(sequence):
        assert history.said[id_].past <= set(sequence[:at])
    times = [(one["time"], one["sender"]) for one in delivered.values()]
    assert (times == sorted(times)) == (order == "lamport"), "two_clock does not order by linear time alone"


@every_order
def test_what_was_lost_and_given_up_stands_as_abandoned_and_everything_else_is_delivered(
    played: Played, order: str
) -> None:
    history = played.lossy[order]
    assert history.lost()
    delivered = played.delivered(history)
    status = {place: one["status"] for place, one in delivered.items()}
    assert {id_ for id_, _ in status} == history.said.keys()
    assert {place for place, said in status.items() if said == "delivered"} == {
        (id_, at) for id_ in history.first_arrivals() for at in history.places(id_)
    }
    assert {id_ for (id_, _), said in status.items() if said == "abandoned"} == history.lost()
    number = {place: at for at, place in enumerate(delivered)}
    for (id_, place), at in number.items():
        if status[id_, place] == "delivered":
            assert not {one for one in follows(history, id_, place) if number[one, place] > at}


def follows(history: History, id_: Id, place: str | None) -> set[Id]:
    """What comes before a message of a group that has lost some: where one message was named, no further than to it."""
    if history.order not in simulation.NEEDS:
        return set(history.said[id_].past) - history.lost()
    if history.order in ("s_b", "object"):
        parent = history.said[id_].parent
        return set() if parent is None else {parent}
    return simulation.needs(history, id_, place) - history.lost()


def test_delta_has_one_row_for_each_position_with_its_destination_and_its_order(played: Played) -> None:
    rows = played.stream.table("deliveries")
    found = {(row["group"], row["destination"], row["position"]): row for row in rows}
    records = [json.loads(row["record"]) for row in rows]
    of_topic = [value.decode() for values in played.stream.ordered().values() for value in values]
    assert Counter(row["record"] for row in rows) == Counter(of_topic)
    assert len(found) == len(rows)
    for row, one in zip(rows, records, strict=True):
        for column in ("group", "position", "order", "status", "partition", "offset", "released_offset"):
            assert row[column] == one[column]
        for column in ("destination", "sender", "epoch", "seq"):
            assert row[column] == one.get(column), (column, one)
        assert row["kind"] == one.get("kind", "message")
    of_destinations = {row["destination"] for row in rows if row["order"] == "causal_p2p"}
    assert of_destinations == set(NAMES[:4])
    assert {row["destination"] for row in rows if row["order"] != "causal_p2p"} == {None}
    assert played.stream.table("dead_letters") == []
