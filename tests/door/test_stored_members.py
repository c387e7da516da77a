"""The state file of members from an older version: each continues with its epoch, seq and stamps."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from precede.ingest import sender_state
from precede.ingest.follower_token import read_token
from precede.ingest.producer import Publisher
from precede.member.publishing import MemberPublisher
from precede.udfs.orders import ORDERS
from tests.fixtures import stored
from tests.signing import private

versions = pytest.mark.parametrize("version", stored.having("members.json"))


@cache
def fixture(version: str) -> dict[str, Any]:
    return stored.read(version, "members.json")


@pytest.fixture
def path(version: str, tmp_path: Path) -> Path:
    """A writable copy of the state file."""
    path = tmp_path / "members.json"
    path.write_text(fixture(version)["file"])
    return path


class Taking(Publisher):
    """Keeps published records."""

    def __init__(self) -> None:
        self.taken: list[str] = []

    def publish(self, group: str, value: bytes) -> None:
        self.taken.append(value.decode())

    def flush(self, check: object = None) -> None:
        pass


def without_the_hour(records: list[str]) -> list[str]:
    """The physical clock shows when the test runs."""
    return [re.sub(r'"clock_ms":\d+', '"clock_ms":0', record) for record in records]


@versions
def test_each_member_says_next_what_the_older_version_would_have_said(version: str, path: Path) -> None:
    with sender_state.opened(path) as kept:
        assert {known.group for known in kept.memory.senders} == set(ORDERS) | {"causal with keys", "interrupted"}
        for known in kept.memory.senders:
            taking = Taking()
            key = private("ann") if known.group == "causal with keys" else None
            to = ["bob"] if known.group == "causal_p2p" else None
            publisher = MemberPublisher(kept, known, taking, key)
            publisher.send(b'"And on."', [("ann", known.epoch, known.seq)], to, None)
            assert without_the_hour(taking.taken) == without_the_hour(fixture(version)["says"][known.group])


@versions
def test_what_kafka_never_confirmed_goes_out_first_as_the_same_bytes(version: str, path: Path) -> None:
    with sender_state.opened(path) as kept:
        (known,) = [one for one in kept.memory.senders if one.group == "interrupted"]
        pending, taking = known.pending, Taking()
        assert pending is not None
        assert MemberPublisher(kept, known, taking, None).send(b'"three"', [], None, None) == ("ann", 3, 3)
        assert taking.taken[0] == pending
        assert len(taking.taken) == 2


@versions
def test_what_a_member_knows_of_its_group_and_how_far_it_has_read_is_still_known(version: str, path: Path) -> None:
    with sender_state.opened(path) as kept:
        for known in [one for one in kept.memory.senders if one.group != "interrupted"]:
            publisher = MemberPublisher(kept, known, Taking(), None)
            assert publisher.speaker.order.name == known.group.removesuffix(" with keys")
            assert publisher.speaker.knowledge.is_in("bob", 0)
            assert publisher.speaker.knowledge.has(("bob", 0, 1))
            place = read_token(known.token or "")
            assert max(last for group, _, last in place.last if group == known.group) >= 3
