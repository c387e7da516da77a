"""`precede.follow(consumer_group=...)` on a real topic: partitions shared, places kept by Kafka."""

from __future__ import annotations

import time
import uuid
from typing import Any, Literal

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

import precede as door
from precede.local.embedded_broker import Broker
from precede.reading.following import Follower
from precede.udfs.partitioner import partition_of
from tests.system.test_following_kafka import Output

PARTITIONS = 4
GROUPS = [f"group {n}" for n in range(12)]
JOIN_S = 30.0


@pytest.fixture
def output(broker: Broker) -> Output:
    return Output(broker)


def opened(
    output: Output,
    name: str,
    *,
    group: str | None = None,
    start: Literal["beginning", "end"] = "beginning",
) -> Follower:
    return door.follow(
        group,
        bootstrap=output.bootstrap,
        topic=output.topic,
        consumer_group=name,
        start=start,
        patience_s=2,
    )


def write_all(output: Output, *positions: int) -> None:
    for group in GROUPS:
        output.write(*positions, group=group)


def new_name() -> str:
    return f"readers{uuid.uuid4().hex[:8]}"


Seen = list[tuple[str, int]]


def seen_by(*followers: Follower, until: int) -> list[Seen]:
    """What these followers are handed in turn, until all together have so many."""
    seen: list[Seen] = [[] for _ in followers]
    deadline = time.monotonic() + JOIN_S
    while sum(map(len, seen)) < until and time.monotonic() < deadline:
        for follower, mine in zip(followers, seen, strict=True):
            while (delivery := follower.poll(0.05)) is not None:
                mine.append((delivery.group, delivery.position))
    return seen


def join(*followers: Follower) -> None:
    """Poll all of them until each has partitions of its own."""
    deadline = time.monotonic() + JOIN_S
    while time.monotonic() < deadline:
        for follower in followers:
            assert follower.poll(0.1) is None
        if all(follower.at_end for follower in followers):
            return


def test_a_group_goes_on_where_it_stopped_and_has_no_token(output: Output) -> None:
    name = new_name()
    write_all(output, 1, 2)
    with opened(output, name) as follower:
        first = [(delivery.group, delivery.position) for delivery in follower]
        with pytest.raises(door.Refused, match=f"Kafka keeps the places of {name}"):
            follower.token  # noqa: B018
    assert sorted(first) == [(group, position) for group in sorted(GROUPS) for position in (1, 2)]
    write_all(output, 3)
    with opened(output, name) as follower:
        assert sorted((one.group, one.position) for one in follower) == [(group, 3) for group in sorted(GROUPS)]


def test_two_followers_share_the_partitions_and_one_takes_over_what_the_other_leaves(output: Output) -> None:
    name = new_name()
    one, two = opened(output, name), opened(output, name)
    with two:
        with one:
            join(one, two)
            write_all(output, 1, 2)
            shares = seen_by(one, two, until=24)
            assert sorted(shares[0] + shares[1]) == [(group, n) for group in sorted(GROUPS) for n in (1, 2)]
            places = [{partition_of(group.encode(), PARTITIONS) for group, _ in share} for share in shares]
            assert places[0], "each has partitions"
            assert places[1], "each has partitions"
            assert not places[0] & places[1], "no partition is read by both"
        write_all(output, 3)
        assert sorted(seen_by(two, until=12)[0]) == [(group, 3) for group in sorted(GROUPS)]


def test_what_was_not_handled_comes_again_and_what_was_handled_does_not(output: Output) -> None:
    name = new_name()
    output.write(1, 2, 3, 4)

    def fails() -> None:
        with opened(output, name) as follower:
            for delivery in follower:
                if delivery.position == 3:
                    raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    with opened(output, name) as follower:
        assert next(follower).position == 3
    with opened(output, name) as follower:
        assert [delivery.position for delivery in follower] == [4]


def test_a_hole_is_raised_in_a_consumer_group_too(output: Output) -> None:
    name = new_name()
    output.write(2)
    with opened(output, name) as follower:
        with pytest.raises(door.Hole, match="after 0 came 2"):
            next(follower)
        assert next(follower).position == 2
    output.write(3, 5)
    with opened(output, name) as follower:
        assert next(follower).position == 3
        with pytest.raises(door.Hole, match="after 3 came 5"):
            next(follower)


def test_who_begins_at_the_end_has_a_place_there_from_then_on(output: Output) -> None:
    name = new_name()
    output.write(1, 2)
    with opened(output, name, start="end") as follower:
        join(follower)
    output.write(3)
    with opened(output, name, start="end") as follower:
        assert [delivery.position for delivery in follower] == [3]


def test_a_place_that_retention_has_deleted_is_refused_with_the_way_out(output: Output) -> None:
    name = new_name()
    output.write(1, 2)
    with opened(output, name) as follower:
        assert len(list(follower)) == 2
    output.write(3, 4)
    partition = partition_of(b"g", PARTITIONS)
    admin = AdminClient({"bootstrap.servers": output.bootstrap})
    for future in admin.delete_records([TopicPartition(output.topic, partition, 4)]).values():
        future.result()
    with opened(output, name) as follower, pytest.raises(door.Refused, match="--reset-offsets --to-earliest"):
        next(follower)


def test_followers_of_one_group_stand_by_for_each_other(output: Output) -> None:
    name = new_name()
    write_all(output, 1)
    with opened(output, name, group=GROUPS[0]) as follower:
        assert [(one.group, one.position) for one in follower] == [(GROUPS[0], 1)]
    write_all(output, 2)
    with opened(output, name, group=GROUPS[0]) as follower:
        assert [(one.group, one.position) for one in follower] == [(GROUPS[0], 2)]


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"token": "{}"}, "a follower in a consumer group takes no token"),
        ({"consumer_group": ""}, "consumer_group must be a name"),
        ({"consumer_group": "precede.precede.ordered"}, "is the job's own"),
        ({"client": "kafka-python"}, "consumer_group needs client="),
    ],
)
def test_what_cannot_be_a_follower_in_a_consumer_group_is_refused(given: dict[str, Any], sentence: str) -> None:
    arguments: dict[str, Any] = {"consumer_group": "readers", "bootstrap": "localhost:1"} | given
    with pytest.raises(ValueError, match=sentence):
        door.follow(**arguments)
