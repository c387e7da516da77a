"""The progress topic, record by record: what each literal record says, and what others wrote into it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from precede.ingest.progress import (
    Owner,
    Progress,
    decode_progress,
    guard_record,
    horizon_record,
    is_owner_of,
    owner_record,
    token_record,
)
from precede.udfs.errors import Refused
from precede.udfs.limits import Limits

LIMITS = (
    b'{"record_bytes_max":524288,"after_max":20,"to_max":100,"seen_max":10000,"held_max":200000,'
    b'"held_bytes_max":67108864,"runs_max":10000,"window":100000,"digests":16}'
)
OWNER = Owner(
    job="ab12",
    transactional_id="precede.t",
    ids=["precede.t"],
    engine="process",
    since_ms=1_700_000_000_000,
    raw_topic="r",
    raw_topic_id="rrr",
    partitions=2,
    order="fifo",
    limits=Limits(),
    partitioner="murmur2",
    rules=2,
    rules_from=7,
    ordered_topic_id="ooo",
    ordered_partitions=3,
    dead_letter_topic_id="ddd",
)
WRITTEN = (
    b'{"job":"ab12","transactional_id":"precede.t","ids":["precede.t"],"engine":"process","since_ms":1700000000000,'
    b'"raw_topic":"r","raw_topic_id":"rrr","partitions":2,"order":"fifo","limits":' + LIMITS + b',"partitioner":'
    b'"murmur2","rules":2,"rules_from":7,"ordered_topic_id":"ooo","ordered_partitions":3,"dead_letter_topic_id":"ddd",'
    b'"state_topic":null,"state_topic_id":null,"v":4}'
)
VERSION_1 = b'{"raw_topic":"r","raw_topic_id":"rrr","order":"s_b","limits":' + LIMITS + b',"job":"old","v":1}'
VERSION_3 = (
    b'{"raw_topic":"r","raw_topic_id":"rrr","order":"fifo","limits":' + LIMITS + b',"job":"old","v":3,"partitions":2,'
    b'"ordered_topic_id":"ooo","ordered_partitions":3,"dead_letter_topic_id":"ddd","partitioner":"murmur2"}'
)


def decode(*records: tuple[bytes | None, bytes | None]) -> Progress:
    return decode_progress(records, "p", "t")


def test_each_record_is_written_as_the_format_says() -> None:
    assert token_record("t", 3, 17) == (b'["t",3]', b'{"next":17,"v":1}')
    assert horizon_record("t", 3, 16) == (b'["t",3,"horizon"]', b'{"offset":16,"v":1}')
    assert owner_record("t", 1, OWNER) == (b'["t",1,"owner"]', WRITTEN)
    assert guard_record("t") == (b'["t"]', b'{"v":4}')


def test_the_newest_record_of_each_partition_counts() -> None:
    found = decode(
        (b'["t",0]', b'{"next":5,"v":1}'),
        (b'["t",1]', b'{"next":6,"v":1}'),
        (b'["t",0,"horizon"]', b'{"offset":3,"v":1}'),
        (b'["t",0]', b'{"next":9,"v":1}'),
        (b'["t",0,"horizon"]', b'{"offset":4,"v":1}'),
        (b'["t",1,"owner"]', WRITTEN),
        (b'["t",1,"owner"]', WRITTEN.replace(b"ab12", b"cd34")),
    )
    assert found.token == {0: 9, 1: 6}
    assert found.horizon == {0: 4}
    assert {at: owner.job for at, owner in found.owners.items()} == {1: "cd34"}
    assert found.any_owner == found.owners[1]


def test_an_empty_topic_says_nothing() -> None:
    assert decode() == Progress({}, {}, {}, {}, is_guarded=False)
    assert decode().any_owner is None


def test_every_transactional_id_that_was_ever_named_is_known_though_a_newer_record_forgot_it() -> None:
    found = decode(
        (b'["t",0,"owner"]', WRITTEN.replace(b'"ids":["precede.t"]', b'"ids":["precede.t.0","precede.t.1"]')),
        (b'["t",0,"owner"]', WRITTEN.replace(b'"transactional_id":"precede.t"', b'"transactional_id":"precede.t.2"')),
        (b'["t",1,"owner"]', WRITTEN),
    )
    assert found.ids == {0: {"precede.t", "precede.t.0", "precede.t.1", "precede.t.2"}, 1: {"precede.t"}}


def test_the_owner_that_an_older_release_wrote_stands_for_every_partition_under_rules_1() -> None:
    found = decode((b'["t"]', VERSION_3), (b'["t",0]', b'{"next":5,"v":1}'))
    assert found.owners.keys() == found.ids.keys() == {0, 1}
    for partition in (0, 1):
        owner = found.owners[partition]
        assert (owner.job, owner.order, owner.partitioner, owner.ordered_partitions) == ("old", "fifo", "murmur2", 3)
        assert (owner.rules, owner.rules_from, owner.since_ms) == (1, 0, None)
        assert (owner.transactional_id, owner.ids) == ("precede.t", ["precede.t"])
    assert not found.is_guarded


@pytest.mark.parametrize("tokens", [0, 3])
def test_an_owner_of_version_1_does_not_say_how_many_partitions_there_are(tokens: int) -> None:
    found = decode((b'["t"]', VERSION_1), *(token_record("t", at, 5) for at in range(tokens)))
    assert found.owners.keys() == set(range(tokens or 1))
    owner = found.owners[0]
    assert (owner.partitions, owner.partitioner, owner.ordered_topic_id) == (None, None, None)


def test_the_guard_takes_the_place_of_the_older_owner() -> None:
    claimed = decode((b'["t"]', VERSION_3), guard_record("t"), owner_record("t", 0, OWNER))
    assert claimed.is_guarded
    assert claimed.owners == {0: OWNER}
    crashed = decode((b'["t"]', VERSION_3), owner_record("t", 0, OWNER))
    assert not crashed.is_guarded
    assert [crashed.owners[at].job for at in (0, 1)] == ["ab12", "old"]


def test_what_was_removed_is_forgotten_as_the_cleaner_of_kafka_would() -> None:
    kept: list[Any] = [
        owner_record("t", 0, OWNER),
        token_record("t", 0, 5),
        horizon_record("t", 0, 4),
        guard_record("t"),
    ]
    gone = decode(*kept, *((key, None) for key, _ in kept))
    assert (gone.owners, gone.token, gone.horizon) == ({}, {}, {})
    assert decode((b'["t"]', VERSION_3), (b'["t"]', None)).owners == {}


@pytest.mark.parametrize(
    "key",
    [
        None,
        b"",
        b"\xff",
        b"not JSON",
        b"{}",
        b"[]",
        b'"t"',
        b'["another"]',
        b'["another",0]',
        b'["another",0,"owner"]',
        b'["t","0"]',
        b'["t",0,"something new"]',
        pytest.param(b"[" * 5_000, id="deep"),
    ],
)
def test_records_of_other_streams_and_other_programs_are_passed_over(key: bytes | None) -> None:
    assert decode((key, b"nonsense"), (key, None), token_record("t", 0, 5)).token == {0: 5}


@pytest.mark.parametrize("key", [b'["t"]', b'["t",0]', b'["t",0,"horizon"]', b'["t",0,"owner"]'])
@pytest.mark.parametrize(
    "value",
    [b"nonsense", b"\xff", b"[]", b'{"v":1}', b'{"v":1,"next":"all"}', pytest.param(b"[" * 5_000, id="deep")],
)
def test_a_record_under_a_key_of_the_stream_that_precede_did_not_write_is_refused(key: bytes, value: bytes) -> None:
    with pytest.raises(Refused, match=r"a record that precede did not write .*take a new ordered_topic"):
        decode((key, value))


@pytest.mark.parametrize(
    ("key", "newest"), [(b'["t"]', 4), (b'["t",0]', 1), (b'["t",0,"horizon"]', 1), (b'["t",0,"owner"]', 4)]
)
@pytest.mark.parametrize("version", [None, 0, "1", [1], 9])
def test_a_version_that_this_release_does_not_know_is_refused(key: bytes, newest: int, version: Any) -> None:
    with pytest.raises(Refused) as refused:
        decode((key, json.dumps({"v": version}).encode()))
    assert str(refused.value) == f"The topic p was written by another precede (version {version}, not {newest})."


@pytest.mark.parametrize(
    ("key", "value", "whether"),
    [
        (b'["t",1,"owner"]', WRITTEN, True),
        (b'["t",1,"owner"]', WRITTEN.replace(b"ab12", b"mine"), False),
        (b'["t"]', VERSION_3, True),
        (b'["another",1,"owner"]', WRITTEN, False),
        (b'["t",1]', b'{"next":5,"v":1}', False),
        (b'["t",1,"owner"]', None, False),
        (None, None, False),
    ],
)
def test_the_record_of_another_owner_is_told_without_reading_all_of_it(
    key: bytes | None, value: bytes | None, *, whether: bool
) -> None:
    assert is_owner_of(key, value, "t", unless="mine") == whether
