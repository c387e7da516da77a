"""`precede.Segment` and `precede.Peer` over real sockets on loopback."""

from __future__ import annotations

import resource
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import sleep
from typing import Any

import msgspec
import pytest

import precede
from precede.ingest.segment.sockets import SegmentSocket
from precede.peer import conversation, handing_over
from precede.peer import process as process_module
from precede.peer.conversation import JsonLines, PeerConversation, read_json
from precede.udfs.peers.events import RecordRefused
from precede.udfs.peers.notes import InLog
from tests.door.peer_table import Table, kill, until
from tests.door.segment_links import linked


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


@pytest.fixture
def table(stack: ExitStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Table:
    monkeypatch.setattr(process_module, "ALONE_S", 0.3)
    return Table(stack, tmp_path)


# ── Peer ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_two_peers_talk_without_kafka(table: Table) -> None:
    ann = table.peer("ann")
    bob = table.peer("bob")
    asked = ann.send("Who comes along?")
    question = next(bob)
    assert (question.id, question.data, question.sender) == (asked, "Who comes along?", "ann")
    answer = bob.send("I do.", after=question)
    assert [next(ann).id, next(ann).id] == [asked, answer]
    found = ann.find(answer)
    assert found is not None
    assert (found.data, found.after) == ("I do.", [asked])
    assert ann.members == bob.members == ["ann", "bob"]
    assert (ann.order, ann.conflicts) == ("s_b", [])


def test_what_a_peer_delivers_has_the_form_of_the_log_s_but_no_position(table: Table) -> None:
    ann = table.peer("ann", order="causal", records=True)
    ann.send({"n": 1})
    found = list(iter(lambda: ann.poll(1), None))
    assert [one.kind for one in found] == ["create", "join", "message"]
    for one in found:
        assert isinstance(one, precede.Delivery)
        assert {one.position, one.partition, one.offset, one.released_offset} == {None}
        assert (one.order, one.status, one.destination) == ("causal", "delivered", None)
    assert msgspec.json.decode(found[2].record)["data"] == {"n": 1}
    assert found[2].held_ms == 0
    assert ann.position is None


@pytest.mark.parametrize("order", ["s_b", "fifo", "causal", "lamport", "two_clock", "object"])
def test_peers_of_every_order_that_needs_no_log_deliver_everything(table: Table, order: str) -> None:
    ann = table.peer("ann", order=order)
    bob = table.peer("bob")
    assert bob.order == order
    said = {one.send(f"{one.name} {number}") for number in range(5) for one in (ann, bob)}
    found = [[next(one).id for _ in said] for one in (ann, bob)]
    assert set(found[0]) == set(found[1]) == said
    if order == "lamport":
        assert found[0] == found[1]
    until(lambda: ann.status.synced and bob.status.synced)
    assert str(ann.status) == "synced"


def test_in_causal_p2p_a_message_goes_to_those_it_names(table: Table) -> None:
    ann = table.peer("ann", order="causal_p2p")
    bob = table.peer("bob")
    cid = table.peer("cid")
    with pytest.raises(ValueError, match="needs `to`"):
        ann.send("for whom?")
    id_ = ann.send("for bob", to=["bob"])
    got = next(bob)
    assert (got.id, got.destination) == (id_, "bob")
    assert cid.poll(0.5) is None


@pytest.mark.parametrize("order", ["total", "nothing"])
def test_an_order_that_needs_the_log_is_refused_in_a_sentence(table: Table, order: str) -> None:
    with pytest.raises(precede.Refused, match="needs the log" if order == "total" else "There is no order"):
        table.peer("ann", order=order)


def test_declared_conflicts_need_the_log(table: Table) -> None:
    with pytest.raises(precede.Refused, match="declared conflicts need the log"):
        table.segment("ann").create("travel", order="object", conflicts=[["add", "take"]])


def test_a_group_that_has_another_order_is_not_joined(table: Table) -> None:
    table.peer("ann", order="causal")
    with pytest.raises(precede.Refused, match="The group travel has the order causal, not fifo"):
        table.peer("bob", order="fifo")


def test_a_message_answers_only_what_was_delivered_here(table: Table) -> None:
    ann = table.peer("ann")
    with pytest.raises(ValueError, match="has not been delivered to ann"):
        ann.send("what?", after=("bob", 0, 1))
    with pytest.raises(ValueError, match="an id must be"):
        ann.send("what?", after=7)
    with pytest.raises(ValueError, match="data must be a JSON value"):
        ann.send(float("nan"))
    with pytest.raises(precede.Refused, match="The record has .* bytes, and 524,288 are allowed"):
        ann.send("x" * 600_000)
    assert ann.send("well")[2] == 1, "a refused message uses no seq"


def test_who_has_left_says_nothing_and_comes_back_with_a_new_epoch(table: Table) -> None:
    ann = table.peer("ann")
    bob = table.peer("bob")
    before = bob.epoch
    bob.leave()
    with pytest.raises(precede.Refused, match="bob has left travel"):
        bob.send("still here?")
    with pytest.raises(precede.Refused, match="bob is not in travel"):
        bob.leave()
    until(lambda: ann.members == ["ann"])
    bob.close()
    again = table.peer("bob")
    assert again.epoch > before
    id_ = again.send("back")
    assert next(ann).id == id_


def test_a_newcomer_gets_what_the_others_keep(table: Table) -> None:
    ann = table.peer("ann", order="causal")
    said = [ann.send(number) for number in range(300)]
    bob = table.peer("bob")
    assert [next(bob).id for _ in said] == said


def test_a_peer_ends_with_patience_and_says_what_it_missed(table: Table) -> None:
    ann = table.peer("ann", patience_s=0.2)
    assert list(ann) == []
    with pytest.raises(ValueError, match="patience_s"):
        table.peer("bob", patience_s=0)
    with pytest.raises(ValueError, match="name must have 1 to 255 bytes"):
        table.peer("")
    with pytest.raises(ValueError, match="group must have 1 to 255 bytes"):
        table.peer("bob", group="")


# ── restarts ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_peer_that_was_closed_goes_on_where_it_was(table: Table) -> None:
    bob = table.peer("bob")
    ann = table.peer("ann")
    ids = [ann.send(1)]
    assert next(ann).id == ids[0]
    epoch = ann.epoch
    ann.close()
    missed = bob.send("while ann was away")
    ann = table.peer("ann")
    ids.append(ann.send(2))
    assert ann.epoch == epoch
    assert [id_[2] for id_ in ids] == [1, 2]
    assert [next(bob).id for _ in range(3)] == [ids[0], missed, ids[1]]
    assert {next(ann).id for _ in range(2)} == {missed, ids[1]}, "what was handed over before is not handed over again"


def test_a_peer_that_was_killed_uses_no_seq_twice_and_keeps_what_it_said(table: Table) -> None:
    ann = table.peer("ann")
    said = [ann.send(number) for number in range(3)]
    until(ann._process.has_everyone_all)  # the datagrams are out, and what is sent is on disk before
    kill(ann)
    again = table.peer("ann")
    assert again.epoch > said[0][1]
    more = again.send("on")
    assert more[2] == 1
    bob = table.peer("bob")
    assert {next(bob).id for _ in range(4)} == {*said, more}, "no one else had heard the first three"


def test_a_full_disk_refuses_what_is_not_said_yet_and_loses_nothing_that_is(table: Table) -> None:
    ann = table.peer("ann", order="fifo")
    said = [ann.send("before")]
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_500_000, before[1]))
    try:

        def say_for_ever() -> None:
            while True:
                said.append(ann.send("x" * 50_000))

        with pytest.raises(precede.Refused, match="cannot be written to .*ann.said-1: File too large. Make room"):
            say_for_ever()
        assert 10 < len(said) < 40
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    said.append(ann.send("there is room"))
    assert ann.wait_confirmed(3)
    kill(ann)
    again = table.peer("ann")
    assert [again.find(id_) is None for id_ in said] == [False] * len(said)
    assert [next(again).id for _ in said] == said, "the application took none of them before"


def test_what_is_said_at_once_goes_as_one_bundle(table: Table) -> None:
    ann, bob = table.peer("ann", order="fifo"), table.peer("bob")
    group = ann._process._segment.groups["travel"]
    bundles: list[int] = []
    take_said = group.take_said

    def count(now_ms: float) -> None:
        bundles.append(len(group.said))
        take_said(now_ms)

    group.take_said = count  # type: ignore[method-assign]
    said = [ann.send(number) for number in range(2_000)]
    assert [next(bob).id for _ in said] == said
    assert sum(bundles) == len(said)
    assert len(bundles) < len(said) / 4, "what each call says was a bundle of its own"
    late = ann.send("alone")
    found = ann.find(late)
    assert found is not None, "it was taken in, though it has not waited for others yet"
    assert found.data == "alone"


def test_a_peer_that_was_killed_is_not_told_again_what_it_was_told_a_while_before(table: Table) -> None:
    bob, ann = table.peer("bob"), table.peer("ann")
    said = [bob.send(number) for number in range(20)]
    assert [next(ann).id for _ in said] == said
    assert ann.poll(0.0) is None, "it asks for more, so it is done with the last one"
    told = table.folder / "ann.told"
    until(lambda: told.exists() and ["bob", bob.epoch, 20] in msgspec.msgpack.decode(told.read_bytes())["travel"])
    kill(ann)
    said.append(bob.send("meanwhile"))
    again = table.peer("ann")
    assert next(again).id == said[-1]
    assert again.poll(1.0) is None
    kill(again)
    last = table.peer("ann").poll(2.0)
    assert last is None or last.id == said[-1], "only what it had in hand may come again"


@pytest.mark.parametrize("is_killed", [False, True])
def test_what_was_not_handed_over_is_handed_over_by_the_next_start(table: Table, is_killed: bool) -> None:
    bob, ann = table.peer("bob"), table.peer("ann")
    said = [bob.send(number) for number in range(5)]
    until(lambda: ann.find(said[-1]) is not None)
    assert [next(ann).id, next(ann).id] == said[:2]
    if is_killed:
        ann._process._keeper.save()
        ann._process._keeper._save_handed_over()
        kill(ann)
    else:
        ann.close()
    bob.close()
    again = table.peer("ann")
    wanted = said[1:] if is_killed else said[2:]  # what a killed program had in hand it may not have done
    assert [next(again).id for _ in wanted] == wanted
    assert again.poll(0.5) is None


def test_a_peer_whose_state_cannot_be_written_for_a_moment_goes_on_writing_it(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    ann, bob = table.peer("ann"), table.peer("bob")
    state = ann._process._keeper._state
    save, tries = state.save_handed_over, []

    def save_the_second_time(told: Any) -> None:
        tries.append(told)
        if len(tries) == 1:
            raise OSError("No space left on device")
        save(told)

    monkeypatch.setattr(state, "save_handed_over", save_the_second_time)
    bob.send("hello")
    assert next(ann).data == "hello"
    until(lambda: len(tries) > 1)


def test_a_peer_that_has_lost_its_state_takes_a_new_epoch(table: Table) -> None:
    bob = table.peer("bob")
    ann = table.peer("ann")
    first = ann.send(1)
    until(lambda: bob.find(first) is not None)
    kill(ann)
    again = table.peer("ann", state=table.folder / "another")
    second = again.send(2)
    assert (second[1] > first[1], second[2]) == (True, 1)
    assert [next(bob).id, next(bob).id] == [first, second]


@contextmanager
def gateway_of(table: Table) -> Iterator[Callable[..., None]]:
    """A gateway on the segment; what it yields tells which messages of the group are in its log."""
    with linked(table.url) as here:
        gateway = here.open("gateway", is_gateway=True).segment
        assert here.runner.wait_until(lambda _now_ms: "travel" in here.told["gateway"].offered, 5)

        def tell(*have: tuple[str, int, int]) -> None:
            with here.runner.use(here.links["gateway"]) as now_ms:
                gateway.attend("travel", now_ms)
                gateway.tell(InLog("travel", "gateway", None, list(have)), now_ms)

        yield tell


def test_where_a_gateway_is_known_own_messages_are_kept_until_the_log_has_them(table: Table) -> None:
    ann = table.peer("ann")
    with gateway_of(table) as tell:
        tell()
        logged = ann._inside.log_coverage
        until(lambda: logged.is_known)
        logged._bytes_max = 300
        first = ann.send("x" * 200)
        with pytest.raises(precede.Refused, match="a gateway or Kafka is away. Wait, and send it again"):
            ann.send("y" * 200)
        until(ann._process.has_everyone_all)
        kill(ann)
        again = table.peer("ann")
        assert again._inside.log_coverage.lacking == [first], "it came back from the disk"
        tell((*first[:2], 1))
        until(lambda: again._inside.log_coverage.lacking == [])
        assert again.send("z" * 200)[2] == 1


def test_who_leaves_waits_for_the_log_and_says_what_it_has_not_taken(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conversation, "LOG_S", 0.3)
    ann = table.peer("ann")
    with gateway_of(table) as tell:
        tell()
        until(lambda: ann._inside.log_coverage.is_known)
        said = [ann.send(number) for number in range(3)]
        epoch = ann.epoch
        tell(("ann", epoch, 1))
        until(lambda: ann.unlogged() == said[1:])
        talk = PeerConversation(ann, JsonLines(), read_json, lambda _: None)
        talk.said_all.set()
        with pytest.raises(precede.Unconfirmed, match=f"2 messages that ann said, from ann@{epoch}:2 to ann@{epoch}:3"):
            talk.run(leave=True)
        assert ann.has_left
        ann.close()
        again = table.peer("ann")
        assert (again.epoch > epoch, again.unlogged()) == (True, said[1:])
        tell(("ann", epoch, 3))
        until(lambda: again.unlogged() == [])
        talk = PeerConversation(again, JsonLines(), read_json, lambda _: None)
        talk.said_all.set()
        talk.run(leave=True)
        again.close()


def test_a_name_is_open_in_one_place(table: Table) -> None:
    table.peer("ann")
    with pytest.raises(precede.Refused, match="is in use: a peer can be open in only one place"):
        table.peer("ann")


# ── signatures and keys ───────────────────────────────────────────────────────────────────────────────────────────────


def test_peers_with_another_segment_key_are_not_there(table: Table) -> None:
    keys = []
    for number in (1, 2):
        key = table.folder / f"segment{number}.key"
        key.write_text(f"{number:064x}")
        key.chmod(0o600)
        keys.append(key)
    ann = table.peer("ann", segment_key=keys[0])
    bob = table.peer("bob", segment_key=keys[0])
    eve = table.peer("eve", segment_key=keys[1])
    ann.send("among us")
    assert next(bob).data == "among us"
    assert eve.poll(0.3) is None
    assert eve.counts()["forged"] > 0
    assert (ann.members, eve.members) == (["ann", "bob"], ["eve"])


def test_in_a_group_with_keys_only_signed_messages_count(table: Table) -> None:
    from precede.ingest.signing import make_key, public_text

    keys = {name: make_key(table.folder / f"{name}.key") for name in ("ann", "bob")}
    ann = table.segment("ann", key=table.folder / "ann.key")
    travel = ann.create("travel", order="fifo", keys={name: public_text(key) for name, key in keys.items()})
    bob = table.peer("bob", key=table.folder / "bob.key")
    id_ = travel.send("signed")
    assert next(bob).id == id_
    with pytest.raises(precede.Refused, match="travel accepts only signed records: open eve with its private key"):
        table.peer("eve")


def test_an_own_message_that_the_group_refuses_is_a_warning(table: Table) -> None:
    ann = table.peer("ann")
    told = RecordRefused("travel", ("ann", ann.epoch, 1), "late", "It came too late.")
    with ann._process.use():
        ann._process._segment.events.append(told)
    with pytest.warns(UserWarning, match="was refused .late.: It came too late"):
        assert ann.poll(0.2) is None


# ── slow applications, broken networks ────────────────────────────────────────────────────────────────────────────────


def test_an_application_that_takes_nothing_slows_the_network_and_loses_nothing(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handing_over, "EVENTS_MAX", 50)
    ann = table.peer("ann", order="fifo")
    bob = table.peer("bob")
    said = [ann.send(number) for number in range(300)]
    until(lambda: bob._process._link.is_paused)
    sleep(0.5)
    assert [next(bob).id for _ in said] == said
    assert not bob._process._link.is_paused


def test_a_network_without_multicast_is_a_sentence(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SegmentSocket, "receive", lambda _self: None)
    with pytest.raises(precede.Refused, match="drops multicast"):
        table.peer("ann")


def test_an_error_of_precede_itself_is_told_by_every_call(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    ann = table.peer("ann")

    def broken(_now_ms: float, **_more: bool) -> list[bytes]:
        raise RuntimeError("broken")

    monkeypatch.setattr(ann._process._segment, "due", broken)
    with pytest.raises(precede.PrecedeError, match="has stopped because of an error in precede .RuntimeError: broken"):
        until(lambda: ann.poll(0.1) is not None)
    with pytest.raises(precede.PrecedeError, match="has stopped"):
        ann.send("anyone?")
    ann.close()


def test_ctrl_c_in_the_midst_of_a_record_costs_an_epoch_and_nothing_else(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    ann = table.peer("ann")
    bob = table.peer("bob")
    said = ann.send("before")
    until(lambda: bob.find(said) is not None)

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    def listen() -> None:
        for _ in range(10):
            bob.send("more")
            ann.poll(0.2)

    monkeypatch.setattr(ann._process._segment, "receive", interrupted)
    with pytest.raises((KeyboardInterrupt, precede.PrecedeError)):
        listen()
    ann.close()
    again = table.peer("ann")
    assert again.epoch > said[1]
    assert next(again).data in ("before", "more")


def test_nothing_is_warned_of_where_all_is_well(table: Table) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ann = table.peer("ann")
        ann.send(1)
        assert next(ann).data == 1


def test_meta_goes_with_what_is_said(table: Table) -> None:
    ann, bob = table.peer("ann", order="causal"), table.peer("bob")
    with pytest.raises(ValueError, match="meta must be a dictionary"):
        ann.send("x", meta="trace")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="meta may have 4,096 bytes as JSON"):
        ann.send("x", meta={"trace": "x" * 4_096})
    ann.send("Who comes along?", meta={"trace": "7f"})
    found = next(bob)
    assert (found.data, found.meta) == ("Who comes along?", {"trace": "7f"})
    said = read_json(b'{"data": 1, "meta": {"a": [2]}}')
    assert said is not None
    assert said.meta == {"a": [2]}
