"""A group's state as one versioned blob: exact and small."""

from __future__ import annotations

import json
from typing import Any

import pytest

from precede.udfs.engine.snapshot import VERSION, VERSION_TIMED, outline
from precede.udfs.errors import Refused
from precede.udfs.holdback import Holdback
from precede.udfs.limits import Limits
from precede.udfs.orders import ORDERS
from precede.udfs.records.signatures import sign
from precede.udfs.records.wire import encode_message
from tests.kernel.feeding import Taken, Tale, feed, parsed
from tests.signing import private, public, publics


def story() -> list[dict[str, Any]]:
    """Records that put everything into a group's state that it can remember, for each order."""
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
    """What follows them: copies, equivocations, missing, fenced, abandoned and refused messages."""
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


def as_log(records: list[dict[str, Any]], first: int = 0) -> list[Taken]:
    return [
        (json.dumps(one, ensure_ascii=False).encode(), one["group"].encode(), 0, at, 1_700_000_000_000 + at)
        for at, one in enumerate(records, start=first)
    ]


def timed_story() -> list[dict[str, Any]]:
    """The same for the state of time, clocks, destinations and keys, in every order; `by` names the signing key."""
    told: list[dict[str, Any]] = [
        said("ann", 1, time=1, to=["bob"]),
        said("bob", 1, time=3, to=["ann"], after=["ann", 0, 1]),
        {"by": "bob", "kind": "heartbeat", "sender": "bob", "seq": 4, "time": 40, "clock_ms": 400},
        said("ann", 3, time=6, to=["bob", "cem"]),
        said("bob", 3, time=9, to=["cem"], after=["ann", 0, 3], sent={"cem": [["ann", 0, 3]]}),
        {"by": "precede", "kind": "join", "sender": "cem", "epoch": 2, "time": 10, "key": public("cem")},
        said("cem", 1, epoch=2, time=12, to=["ann", "bob"]),
        said("cem", 2, epoch=2, time=14, clock_ms=60, to=["ann"]),
        said("cem", 4, epoch=2, time=16, to=["bob"], after=["ann", 0, 4], sent={"bob": [["ann", 0, 4]]}),
        {"by": "precede", "kind": "abandon", "ids": [["ann", 0, 5, 6]]},
        {"by": "bob", "kind": "leave", "sender": "bob", "last": 6},
    ]
    return in_every_order(told, {"accuracy_ms": 15, "delay_max_ms": 1_000_000})


def timed_sequel() -> list[dict[str, Any]]:
    """What follows those: copies, missing and fenced messages, promises of all members."""
    told: list[dict[str, Any]] = [
        said("ann", 1, time=1, to=["bob"]),
        said("ann", 1, time=1, to=["bob"], data=2),
        said("bob", 2, time=8, to=["cem"]),
        said("ann", 2, time=4, to=["bob"]),
        said("cem", 3, epoch=2, time=15, to=["ann"]),
        said("bob", 7, time=50, to=["ann"]),
        said("ann", 4, time=20, to=["bob", "cem"]),
        {"by": "ann", "kind": "heartbeat", "sender": "ann", "seq": 7, "time": 100, "clock_ms": 1_000},
        {"by": "cem", "kind": "heartbeat", "sender": "cem", "epoch": 2, "seq": 5, "time": 100, "clock_ms": 1_000},
        {"by": "precede", "kind": "abandon", "ids": [["bob", 0, 4, 6]]},
        {"by": "cem", "kind": "join", "sender": "cem", "epoch": 3},
    ]
    return in_every_order(told)


def said(name: str, seq: int, *, time: int, after: list[Any] | None = None, **more: Any) -> dict[str, Any]:
    """A message with the stamps of every order."""
    follows = [] if after is None else [after]
    seen = [[name, more.get("epoch", 0), seq], *follows]
    stamp = {"after": follows, "seen": seen, "sent": {}, "time": time, "clock_ms": 10 * time}
    return {"by": name, "sender": name, "seq": seq, **stamp, **more}


def in_every_order(told: list[dict[str, Any]], options: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    """These records in two groups of each order, one with keys; with options each begins with its `create`."""
    records: list[dict[str, Any]] = []
    for order in ORDERS:
        for keys in ({}, {"keys": publics("ann", "bob", "precede")}):
            group = f"{order} with keys" if keys else order
            create = {"by": None, "kind": "create", "options": {"order": order, **keys, **(options or {})}}
            begin = [] if options is None else [{**create, "members": ["ann", "bob"]}]
            records += [{"group": group, **one, "by": one["by"] if keys else None} for one in [*begin, *told]]
    return records


def as_timed_log(records: list[dict[str, Any]], first: int = 0) -> list[Taken]:
    """The log with a tick long after each record."""
    log: list[Taken] = []
    for one in records:
        value = json.dumps({name: field for name, field in one.items() if name != "by"}).encode()
        signed = value if one["by"] is None else sign(value, private(one["by"]))
        for record, key in ((signed, one["group"].encode()), (b'{"kind":"tick"}', None)):
            at = first + len(log)
            log.append((record, key, 0, at, 1_700_000_000_000 + 1_500 * at))
    return log


def test_the_blob_names_its_version_in_its_first_byte() -> None:
    (blob,) = Tale().say("A1").kernel.dump().values()
    assert blob[0] == VERSION


LOGS = {
    "at once": (as_log(story()), as_log(sequel(), first=len(story()))),
    "timed": (as_timed_log(timed_story()), as_timed_log(timed_sequel(), first=2 * len(timed_story()))),
}
"""Records that leave every kind of state, and those that follow; make.py stores what comes of them."""


@pytest.mark.parametrize("which", LOGS)
def test_a_group_goes_on_from_its_blob_as_if_it_had_never_been_one(which: str) -> None:
    log, following = LOGS[which]
    whole, before = feed([*log, *following]), feed(log)
    assert {blob[0] for blob in before.blobs.values()} == {VERSION, VERSION_TIMED}
    kernel = Holdback()
    kernel.load(before.blobs)
    assert list(kernel.held()) == before.held
    for record in following:
        kernel.receive(*record)
    assert kernel.ordered == whole.ordered[len(before.ordered) :]
    assert kernel.dead == whole.dead[len(before.dead) :]
    own = [(one.topic, one.key, one.value, one.offset) for one in kernel.own]
    assert own == whole.own[len(before.own) :]
    assert kernel.duplicates == whole.duplicates - before.duplicates


def test_the_story_leaves_every_kind_of_state() -> None:
    outcome = feed(as_log(story()))
    assert {one["code"] for one in parsed(outcome.dead)} == {"self_parent"}
    assert any(one.silent for one in outcome.held)
    assert any(one.missing for one in outcome.held)
    assert any(one["status"] == "abandoned" for one in parsed(outcome.ordered))


def test_the_timed_story_leaves_gaps_that_were_asked_for_in_every_order_that_waits() -> None:
    outcome = feed(LOGS["timed"][0])
    assert outcome.dead == []
    waiting = {one["group"] for one in timed_story()} - {"total", "total with keys"}
    assert {one.group for one in outcome.held} == waiting
    kernel = Holdback()
    kernel.load(outcome.blobs)
    assert {one.group for one in kernel.gaps() if one.asked} == waiting


@pytest.mark.parametrize("version", [0, VERSION_TIMED + 1, 255])
def test_a_blob_of_a_version_it_does_not_know_is_refused_in_a_sentence(version: int) -> None:
    blobs = {key: bytes([version]) + blob[1:] for key, blob in Tale().say("A1").kernel.dump().items()}
    tale = Tale()
    tale.kernel.load(blobs)
    with pytest.raises(Refused, match=f"version {version}"):
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
    # The same sizes as after 1,000,000 messages of 100 groups: 10,000 per group, by one sender or by ten.
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


def test_a_dump_is_the_caller_s_and_neither_side_changes_it_for_the_other() -> None:
    tale = Tale().say("A1")
    first = tale.kernel.dump()
    kept = dict(first)
    tale.say("A2")
    second = tale.kernel.dump()
    assert first == kept
    assert second != kept
    again = Tale()
    again.kernel.load(second)
    blobs = again.kernel.dump()
    assert blobs == second
    blobs.clear()
    second.clear()
    assert again.say("A2").kernel.duplicates == 1
    assert again.kernel.dump() == tale.kernel.dump()


def test_a_description_is_kept_with_the_group() -> None:
    tale = Tale()
    tale.take(kind="create", options={"description": "Trips, teas and 😀."}, members=["A"])
    assert tale.out == ["create"]
    group = tale.restart().kernel.group("g")
    assert group is not None
    assert group.description == "Trips, teas and 😀."
    (blob,) = tale.kernel.dump().values()
    options = outline(b"g", blob).options
    assert options is not None
    assert options.description == group.description
    assert Tale().say("A1").kernel.group("g").description is None  # type: ignore[union-attr]
