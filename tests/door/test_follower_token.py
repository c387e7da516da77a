"""The token of a follower, by literal texts: what it covers, and which tokens are refused."""

from __future__ import annotations

import pytest

from precede.ingest.follower_token import Released, read_token
from precede.udfs.errors import Refused

TEXTS = [
    '{"topic":"t","v":2}',
    '{"topic":"t","v":2,"topic_id":"AbC","offsets":{"0":5,"3":0}}',
    '{"topic":"t","v":2,"offsets":{"0":5},"released":{"0":[7,null,null],"1":[7,"g",3]}}',
    '{"topic":"t","v":2,"offsets":{"0":5},"released":{"1":[7,"g",{"ann":3,"bob":1}]}}',
    '{"topic":"t","v":2,"offsets":{"0":5},"group":"g","last":[["g",null,4]],"from_beginning":true}',
]


@pytest.mark.parametrize("text", TEXTS)
def test_a_token_is_written_as_it_was_read(text: str) -> None:
    assert read_token(text).text() == text


def test_what_a_writer_may_leave_out_of_released_may_be_absent() -> None:
    token = read_token('{"topic":"t","v":2,"released":{"0":[7],"1":[7,"g"]}}')
    assert token.released == {0: Released(7), 1: Released(7, "g")}


@pytest.mark.parametrize(
    ("released", "covered"),
    [
        ("[7]", [(6, "z", None, 9)]),
        ('[7,"g"]', [(6, "z", None, 9), (7, "a", None, 1), (7, "a", "bob", 9)]),
        ('[7,"g",3]', [(6, "z", None, 9), (7, "a", None, 1), (7, "g", None, 2), (7, "g", None, 3)]),
        ('[7,"g",{"ann":3}]', [(7, "a", None, 1), (7, "g", "ann", 3)]),
    ],
)
def test_released_covers_what_comes_before_its_place(
    released: str, covered: list[tuple[int, str, str | None, int]]
) -> None:
    token = read_token(f'{{"topic":"t","v":2,"released":{{"1":{released}}}}}')
    for record in covered:
        assert token.covers(1, *record), record
        assert not token.covers(0, *record), "another raw partition"
    for record in [(7, "g", None, 4), (7, "g", "bob", 1), (7, "g", "ann", 4), (7, "h", None, 1), (8, "a", None, 1)]:
        assert not token.covers(1, *record), record


def test_released_moves_behind_each_record_and_covers_that_and_no_later_one() -> None:
    released = [
        (3, "g", None, 1),
        (3, "g", None, 2),
        (5, "a", "ann", 4),
        (5, "a", "bob", 9),
        (5, "a", "ann", 5),
        (5, "h", None, 7),
        (6, "a", None, 1),
    ]
    place = Released(0)
    for count, record in enumerate(released, start=1):
        place = place.with_record(*record)
        assert [place.covers(*other) for other in released] == [n < count for n in range(len(released))], record


def test_a_newer_token_is_refused_with_what_to_do() -> None:
    with pytest.raises(Refused, match="version 3, and this release reads up to version 2.*update this one"):
        read_token('{"topic":"t","v":3,"new":{}}')


def test_a_topic_made_anew_is_refused_where_both_ids_are_known() -> None:
    token = read_token('{"topic":"t","v":2,"topic_id":"one"}')
    token.check_topic("t", "one")
    token.check_topic("t", None)
    read_token('{"topic":"t","v":2}').check_topic("t", "two")
    with pytest.raises(Refused, match="an earlier topic t"):
        token.check_topic("t", "two")
    with pytest.raises(Refused, match="belongs to the topic t, not to u"):
        token.check_topic("u", "one")


def test_a_token_of_one_group_resumes_no_other() -> None:
    token = read_token('{"topic":"t","v":2,"group":"g"}')
    token.check_group("g")
    read_token('{"topic":"t","v":2}').check_group("g")
    for group, wanted in (("h", "it cannot resume the group h"), (None, "it cannot resume all groups")):
        with pytest.raises(Refused, match=wanted):
            token.check_group(group)
