"""`precede.follow` without Kafka: the consumer's rule, holes, and resuming."""

import json
import re
from decimal import Decimal
from typing import Literal

import pytest

from precede.ingest.follower_token import VERSION, FollowerToken, read_token
from precede.reading.delivery import Delivery
from precede.reading.following import Follower, follow
from precede.reading.ordered_topic import ConsumersRule, OrderedTopic
from precede.udfs.errors import Hole, Refused
from precede.udfs.records.messages import LogRecord


def ordered(position: int, *, group: str = "g", destination: str | None = None) -> bytes:
    record = {
        "group": group,
        "sender": "ann",
        "seq": position,
        "after": [["bob", 0, 1]],
        "data": {"n": position},
        "position": position,
        "order": "s_b",
        "status": "delivered",
        "partition": 0,
        "offset": position,
        "arrived_ms": 100,
        "released_offset": position + 1,
        "released_ms": 350,
    }
    return json.dumps(record | ({} if destination is None else {"destination": destination})).encode()


class Topic:
    """A topic in memory that reads like either Kafka client, with one partition per list of records."""

    def __init__(self, *partitions: list[bytes | None], id_: str = "one") -> None:
        self.partitions = partitions
        self.id = id_
        self.next: dict[int, int] = {}
        self.closed = False

    def starts(self, topic: str, *, at_end: bool, timeout_s: float) -> dict[int, int]:
        return {number: len(records) if at_end else 0 for number, records in enumerate(self.partitions)}

    def topic_id(self, topic: str) -> str:
        return self.id

    def assign(self, topic: str, offsets: dict[int, int]) -> None:
        self.next = dict(offsets)

    def read(self, timeout_s: float) -> list[LogRecord]:
        found = []
        for partition, offset in self.next.items():
            for place, value in enumerate(self.partitions[partition][offset:], start=offset):
                key = None if value is None else re.findall(rb'"group": ?"([^"]*)"', value)[-1]
                found.append(LogRecord(value, key, partition, place, 0))
            self.next[partition] = len(self.partitions[partition])
        return found

    def at_end(self) -> bool:
        return all(offset == len(self.partitions[partition]) for partition, offset in self.next.items())

    def close(self) -> None:
        self.closed = True


def follower(
    topic: Topic,
    *,
    group: str | None = None,
    start: Literal["beginning", "end"] = "beginning",
    token: str | None = None,
    name: str = "t",
    retention: Literal["warn", "raise"] = "raise",
) -> Follower:
    place = None if token is None else read_token(token)
    passes = retention == "warn"
    source = OrderedTopic(topic, topic=name, group=group, start=start, token=place, passes_over_cut=passes)
    return Follower(source, patience_s=0.02, retention=retention)


def positions(following: Follower) -> list[int]:
    return [delivery.position for delivery in following]


def test_each_position_is_delivered_once_however_often_it_stands_there() -> None:
    records: list[bytes | None] = [ordered(n) for n in (1, 2, 2, 1, 3, 2, 4)]
    assert positions(follower(Topic(records))) == [1, 2, 3, 4]


def test_a_hole_is_raised_and_whoever_goes_on_gets_what_comes_behind_it() -> None:
    following = follower(Topic([ordered(1), ordered(4), ordered(5)]))
    assert next(following).position == 1
    with pytest.raises(Hole, match="In group g positions 2 to 3 are missing: after 1 came 4"):
        next(following)
    assert positions(following) == [4, 5]


def test_a_topic_whose_beginning_is_gone_is_a_hole() -> None:
    with pytest.raises(Hole, match="after 0 came 2"):
        next(follower(Topic([ordered(2)])))


def test_who_starts_at_the_end_takes_the_first_position_it_sees_for_granted() -> None:
    topic = Topic([ordered(1), ordered(2)])
    following = follower(topic, start="end")
    assert positions(following) == []
    topic.partitions[0].append(ordered(3))
    assert positions(following) == [3]
    topic.partitions[0].append(ordered(5))
    with pytest.raises(Hole):
        next(following)


def test_positions_are_counted_for_each_group_and_destination() -> None:
    rule = ConsumersRule(from_beginning=True)
    for group, destination in (("g", None), ("h", None), ("g", "ann"), ("g", "bob")):
        delivery = follower(Topic([ordered(1, group=group, destination=destination)])).poll(0)
        assert delivery is not None
        assert rule.admits(delivery)
        assert not rule.admits(delivery)


def test_one_group_can_be_followed_among_many_and_only_its_partition_is_read() -> None:
    topic = Topic([ordered(1, group="k")], [ordered(1), ordered(1, group="h"), ordered(2)])
    assert [delivery.group for delivery in follower(topic, group="g")] == ["g", "g"]
    assert list(topic.next) == [1]


@pytest.mark.parametrize("stop", range(7))
def test_a_follower_goes_on_behind_the_message_its_token_was_taken_at(stop: int) -> None:
    topic = Topic([ordered(n) for n in (1, 2, 3)], [ordered(n, group="h") for n in (1, 2, 3)])
    first = follower(topic)
    seen = [next(first) for _ in range(min(stop, 6))]
    again = follower(topic, token=first.token)
    seen += list(again)
    assert sorted((delivery.group, delivery.position) for delivery in seen) == [
        (group, position) for group in "gh" for position in (1, 2, 3)
    ]


@pytest.mark.parametrize("stop", range(4))
def test_a_follower_of_one_group_finds_a_hole_and_a_repeated_position_across_its_token_too(stop: int) -> None:
    topic = Topic([ordered(n) for n in (1, 2, 2, 1, 3, 5)])
    first = follower(topic, group="g")
    seen = [next(first).position for _ in range(stop)]
    again = follower(topic, group="g", token=first.token)
    seen += [next(again).position for _ in range(3 - stop)]
    with pytest.raises(Hole, match="position 4 is missing: after 3 came 5"):
        next(again)
    assert [*seen, next(again).position] == [1, 2, 3, 5]


def test_a_follower_of_all_groups_takes_the_first_position_after_its_token_for_granted() -> None:
    topic = Topic([ordered(1)])
    first = follower(topic)
    next(first)
    topic.partitions[0].extend([ordered(3), ordered(5)])
    again = follower(topic, token=first.token)
    assert next(again).position == 3
    with pytest.raises(Hole, match="after 3 came 5"):
        next(again)


def test_a_token_grows_with_the_partitions_and_not_with_the_groups() -> None:
    topic = Topic([ordered(1, group=f"group {n}") for n in range(1000)])
    following = follower(topic)
    assert len(list(following)) == 1000
    assert json.loads(following.token) == {"topic": "t", "v": 2, "topic_id": "one", "offsets": {"0": 1000}}


def test_what_a_live_reader_handed_over_already_is_dropped() -> None:
    topic = Topic([ordered(n, group=group) for n in (1, 2, 3) for group in "gh"])
    token = '{"topic":"t","v":2,"offsets":{"0":1},"released":{"0":[3,"g",2]}}'
    again = follower(topic, token=token)
    assert [(one.group, one.position) for one in again] == [("h", 2), ("g", 3), ("h", 3)]
    assert json.loads(again.token)["released"] == {"0": [3, "g", 2]}


def test_a_token_of_a_topic_made_anew_under_the_same_name_is_refused() -> None:
    first = follower(Topic([ordered(1)]))
    next(first)
    with pytest.raises(Refused, match="earlier topic t: that one was deleted"):
        next(follower(Topic([ordered(1), ordered(2)], id_="two"), token=first.token))
    with pytest.raises(Refused, match="The token names partition 1 of t, which has 1"):
        next(follower(Topic([ordered(1)]), token='{"topic":"t","v":2,"offsets":{"1":5}}'))


def test_a_token_of_one_group_resumes_no_other_and_a_token_of_all_resumes_each() -> None:
    topic = Topic([ordered(1), ordered(1, group="h"), ordered(2)])
    first, all_groups = follower(topic, group="g"), follower(topic)
    assert next(first).position == next(all_groups).position == 1
    for group in (None, "h"):
        with pytest.raises(Refused, match="The token belongs to a follower of the group g"):
            follower(topic, group=group, token=first.token)
    assert positions(follower(topic, group="g", token=all_groups.token)) == [2]


def test_what_retention_deleted_behind_a_token_is_told_and_not_passed_over() -> None:
    class Cut(Topic):
        def starts(self, topic: str, *, at_end: bool, timeout_s: float) -> dict[int, int]:
            return {0: 2}

    topic = Cut([None, None, ordered(3)])
    with pytest.raises(Refused, match="Partition 0 of t begins at offset 2, and the token stands at 1"):
        next(follower(topic, token='{"topic":"t","v":2,"offsets":{"0":1}}'))
    of_one = '{"topic":"t","v":2,"offsets":{"0":1},"group":"g","last":[["g",null,1]]}'
    with pytest.raises(Hole, match="position 2 is missing"):
        next(follower(topic, group="g", token=of_one))


def test_what_retention_deleted_is_passed_over_with_one_warning_unless_asked_to_raise() -> None:
    class Cut(Topic):
        def starts(self, topic: str, *, at_end: bool, timeout_s: float) -> dict[int, int]:
            return {0: 2}

    records = [ordered(3), ordered(2, group="h"), ordered(4), ordered(6)]
    with pytest.raises(Hole, match="In group g positions 1 to 2 are missing"):
        next(follower(Cut([None, None, *records])))
    following = follower(Cut([None, None, *records]), retention="warn")
    with pytest.warns(UserWarning, match="The retention of the topic has deleted them") as said:
        assert [(next(following).group, n) for n in range(3)] == [("g", 0), ("h", 1), ("g", 2)]
    assert len(said) == 1
    with pytest.raises(Hole, match="In group g position 5 is missing"):  # no retention took that one
        next(following)
    assert positions(following) == [6]
    of_all = follower(Cut([None, None, *records]), token='{"topic":"t","v":2,"offsets":{"0":1}}', retention="warn")
    with pytest.warns(UserWarning, match="the token stands at 1: its retention has deleted what lies between. Reading"):
        assert next(of_all).position == 3
    of_one = '{"topic":"t","v":2,"offsets":{"0":1},"group":"g","last":[["g",null,1]]}'
    with pytest.warns(UserWarning, match="In group g position 2 is missing"):
        assert next(follower(Cut([None, None, *records]), group="g", token=of_one, retention="warn")).position == 3


def test_a_token_taken_at_a_hole_goes_on_with_the_message_behind_it() -> None:
    topic = Topic([ordered(1), ordered(4)])
    for group in (None, "g"):
        first = follower(topic, group=group)
        next(first)
        with pytest.raises(Hole):
            next(first)
        assert positions(follower(topic, group=group, token=first.token)) == [4]


@pytest.mark.parametrize(
    "token",
    [
        *("", "{}", "7", '"v"', '["other",{},[],true]', '{"topic":"other","v":2}', '{"topic":"t","v":3}'),
        *('{"topic":"t","v":2,"offsets":{"0":-1}}', '{"topic":"t","v":2,"offsets":{"x":1}}', '{"topic":"t","v":true}'),
        *('["t",{},[],true]' + "]" * 9, "[" * 100_000, '{"topic":"t","v":2,"released":{"0":["3"]}}'),
    ],
)
def test_what_is_no_token_of_this_topic_is_refused(token: str) -> None:
    with pytest.raises(Refused, match="token"):
        follower(Topic([]), token=token)


def test_a_topic_that_is_not_there_yet_is_read_from_its_beginning_even_by_who_wants_the_end() -> None:
    topic = Topic()
    following = follower(topic, start="end")
    assert following.poll(0) is None
    topic.partitions = ([ordered(1)],)
    assert positions(following) == [1]


def test_a_delivery_says_all_that_the_record_says() -> None:
    delivery = next(follower(Topic([ordered(1)])))
    assert isinstance(delivery, Delivery)
    assert delivery.id == ("ann", 0, 1)
    assert delivery.after == [("bob", 0, 1)]
    assert delivery.data == {"n": 1}
    assert delivery.held_ms == 250
    assert delivery.record == ordered(1)


def test_tombstones_are_passed_over_and_foreign_records_refused() -> None:
    assert positions(follower(Topic([None, ordered(1)]))) == [1]
    with pytest.raises(Refused, match="offset 1"):
        positions(follower(Topic([ordered(1), b'{"group":"g"}'])))


def test_a_follower_closes_its_reader() -> None:
    topic = Topic([])
    with follower(topic):
        pass
    assert topic.closed


def test_a_start_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="start must be beginning or end, not 'middle'"):
        follow(start="middle")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "fields",
    [b'"sender":"ann","seq":1,"data":"\\ud800"', b'"sender":"ann","seq":{"any":1e999},"kind":"join"'],
)
def test_what_the_contract_lets_through_stops_no_follower(fields: bytes) -> None:
    rest = b'"position":1,"order":"s_b","status":"delivered","partition":0,"offset":0,"arrived_ms":1'
    record = b'{"group":"g",' + fields + b"," + rest + b',"released_offset":0,"released_ms":1}'
    delivery = next(follower(Topic([record, ordered(2)])))
    assert (delivery.record, delivery.sender) == (record, "ann")


def test_lawful_data_of_any_size_is_read() -> None:
    digits = "9" * 5_000
    depth = 990
    values = {digits: Decimal(digits), "-" + digits: Decimal("-" + digits), "[" * depth + digits + "]" * depth: None}
    for text, value in values.items():
        record = ordered(1).replace(b'{"n": 1}', text.encode())
        delivery = next(iter(follower(Topic([record]))))
        found = delivery.data
        for _ in range(depth if value is None else 0):
            (found,) = found
        assert found == (Decimal(digits) if value is None else value)


def since(topic: Topic, position: int, *, group: str = "g") -> Follower:
    """As `follow(since=...)` opens it."""
    token = FollowerToken(topic="t", v=VERSION, group=group, last=[(group, None, position)], from_beginning=True)
    return Follower(OrderedTopic(topic, topic="t", group=group, token=token), patience_s=0.02)


def test_a_position_past_the_end_of_its_group_is_refused_and_one_at_the_end_is_not() -> None:
    topic = Topic([ordered(n) for n in (1, 2, 3)])
    following = since(topic, 3)
    assert positions(following) == []
    topic.partitions[0].append(ordered(4))
    assert positions(following) == [4]
    for group, position, last in (("g", 5, 4), ("h", 1, 0)):
        topic.partitions[0].append(None)
        with pytest.raises(Refused, match=f"The group {group} has no position {position}: the last one is {last}"):
            positions(since(topic, position, group=group))
    assert positions(since(topic, 0, group="h")) == []


def test_a_position_of_a_group_whose_records_are_all_deleted_is_believed() -> None:
    class Cut(Topic):
        def starts(self, topic: str, *, at_end: bool, timeout_s: float) -> dict[int, int]:
            return {0: 3}

    topic = Cut([None, None, None])
    following = since(topic, 41)
    assert positions(following) == []
    topic.partitions[0].append(ordered(42))
    assert positions(following) == [42]
