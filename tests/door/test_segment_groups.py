"""`precede.Segment` over real sockets on loopback: groups are found, created, joined and left; callbacks; threads."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import precede
from precede.peer import process as process_module
from tests.door.peer_table import SECONDS, Table, offered, until


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


@pytest.fixture
def table(stack: ExitStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Table:
    monkeypatch.setattr(process_module, "ALONE_S", 0.3)
    return Table(stack, tmp_path)


def test_groups_are_discovered_created_joined_declined_and_left(table: Table) -> None:
    ann, bob = table.segment("ann"), table.segment("bob")
    travel = ann.create("travel", order="causal", closed=True)
    ann.create("chess")
    offered(bob, "chess")
    listed = {one.group: one for one in bob.discover()}
    assert (listed["travel"].order, listed["travel"].closed, list(listed["travel"].members)) == (
        "causal",
        True,
        ["ann"],
    )
    bob.decline("chess")
    assert bob.mine() == []
    there = bob.join("travel")
    assert bob.join("travel") is there, "to join again gives the same peer"
    assert (bob.mine(), ann.mine()) == (["travel"], ["chess", "travel"])
    assert list(bob.members("travel")) == ["ann", "bob"]
    id_ = travel.send("hello")
    got = there.poll(SECONDS)
    assert got is not None
    assert got.id == id_
    bob.leave("travel")
    assert bob.mine() == []
    until(lambda: list(ann.members("travel")) == ["ann"])
    offered(bob, "chess")
    assert bob.join("chess").group == "chess"


def test_wrong_calls_of_a_segment_are_sentences(table: Table) -> None:
    ann = table.segment("ann")
    ann.create("travel")
    with pytest.raises(precede.Refused, match="ann is in travel already"):
        ann.create("travel")
    with pytest.raises(precede.Refused, match="No group chess is offered on this segment"):
        ann.join("chess")
    with pytest.raises(precede.Refused, match="ann is not in chess"):
        ann.leave("chess")
    with pytest.raises(precede.Refused, match="is not"):
        ann.decline("chess")
    with pytest.raises(precede.Refused, match="No group chess is known"):
        ann.members("chess")
    with pytest.raises(ValueError, match="group must be text"):
        ann.create(7)  # type: ignore[arg-type]
    with pytest.raises(precede.Refused, match="names 2: name one"):
        precede.Segment(f"{table.url},udp://239.255.70.81:9%lo", "bob")


def test_callbacks_are_called_one_after_the_other_and_one_that_fails_stops_nothing(table: Table) -> None:
    told: list[tuple[Any, ...]] = []
    threads: set[int] = set()

    def on_message(delivery: precede.Delivery) -> None:
        threads.add(threading.get_ident())
        told.append(("message", delivery.data))
        if delivery.data == 1:
            raise RuntimeError("the application's own")

    ann = table.segment("ann")
    bob = table.segment(
        "bob",
        on_message=on_message,
        on_view=lambda group, members: told.append(("view", group, members)),
        on_offer=lambda listing: told.append(("offer", listing.group)),
    )
    travel = ann.create("travel", order="fifo")
    until(lambda: ("offer", "travel") in told)
    bob.join("travel")
    for number in (1, 2, 3):
        travel.send(number)
    until(lambda: ("message", 3) in told)
    assert [one for one in told if one[0] == "message"] == [("message", 1), ("message", 2), ("message", 3)]
    assert ("view", "travel", ["ann", "bob"]) in told
    assert len(threads) == 1


def test_groups_are_entered_again_when_a_segment_is_opened_again(table: Table) -> None:
    ann = table.segment("ann")
    ann.create("travel")
    ann.close()
    ann.close()
    ann = table.segment("ann")
    assert ann.mine() == ["travel"]
    assert ann.join("travel").send("again")[2] == 1


def test_a_segment_counts_what_it_saw(table: Table) -> None:
    ann = table.segment("ann")
    counts = ann.counts()
    assert counts["own"] > 0
    assert counts["sent_datagrams"] > 0
    assert ann.address == table.url


def test_a_group_is_offered_with_its_description(table: Table) -> None:
    ann, bob = table.segment("ann"), table.segment("bob")
    for wrong, said in (("x" * 1_001, "may have 1,000 characters, and this has 1,001"), (7, "must be text, not 7")):
        with pytest.raises(ValueError, match=f"the description of a group {said}"):
            ann.create("travel", description=wrong)  # type: ignore[arg-type]
    ann.create("travel", order="causal", description="Where to next? 😀")
    ann.create("chess")
    for group in ("travel", "chess"):
        offered(bob, group)
    found = {one.group: (one.description, one.order) for one in bob.discover(wait_s=0.1)}
    assert found == {"travel": ("Where to next? 😀", "causal"), "chess": ("", "s_b")}


def test_threads_may_wait_for_several_groups_of_one_segment_at_once(table: Table) -> None:
    ann, bob = table.segment("ann"), table.segment("bob")
    groups = ("travel", "chess", "tea")
    speakers = {group: ann.create(group, order="fifo") for group in groups}
    heard: dict[str, list[Any]] = {group: [] for group in groups}
    for group in groups:
        offered(bob, group)
    listeners = {group: bob.join(group) for group in groups}

    def listen(group: str) -> None:
        while len(heard[group]) < 50 and (one := listeners[group].poll(SECONDS)) is not None:
            heard[group].append(one.data)

    threads = [threading.Thread(target=listen, args=(group,)) for group in groups]
    for thread in threads:
        thread.start()
    for number in range(50):
        for group in groups:
            speakers[group].send(number)
    for thread in threads:
        thread.join(SECONDS)
    assert heard == {group: list(range(50)) for group in groups}
