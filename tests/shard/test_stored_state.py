"""The state of a shard and its groups as another run stored them: this one continues it, byte for byte."""

from __future__ import annotations

import base64
from functools import cache
from typing import Any

import pytest

from precede.udfs.holdback import Holdback
from precede.udfs.limits import Limits
from precede.udfs.orders import ORDERS
from precede.udfs.shard import Shard, decode_state
from tests.fixtures import stored
from tests.records import Row
from tests.shard.test_shard import call, records_of

versions = pytest.mark.parametrize("version", stored.having("shard.json.gz"))


@cache
def fixture(version: str) -> dict[str, Any]:
    return stored.read(version, "shard.json.gz")


def rows(version: str, part: str) -> list[Row]:
    """The fixture's rows in Spark's form."""
    return [
        (None if key is None else key.encode(), None if value is None else value.encode(), partition, offset, ms)
        for key, value, partition, offset, ms in fixture(version)[part]
    ]


def blob(version: str) -> bytes:
    return base64.b64decode(fixture(version)["blob"])


def kernel_with(blobs: dict[bytes, bytes]) -> Holdback:
    kernel = Holdback()
    kernel.load(dict(blobs))
    return kernel


def told(kernel: Holdback) -> dict[str, list[Any]]:
    """A kernel's output in the fixture's form."""
    return {
        "ordered": [value.decode() for value in kernel.ordered],
        "dead": [value.decode() for value in kernel.dead],
        "own": [[one.topic, one.key.decode(), one.value.decode(), one.offset] for one in kernel.own],
    }


def expected(version: str) -> dict[str, list[Any]]:
    """What that run made of the rest."""
    return {name: fixture(version)[name] for name in ("ordered", "dead", "own")}


@versions
def test_the_fixture_holds_something_in_every_order_and_has_fences_keys_gaps_and_destinations(version: str) -> None:
    groups = {one[0] for one in fixture(version)["held"]}
    assert all(groups & {order, f"{order} in motion", f"closed {order}"} for order in ORDERS)
    assert {f"{order} with keys" for order in ORDERS} - {"total with keys"} <= groups
    assert {one[4] for one in fixture(version)["held"] if one[0] == "causal_p2p in motion"} >= {"ann", "bob"}
    kernel = kernel_with(decode_state(blob(version)).groups)
    assert {gap.group for gap in kernel.gaps() if gap.asked} >= {"fifo", "causal_p2p", "lamport with keys"}
    assert any('"code":"fenced"' in letter for letter in fixture(version)["dead"])
    assert any('"code":"equivocation"' in letter for letter in fixture(version)["dead"])


@versions
def test_what_the_groups_hold_is_what_they_held_when_stored(version: str) -> None:
    kernel = kernel_with(decode_state(blob(version)).groups)
    found = [[one.group, one.sender, one.epoch, one.seq, one.destination] for one in kernel.held()]
    assert found == fixture(version)["held"]


@versions
def test_the_kernel_goes_on_with_stored_groups_as_that_run_did(version: str) -> None:
    kernel = kernel_with(decode_state(blob(version)).groups)
    for key, value, partition, offset, ms in rows(version, "rows_after"):
        kernel.receive(value, key, partition, offset, ms)
    now = told(kernel)
    assert now == expected(version)
    assert len(list(kernel.held())) == fixture(version)["still_held"]


@versions
@pytest.mark.parametrize("batches", [1, 20])
def test_a_shard_goes_on_with_a_stored_state_as_that_run_did(version: str, batches: int) -> None:
    state: bytes | None = blob(version)
    following = rows(version, "rows_after")
    size = -(-len(following) // batches)
    packed: list[tuple] = []  # type: ignore[type-arg]
    for at in range(0, len(following), size):
        more, state, _ = call(Shard("s_b", Limits()), following[at : at + size], state)
        packed += more
    records = records_of(packed)
    assert [value.decode() for one in records for value in one.ordered] == fixture(version)["ordered"]
    dead = [letter.decode() for one in records for letter in one.dead]
    assert dead == expected(version)["dead"]
    assert sorted(one.value.decode() for record in records for one in record.own) == sorted(
        own[2] for own in fixture(version)["own"]
    )
    whole, _, _ = call(Shard("s_b", Limits()), [*rows(version, "rows_before"), *following], None)
    assert (records[-1].held, records[-1].waiting) == (records_of(whole)[-1].held, records_of(whole)[-1].waiting)


@versions
def test_the_whole_log_in_one_go_gives_what_two_runs_gave(version: str) -> None:
    kernel = Holdback()
    for key, value, partition, offset, ms in rows(version, "rows_before"):
        kernel.receive(value, key, partition, offset, ms)
    kernel.clear()
    for key, value, partition, offset, ms in rows(version, "rows_after"):
        kernel.receive(value, key, partition, offset, ms)
    now = told(kernel)
    assert now == expected(version)
