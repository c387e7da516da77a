"""What the log says about a group, whatever else was published into it."""

from __future__ import annotations

import pytest
from msgspec import json

from precede.ingest.epochs import Epochs, as_create, check_epoch
from precede.udfs.errors import Refused
from precede.udfs.records.messages import EPOCH_MAX
from precede.udfs.records.signatures import sign
from tests.signing import private, public, public_bytes, publics


def record(by: str | None = None, **fields: object) -> bytes:
    """A record of group g, signed by the key derived from this word."""
    value = json.encode({"group": "g", **fields})
    return value if by is None else sign(value, private(by))


def said(sender: str, epoch: int, by: str | None = None) -> bytes:
    return record(by, sender=sender, epoch=epoch, seq=1, after=[])


def largest(*records: bytes, sender: str = "ann", key: str | None = None) -> int:
    epochs = Epochs(sender, None if key is None else public_bytes(key))
    for value in records:
        epochs.add(value)
    return epochs.largest


WITH_KEYS = record(kind="create", members=["ann", "bob"], options={"keys": publics("ann", "bob", "precede")})


@pytest.mark.parametrize("data", [b'"\\ud800"', b"[" * 1_000 + b"]" * 1_000, b"1e400"], ids=lambda data: data[:8])
def test_no_message_of_a_sender_is_overlooked_for_what_it_carries(data: bytes) -> None:
    assert largest(b'{"group":"g","sender":"ann","epoch":4,"seq":1,"data":%b}' % data) == 4


@pytest.mark.parametrize("value", [b"", b"\xff", b'{"sender":"\xff"}', b'{"sender":' + b"[" * 5_000, b"[]"])
def test_what_is_no_record_tells_of_no_epoch(value: bytes) -> None:
    assert largest(value) == -1
    assert as_create(value) is None


@pytest.mark.parametrize("epoch", [-3, EPOCH_MAX + 1, 10**30])
def test_an_epoch_that_no_record_may_have_does_not_count(epoch: int) -> None:
    assert largest(said("ann", 2), said("ann", epoch)) == 2


def test_in_a_group_with_keys_only_what_the_sender_has_signed_counts() -> None:
    forged = [said("ann", EPOCH_MAX), said("ann", 7, "bob"), said("ann", 7, "mallory")]
    for key in ("ann", None):
        assert largest(WITH_KEYS, *forged, key=key) == -1
        assert largest(WITH_KEYS, said("ann", 3, "ann"), *forged, key=key) == 3


def test_a_key_that_was_changed_counts_for_all_its_epochs_and_so_does_the_one_before() -> None:
    rotated = record("ann", kind="join", sender="ann", epoch=4, key=public("ann2"))
    log = [WITH_KEYS, said("ann", 3, "ann"), rotated, said("ann", 5, "ann2")]
    for heard, count in ((log[:2], 3), (log[:3], 4), (log, 5)):
        assert largest(*heard, key="ann2") == count
    replaced = record("precede", kind="join", sender="ann", epoch=6, key=public("ann3"))
    assert largest(*log, replaced, key="ann3") == 5, "the service's new epoch is meant to be used"
    assert largest(*log, replaced, said("ann", 7, "ann3"), key="ann3") == 7


def test_a_join_that_nobody_entitled_has_signed_brings_no_key() -> None:
    planted = record("mallory", kind="join", sender="ann", epoch=EPOCH_MAX - 1, key=public("mallory"))
    assert largest(WITH_KEYS, planted, said("ann", EPOCH_MAX, "mallory"), key="ann") == -1


def test_keys_are_those_of_the_first_record_alone() -> None:
    planted = record(kind="create", members=["ann"], options={"keys": publics("mallory")})
    assert largest(said("ann", 2), planted, said("ann", 5)) == 5
    assert largest(WITH_KEYS, planted, said("ann", 5, "mallory"), key="ann") == -1
    assert largest(b"what nobody can read", WITH_KEYS, said("ann", 5)) == -1


def test_in_a_group_without_keys_no_epoch_that_may_be_the_senders_own_is_used_again() -> None:
    assert largest(said("ann", 2), said("ann", 4), key="ann") == 4


def test_one_record_cannot_take_all_epochs_from_whoever_signs() -> None:
    planted = said("ann", EPOCH_MAX)
    assert largest(planted, key="ann") == -1
    assert largest(said("ann", 2, "ann"), planted, key="ann") == 2


def test_who_has_no_epoch_left_is_told_what_to_do_and_sends_nothing() -> None:
    assert largest(said("ann", EPOCH_MAX)) == EPOCH_MAX
    with pytest.raises(Refused, match="under another name"):
        check_epoch(EPOCH_MAX + 1, "g", "ann")
    assert check_epoch(EPOCH_MAX, "g", "ann") == EPOCH_MAX


def test_only_a_create_tells_how_a_group_was_created() -> None:
    found = as_create(b'{"group":"g","kind":"create","options":{"order":"causal"},"members":["ann"]}')
    assert found is not None
    assert (found.options.order, found.members) == ("causal", ["ann"])
    for other in (
        b'{"group":"g","kind":"heartbeat","sender":"ann","seq":1}',
        b'{"group":"g","kind":"join","sender":"ann"}',
    ):
        assert as_create(other) is None
