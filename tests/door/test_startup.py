"""Where a member begins, on a topic in memory: all, the last n, nothing, after a position, or where it stopped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import pytest

from precede.ingest.producer import Publisher
from precede.ingest.sender_state import KnownSender, Memory, SenderState
from precede.member.publishing import MemberPublisher
from precede.member.startup import Log, Startup, search
from precede.reading.following import Follower
from precede.reading.from_delta import DeltaHistory
from precede.reading.ordered_topic import OrderedTopic
from precede.udfs.errors import Refused
from tests.door.test_delta_history import write
from tests.door.test_following import Topic, ordered


class Newcomer:
    """A member that has opened and sends nothing, so that its publisher is never used."""

    def __init__(
        self,
        topic: Topic,
        *,
        history: Literal["all", "none"] | int = "all",
        since: int | None = None,
        token: str | None = None,
        delta: Path | None = None,
    ) -> None:
        known = KnownSender("log", "g", "bob", token=token)
        self.publisher = MemberPublisher(SenderState(Path("unused"), Memory()), known, Publisher("localhost:1"), None)
        past = None if delta is None else DeltaHistory(delta, "g")
        self.startup = Startup(
            self.publisher, topic, Log("localhost:1", "raw", "t", "progress", "murmur2"), lambda: past
        )
        place = self.startup.find_place(history=history, since=since)
        self.position = place.position
        self.older = [delivery.position for delivery in place.older]
        source = OrderedTopic(topic, topic="t", group="g", token=place.token)
        self.follower = Follower(source, patience_s=0.02)

    def handed(self) -> list[int]:
        return [delivery.position for delivery in self.follower]


def topic(*positions: int) -> Topic:
    """These positions of group g, between records of another group; both belong in partition 1 of two."""
    return Topic([], [record for at in positions for record in (ordered(at, group="h"), ordered(at))])


@pytest.mark.parametrize(
    ("start", "handed"),
    [
        ({}, [1, 2, 3, 4, 5]),
        ({"history": "none"}, []),
        ({"history": 0}, []),
        ({"history": 2}, [4, 5]),
        ({"history": 9}, [1, 2, 3, 4, 5]),
        ({"since": 0}, [1, 2, 3, 4, 5]),
        ({"since": 3}, [4, 5]),
        ({"since": 3, "history": "none"}, [4, 5]),
        ({"since": 5}, []),
    ],
)
def test_a_newcomer_begins_where_it_says(start: dict[str, Any], handed: list[int]) -> None:
    bob = Newcomer(topic(1, 2, 3, 4, 5), **start)
    assert bob.handed() == handed
    known = [seq for seq in range(1, 6) if bob.publisher.speaker.knowledge.has(("ann", 0, seq))]
    assert known == [seq for seq in range(1, 6) if seq not in handed], "what it is not handed it may answer at once"


def test_a_position_past_the_end_is_refused_unless_the_topic_may_have_deleted_it(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="since=9 is past the end of g, which has 5 positions in t"):
        Newcomer(topic(1, 2, 3, 4, 5), since=9)
    with pytest.raises(Refused, match="which has 0 positions"):
        Newcomer(topic(), since=1)
    write(tmp_path, ordered(1), ordered(2))
    assert Newcomer(topic(), since=2, delta=tmp_path).handed() == []
    with pytest.raises(Refused, match="which has 2 positions"):
        Newcomer(topic(), since=3, delta=tmp_path)


def test_who_was_handed_nothing_yet_begins_at_the_beginning_again() -> None:
    token = Newcomer(topic(1, 2)).follower.token
    assert Newcomer(topic(1, 2, 3), token=token).handed() == [1, 2, 3]


def test_who_was_here_before_goes_on_behind_what_it_was_handed_whatever_a_newcomer_would_get() -> None:
    bob = Newcomer(topic(1, 2, 3), history="none")
    assert bob.handed() == []
    again = Newcomer(topic(1, 2, 3, 4), token=bob.follower.token)
    assert (again.handed(), again.follower.token) == ([4], again.follower.token)
    last = Newcomer(topic(1, 2, 3, 4, 5), token=again.follower.token, history=3)
    assert (last.position, last.handed()) == (4, [5])


def test_the_last_n_count_messages_and_not_what_else_has_a_position() -> None:
    join = json.dumps(json.loads(ordered(3)) | {"kind": "join"}).encode()
    records: list[bytes | None] = [ordered(1), ordered(2), join, ordered(4)]
    assert Newcomer(Topic(records), history=2).handed() == [2, 3, 4]


def test_where_the_topic_has_nothing_delta_has_it_and_its_end_is_where_the_topic_goes_on(tmp_path: Path) -> None:
    write(tmp_path, *(ordered(position) for position in range(1, 6)))
    starts: list[tuple[dict[str, Any], list[int]]] = [
        ({}, [1, 2, 3, 4, 5]),
        ({"history": 2}, [4, 5]),
        ({"history": "none"}, []),
        ({"since": 3}, [4, 5]),
    ]
    for start, older in starts:
        bob = Newcomer(topic(), delta=tmp_path, **start)
        assert bob.older == older
        assert bob.position == 5 - len(older)


def test_the_last_n_may_begin_before_the_topic_does(tmp_path: Path) -> None:
    write(tmp_path, *(ordered(position) for position in range(1, 5)))
    bob = Newcomer(topic(4, 5), history=3, delta=tmp_path)
    assert bob.position == 2  # Delta fills the hole before the topic's first record when reading reaches it


def test_each_look_at_the_topic_reads_on_where_the_last_one_ended() -> None:
    """As while a join is waited for, up to a minute."""
    records = topic(1, 2, 3)
    assigned: list[int] = []

    class Counting(Topic):
        def assign(self, topic: str, offsets: dict[int, int]) -> None:
            assigned.extend(offsets.values())
            super().assign(topic, offsets)

    counting = Counting([], records.partitions[1])
    bob = Newcomer(counting)
    assigned.clear()
    bob.startup._learn_more()
    bob.startup._learn_more()
    assert assigned == [6, 6]


def test_a_message_is_found_by_its_id_wherever_in_the_topic_it_stands() -> None:
    found = search(topic(1, 2, 3), "t", "g", None, ("ann", 0, 2))
    assert found is not None
    assert (found.position, found.group) == (2, "g")
    assert search(topic(1, 2, 3), "t", "g", None, ("ann", 0, 4)) is None
