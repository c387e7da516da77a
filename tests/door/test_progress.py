"""The progress topic, record by record: what each literal record says, and what others wrote into it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from precede.ingest.progress import (
    Owner,
    Progress,
    decode_progress,
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
    state_topic="s",
    state_topic_id="sss",
)
WRITTEN = (
    b'{"job":"ab12","transactional_id":"precede.t","ids":["precede.t"],"engine":"process","since_ms":1700000000000,'
    b'"raw_topic":"r","raw_topic_id":"rrr","partitions":2,"order":"fifo","limits":' + LIMITS + b',"partitioner":'
    b'"murmur2","rules":2,"rules_from":7,"ordered_topic_id":"ooo","ordered_partitions":3,"dead_letter_topic_id":"ddd",'
    b'"state_topic":"s","state_topic_id":"sss","v":4}'
)


def decode(*records: tuple[bytes | None, bytes | None]) -> Progress:
    return decode_progress(records, "p", "t")


def test_each_record_is_written_as_the_format_says() -> None:
    assert token_record("t", 3, 17) == (b'["t",3]', b'{"next":17,"v":1}')
    assert horizon_record("t", 3, 16) == (b'["t",3,"horizon"]', b'{"offset":16,"v":1}')
    assert owner_record("t", 1, OWNER) == (b'["t",1,"owner"]', WRITTEN)


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
    assert decode() == Progress({}, {}, {}, {})
    assert decode().any_owner is None


def test_every_transactional_id_that_was_ever_named_is_known_though_a_newer_record_forgot_it() -> None:
    found = decode(
        (b'["t",0,"owner"]', WRITTEN.replace(b'"ids":["precede.t"]', b'"ids":["precede.t.0","precede.t.1"]')),
        (b'["t",0,"owner"]', WRITTEN.replace(b'"transactional_id":"precede.t"', b'"transactional_id":"precede.t.2"')),
        (b'["t",1,"owner"]', WRITTEN),
    )
    assert found.ids == {0: {"precede.t", "precede.t.0", "precede.t.1", "precede.t.2"}, 1: {"precede.t"}}


def test_what_was_removed_is_forgotten_as_the_cleaner_of_kafka_would() -> None:
    kept: list[Any] = [
        owner_record("t", 0, OWNER),
        token_record("t", 0, 5),
        horizon_record("t", 0, 4),
    ]
    gone = decode(*kept, *((key, None) for key, _ in kept))
    assert (gone.owners, gone.token, gone.horizon) == ({}, {}, {})


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
        b'["t"]',
        b'["another",0]',
        b'["another",0,"owner"]',
        b'["t","0"]',
        b'["t",0,"something new"]',
        pytest.param(b"[" * 5_000, id="deep"),
    ],
)
def test_records_of_other_streams_and_other_programs_are_passed_over(key: bytes | None) -> None:
    assert decode((key, b"nonsense"), (key, None), token_record("t", 0, 5)).token == {0: 5}


@pytest.mark.parametrize("key", [b'["t",0]', b'["t",0,"horizon"]', b'["t",0,"owner"]'])
@pytest.mark.parametrize(
    "value",
    [b"nonsense", b"\xff", b"[]", b'{"v":1}', b'{"v":1,"next":"all"}', pytest.param(b"[" * 5_000, id="deep")],
)
def test_a_record_under_a_key_of_the_stream_that_precede_did_not_write_is_refused(key: bytes, value: bytes) -> None:
    with pytest.raises(Refused, match=r"a record that precede did not write .*take a new ordered_topic"):
        decode((key, value.replace(b'"v":1', b'"v":4') if b"owner" in key else value))


@pytest.mark.parametrize(("key", "newest"), [(b'["t",0]', 1), (b'["t",0,"horizon"]', 1), (b'["t",0,"owner"]', 4)])
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
        (b'["t"]', WRITTEN, False),
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
