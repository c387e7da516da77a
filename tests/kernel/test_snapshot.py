"""A group's state as one versioned blob: exact, small, and readable for as long as precede lives."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from tests.kernel.feeding import Tale, feed, parsed
from udfs.holdback import Holdback
from udfs.limits import Limits
from udfs.snapshot import READERS, VERSION, UnreadableBlob
from udfs.wire import encode_message

FIXTURES = Path(__file__).parent / "fixtures"


def story() -> list[dict[str, Any]]:
    """Records that put everything a group can remember into its state, for each order."""
    control: list[dict[str, Any]] = [
        {"kind": "join", "sender": "cem", "epoch": 2},
        {"sender": "ann", "seq": 1, "after": [], "data": "grüß dich"},
        {"sender": "ann", "seq": 4, "after": [], "data": 1},
        {"sender": "bob", "seq": 1, "after": [["ann", 0, 4]]},
        {"sender": "bob", "seq": 3, "after": [["ann", 0, 9]]},
        {"sender": "bob", "seq": 4, "after": [["bob", 0, 3]]},
        {"sender": "cem", "epoch": 2, "seq": 2, "after": [["bob", 0, 4]]},
        {"sender": "dil", "seq": 1, "after": []},
        {"sender": "ann", "seq": 6, "after": [["ann", 0, 6]]},
        {"kind": "abandon", "ids": [["ann", 0, 2, 2], ["eva", 1, 2, 3]]},
        {"kind": "leave", "sender": "ann", "last": 12},
    ]
    records = []
    for order in ("s_b", "fifo", "total"):
        options = {"order": order, "closed": True, "window": 50, "digests": 3}
        begin = {"kind": "create", "options": options, "members": ["ann", "bob"]}
        records += [{"group": f"closed {order}", **one} for one in [begin, *control]]
        options = {"order": order}
        records += [{"group": order, **one} for one in [{"kind": "create", "options": options}, *control]]
    return [*records, *({"group": "untouched by create", **one} for one in control)]


def sequel() -> list[dict[str, Any]]:
    """What follows it: copies, equivocations, what was missing, what is fenced, given up or refused."""
    groups = dict.fromkeys(one["group"] for one in story())
    records: list[dict[str, Any]] = [
        {"sender": "ann", "seq": 1, "after": [], "data": "grüß dich"},
        {"sender": "ann", "seq": 4, "after": [], "data": 2},
        {"sender": "ann", "seq": 2, "after": []},
        {"sender": "eva", "epoch": 1, "seq": 2, "after": []},
        {"sender": "eva", "epoch": 1, "seq": 1, "after": []},
        {"sender": "bob", "seq": 2, "after": [["ann", 0, 6]]},
        {"sender": "ann", "seq": 3, "after": []},
        {"sender": "ann", "seq": 9, "after": []},
        {"sender": "cem", "epoch": 1, "seq": 1, "after": []},
        {"sender": "cem", "epoch": 2, "seq": 1, "after": []},
        {"kind": "join", "sender": "dil"},
        {"sender": "ann", "seq": 13, "after": []},
        {"sender": "bob", "seq": 60, "after": []},
        {"kind": "create"},
    ]
    return [{"group": group, **one} for group in groups for one in records]


def as_log(records: list[dict[str, Any]], first: int = 0) -> list[tuple[bytes, bytes, int, int, int]]:
    return [
        (json.dumps(one, ensure_ascii=False).encode(), one["group"].encode(), 0, at, 1_700_000_000_000 + at)
        for at, one in enumerate(records, start=first)
    ]


def test_the_blob_names_its_version_in_its_first_byte() -> None:
    (blob,) = Tale().say("A1").kernel.dump().values()
    assert blob[0] == VERSION


def test_a_blob_of_version_1_loads_and_goes_on_as_if_it_had_never_been_one() -> None:
    stored = json.loads((FIXTURES / "snapshot-1.json").read_text())
    kernel = Holdback()
    kernel.load({key.encode(): base64.b64decode(blob) for key, blob in stored["blobs"].items()})
    assert [one.offset for one in kernel.held()] == stored["held"]
    for record in as_log(sequel(), first=len(story())):
        kernel.receive(*record)
    whole = feed(as_log(story()) + as_log(sequel(), first=len(story())))
    before = feed(as_log(story()))
    assert kernel.ordered == whole.ordered[len(before.ordered) :]
    assert kernel.dead == whole.dead[len(before.dead) :]
    assert kernel.duplicates == whole.duplicates - before.duplicates


def test_the_story_of_the_fixture_leaves_every_kind_of_state() -> None:
    outcome = feed(as_log(story()))
    assert {one["code"] for one in parsed(outcome.dead)} == {"self_parent"}
    assert any(one.silent for one in outcome.held)
    assert any(one.missing for one in outcome.held)
    assert any(one["status"] == "abandoned" for one in parsed(outcome.ordered))


@pytest.mark.parametrize("version", [0, max(READERS) + 1, 255])
def test_a_blob_of_a_version_it_does_not_know_is_refused_in_a_sentence(version: int) -> None:
    blobs = {key: bytes([version]) + blob[1:] for key, blob in Tale().say("A1").kernel.dump().items()}
    tale = Tale()
    tale.kernel.load(blobs)
    with pytest.raises(UnreadableBlob, match=f"version {version}"):
        tale.say("A2")


def test_what_was_refused_leaves_no_state() -> None:
    assert Tale().raw(b"nonsense").take(sender="A", seq=1).kernel.dump() == {}


def test_groups_that_are_not_touched_keep_their_blob_as_it_is() -> None:
    kernel = Holdback()
    untouched = b"\xffnot even a blob"
    kernel.load({b"other": untouched})
    kernel.receive(encode_message("g", "a", 0, 1, after=[]), b"g", 0, 0, 0)
    assert kernel.dump()[b"other"] == untouched


def test_what_is_held_survives_with_when_it_came_and_what_it_waits_for() -> None:
    tale = Tale().say("B1", "A1").say("C1", "B1")
    again = Holdback()
    again.load(dict(tale.kernel.dump()))
    assert list(again.held()) == list(tale.kernel.held())
    assert [one.since_ms for one in again.held()] == [0, 10]


@pytest.mark.parametrize("order", ["s_b", "fifo", "total"])
def test_with_nothing_held_a_group_takes_100_bytes_and_a_sender_150_however_many_messages(order: str) -> None:
    # The same figures as after 1,000,000 messages of 100 groups: 10,000 a group, by one sender or by ten.
    def size(senders: int, messages: int) -> int:
        kernel = Holdback(order=order)
        group = "a-group-name-of-26-letters"
        for at in range(messages):
            sender, seq = f"sender-{at % senders}", at // senders + 1
            value = encode_message(group, sender, 0, seq, after=[(sender, 0, seq - 1)] if seq > 1 else [], data=at)
            kernel.receive(value, group.encode(), 0, at, at)
            kernel.clear()
        (blob,) = kernel.dump().values()
        return len(blob)

    for messages in (1_000, 10_000):
        assert size(1, messages) <= 100 + 150
        assert size(10, messages) <= 100 + 10 * 150


def test_state_does_not_grow_with_messages_that_were_out_of_order_once() -> None:
    def size(count: int) -> int:
        kernel = Holdback()
        for at in range(count):
            seq = at + 1 if at % 2 else at + 3 if at + 2 < count else at + 1
            kernel.receive(encode_message("g", "a", 0, seq, after=[]), b"g", 0, at, at)
        for seq in range(1, count + 2):
            kernel.receive(encode_message("g", "a", 0, seq, after=[]), b"g", 0, count + seq, 0)
        (blob,) = kernel.dump().values()
        return len(blob)

    assert size(4_000) <= size(400) + 10


def test_what_came_out_of_order_is_forgotten_with_its_digests() -> None:
    def blob(first: list[int]) -> bytes:
        tale = Tale("total")
        for seq in [*first, *range(3, 30)]:
            tale.say(f"A{seq}")
        return tale.kernel.dump()[b"g"]

    assert blob([2, 1]) == blob([1, 2])


def test_limits_that_a_group_did_not_set_come_from_the_kernel_that_loads_it() -> None:
    blobs = dict(Tale().say("A1").kernel.dump())
    tale = Tale(limits=Limits(window=2))
    tale.kernel.load(blobs)
    assert tale.say("A4").dead == ["seq_jump A4"]


def write_fixture() -> None:
    """Write the blobs of the present version beside the tests; done once for each version, then never again."""
    outcome = feed(as_log(story()))
    path = FIXTURES / f"snapshot-{VERSION}.json"
    assert not path.exists(), f"{path} is what people have in their checkpoints: it must not change"
    blobs = {key.decode(): base64.b64encode(blob).decode() for key, blob in sorted(outcome.blobs.items())}
    held = [one.offset for one in outcome.held]
    path.write_text(json.dumps({"blobs": blobs, "held": held}, ensure_ascii=False, indent=1) + "\n")


if __name__ == "__main__":
    write_fixture()
