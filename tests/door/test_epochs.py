"""What the log tells of a group, whatever else anybody has published into it."""

from __future__ import annotations

import pytest

from ingest.epochs import as_create, epoch_of


@pytest.mark.parametrize("data", [b'"\\ud800"', b"[" * 1_000 + b"]" * 1_000, b"1e400"], ids=lambda data: data[:8])
def test_no_message_of_a_sender_is_overlooked_for_what_it_carries(data: bytes) -> None:
    assert epoch_of(b'{"group":"g","sender":"ann","epoch":4,"seq":1,"data":%b}' % data, "ann") == 4


@pytest.mark.parametrize("value", [b"", b"\xff", b'{"sender":"\xff"}', b'{"sender":' + b"[" * 5_000, b"[]"])
def test_what_is_no_record_tells_of_no_epoch(value: bytes) -> None:
    assert epoch_of(value, "ann") == -1
    assert as_create(value) is None


def test_only_a_create_tells_how_a_group_was_created() -> None:
    found = as_create(b'{"group":"g","kind":"create","options":{"order":"causal"},"members":["ann"]}')
    assert found is not None
    assert (found.options.order, found.members) == ("causal", ["ann"])
    for other in (
        b'{"group":"g","kind":"heartbeat","sender":"ann","seq":1}',
        b'{"group":"g","kind":"join","sender":"ann"}',
    ):
        assert as_create(other) is None
