"""`precede.Member` on a real broker: its stamps, its deliveries and its saved state."""

import contextlib
import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

import precede
from examples.same_program import converse
from precede.ingest import sender_state
from precede.ingest.kafka import topics
from precede.ingest.progress import token_record
from precede.ingest.signing import make_key, public_text
from precede.local.embedded_broker import Broker
from precede.udfs.errors import Refused
from tests.door.command import ROOT
from tests.system.relay import Relay, wait_for
from tests.system.test_sending import read


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The members of each test keep their state in its own folder."""
    monkeypatch.setenv("PRECEDE_STATE", str(tmp_path / "state" / "senders.json"))
    return tmp_path / "state" / "members"


@pytest.fixture
def relay(broker: Broker) -> Iterator[Relay]:
    with Relay(broker) as running:
        yield running


def create(relay: Relay, order: str, *members: str, group: str = "g", **options: Any) -> None:
    record = {"group": group, "kind": "create", "options": {"order": order, **options}, "members": list(members)}
    relay.publish(relay.raw, json.dumps(record).encode(), group=group)


def take(member: precede.Member, count: int) -> list[Any]:
    """The data of the next messages."""
    return [next(member).data for _ in range(count)]


def said(relay: Relay) -> list[dict[str, Any]]:
    """Every record of the raw topic."""
    return [json.loads(record.value or b"") for record in read(relay.bootstrap, relay.raw)]


@pytest.mark.parametrize("client", ["confluent", "kafka-python"])
def test_members_answer_each_other_in_one_sequence(relay: Relay, client: Literal["confluent", "kafka-python"]) -> None:
    with relay.member("ann") as ann, relay.member("bob", client=client) as bob:
        asked = ann.send("Who comes?")
        question = next(bob)
        assert (question.id, question.position, question.data) == (asked, 1, "Who comes?")
        with pytest.raises(ValueError, match="has not been delivered to ann"):
            ann.send("Good.", after=("bob", 0, 1))
        answer = bob.send({"n": 1.5}, after=question)
        assert take(ann, 2) == ["Who comes?", {"n": 1.5}]
        ann.send("Good.", after=answer)
        assert [(one.position, one.after) for one in (next(bob), next(bob))] == [(2, [asked]), (3, [answer])]
        wait_for(lambda: bob.poll(0.1) is None and bob.status.synced, "bob has read all there is")
        assert (str(bob.status), bob.position, bob.order) == ("synced", 3, "s_b")
    assert relay.dead == []


def test_a_member_goes_on_where_it_stopped_with_its_seq_and_behind_what_it_was_handed(relay: Relay) -> None:
    with relay.member("ann") as ann:
        ann.send("one")
        ann.send("two")
        assert take(ann, 1) == ["one"]
    with relay.member("ann") as ann:
        assert ann.send("three") == ("ann", 0, 3)
        assert take(ann, 2) == ["two", "three"]


def test_what_a_failed_application_was_handed_last_comes_again(relay: Relay) -> None:
    with relay.member("ann") as ann:
        ann.send("one")

    def fail(bob: precede.Member) -> None:
        with bob:
            raise ZeroDivisionError(next(bob))

    with pytest.raises(ZeroDivisionError):
        fail(relay.member("bob"))
    with relay.member("bob") as bob:
        assert take(bob, 1) == ["one"]


def test_a_newcomer_chooses_all_the_last_n_or_nothing_and_may_answer_what_it_was_not_handed(relay: Relay) -> None:
    with relay.member("ann") as ann:
        first, *_ = [ann.send(number) for number in range(5)]
        take(ann, 5)
        with (
            relay.member("all") as all_,
            relay.member("two", history=2) as two,
            relay.member("none", history="none") as none,
            relay.member("since", since=3) as since,
        ):
            ann.send(5)
            assert [take(all_, 6), take(two, 3), take(none, 1), take(since, 3)] == [
                [0, 1, 2, 3, 4, 5],
                [3, 4, 5],
                [5],
                [3, 4, 5],
            ]
            assert none.send("about the first", after=first) == ("none", 0, 1)
            assert next(two).after == [first]
            found = two.find(first)
            assert found is not None
            assert (found.data, two.find(("nobody", 0, 1))) == (0, None)


def test_a_lost_state_means_a_new_epoch_and_a_copy_of_an_old_one_too(relay: Relay, state: Path) -> None:
    with relay.member("ann") as ann:
        ann.send("one")
    (file,) = state.glob("*.json")
    old = file.read_bytes()
    with relay.member("ann") as ann:
        ann.send("two")
        take(ann, 2)
    file.write_bytes(old)  # like restoring a backup
    with relay.member("ann") as ann:
        assert ann.send("three") == ("ann", 1, 1)
    file.unlink()
    with relay.member("ann") as ann:
        assert ann.send("four") == ("ann", 2, 1)
    assert relay.dead == []


def test_a_record_kafka_never_confirmed_goes_out_first_as_the_same_bytes(relay: Relay, state: Path) -> None:
    with relay.member("ann") as ann:
        ann.send("one")
    (file,) = state.glob("*.json")
    pending = b'{"group":"g","sender":"ann","epoch":0,"seq":2,"after":[],"data":"two"}'
    with sender_state.opened(file) as kept:  # as if it had died after saving the record and before the answer
        kept.memory.senders[0].seq = 2
        kept.memory.senders[0].pending = pending.decode()
        kept.save()
    with relay.member("ann") as ann:
        assert ann.send("three") == ("ann", 0, 3)
        assert take(ann, 3) == ["one", "two", "three"]
    assert pending in [record.value for record in read(relay.bootstrap, relay.raw)]


def test_one_name_is_open_in_one_place_at_a_time(relay: Relay) -> None:
    with relay.member("ann"), pytest.raises(Refused, match="is in use"):
        relay.member("ann")


def test_one_name_in_two_places_is_noticed_by_who_reads_it_and_both_come_back_with_epochs_of_their_own(
    relay: Relay, tmp_path: Path
) -> None:
    """As two pods of one Deployment do, each with a disk of its own."""
    here, there = relay.member("ann", state=tmp_path / "a.json"), relay.member("ann", state=tmp_path / "b.json")
    with here, there:
        assert here.send("from here") == there.send("from there") == ("ann", 0, 1)
        wait_for(lambda: len(relay.dead) == 1, "one of the two is refused")
        assert json.loads(relay.dead[0])["code"] == "equivocation"
        assert take(here, 1) == take(there, 1) == ["from here"]
        assert here.send("more") == ("ann", 0, 2)
        assert take(there, 1) == ["more"]
        for call in (lambda: there.send("and there"), there.leave):
            with pytest.raises(Refused, match="ann is open in another place, too.*opened again under a new epoch"):
                call()
        assert not there.status.synced
        assert str(there.status.trouble).startswith("ann is open in another place, too")
        assert here.status.trouble is None
        assert here.send("and here") == ("ann", 0, 3)
    with relay.member("ann", state=tmp_path / "b.json") as there:
        assert there.send("again") == ("ann", 1, 1)
        assert take(there, 2) == ["and here", "again"]
    assert len(relay.dead) == 1


def test_a_seq_that_this_member_did_not_use_is_noticed_too(relay: Relay) -> None:
    with relay.member("ann") as ann:
        ann.send("one")
        relay.publish(relay.raw, b'{"group":"g","sender":"ann","seq":2,"after":[],"data":"by somebody else"}')
        assert take(ann, 2) == ["one", "by somebody else"]
        with pytest.raises(Refused, match="ann is open in another place, too"):
            ann.send("two")
    with relay.member("ann") as ann:
        assert ann.send("two") == ("ann", 1, 1)


def test_a_member_that_was_put_out_says_so_in_its_status_and_comes_back_when_it_is_opened_again(relay: Relay) -> None:
    with relay.member("ann") as ann:
        ann.send("one")
        assert take(ann, 1) == ["one"]
        assert ann.status.trouble is None
        relay.publish(relay.raw, b'{"group":"g","kind":"evict","member":["ann",0],"cut":1}')
        wait_for(lambda: ann.poll(0.1) is None and ann.status.trouble is not None, "it reads that it was put out")
        assert str(ann.status.trouble).startswith("Epoch 0 of ann has ended in g: open the member again")
        assert not ann.status.synced
        with pytest.raises(Refused, match="Epoch 0 of ann has ended"):
            ann.send("two")
    with relay.member("ann") as ann:
        assert ann.send("two") == ("ann", 1, 1)


def test_a_created_group_s_order_is_learned_even_before_anything_of_it_is_ordered(relay: Relay) -> None:
    create(relay, "causal")
    with relay.member("ann") as ann, relay.member("bob") as bob:
        ann.send("one")
        take(bob, 1)
        bob.send("two")
        assert take(ann, 2) == ["one", "two"]
    stamps = [record.get("seen") for record in said(relay)[1:]]
    assert stamps == [[["ann", 0, 1]], [["ann", 0, 1], ["bob", 0, 1]]]
    assert relay.dead == []


def test_a_vector_outlives_its_member(relay: Relay) -> None:
    create(relay, "causal")
    with relay.member("ann") as ann:
        ann.send("one")
    with relay.member("bob") as bob:
        take(bob, 1)
    with relay.member("bob") as bob:
        bob.send("two")
    assert said(relay)[-1]["seen"] == [["ann", 0, 1], ["bob", 0, 1]]


def test_with_destinations_each_member_is_handed_what_is_for_it(relay: Relay) -> None:
    create(relay, "causal_p2p")
    with relay.member("ann") as ann, relay.member("bob") as bob, relay.member("cem") as cem:
        ann.send("for cem", to=["cem"])
        ann.send("for both", to=["bob", "cem"])
        assert take(bob, 1) == ["for both"]
        bob.send("from bob", to=["cem", "ann"])
        assert (take(cem, 3), take(ann, 1)) == (["for cem", "for both", "from bob"], ["from bob"])
        with pytest.raises(ValueError, match="needs `to`"):
            ann.send("for nobody")
    with relay.member("cem") as cem:
        cem.send("again", to=["cem"])
        assert take(cem, 1) == ["again"]
    assert relay.dead == []


@pytest.mark.parametrize("order", ["lamport", "two_clock"])
def test_members_of_a_group_by_clocks_let_each_other_s_messages_go_without_speaking(relay: Relay, order: str) -> None:
    create(relay, order, "ann", "bob")
    with relay.member("ann") as ann, relay.member("bob") as bob:
        for number in range(5):
            bob.send(number)
        assert take(ann, 5) == take(bob, 5) == [0, 1, 2, 3, 4]
        with relay.member("cem") as cem:  # not one of the first members, so it joins
            cem.send("late")
            ann.send("early")
            assert sorted(take(ann, 2)) == sorted(take(bob, 2)) == ["early", "late"]
            assert ann.members == ["ann", "bob", "cem"]
            cem.leave()
    with relay.member("bob") as bob, relay.member("ann") as ann:  # with clocks that continue where they stopped
        bob.send("again")
        assert take(ann, 1) == ["again"]
    assert relay.dead == []


def test_who_left_a_closed_group_comes_back_with_a_larger_epoch(relay: Relay) -> None:
    create(relay, "fifo", "ann", closed=True)
    with relay.member("ann", records=True) as ann, relay.member("bob") as bob:
        assert bob.send("hello") == ("bob", 0, 1)
        bob.leave()
        with pytest.raises(Refused, match="bob has left g"):
            bob.send("more")
        assert [next(ann).kind for _ in range(4)] == ["create", "join", "message", "leave"]
        assert ann.members == ["ann"]
    with relay.member("bob") as bob:
        assert bob.send("back") == ("bob", 1, 1)
        assert take(bob, 2) == ["hello", "back"]
    assert relay.dead == []


def test_who_was_put_out_is_told_so_and_comes_back_with_a_new_epoch(relay: Relay) -> None:
    create(relay, "fifo", "ann", "bob", closed=True)
    with relay.member("bob", records=True) as bob:
        bob.send("one")
        relay.publish(relay.raw, b'{"group":"g","kind":"evict","member":["bob",0],"cut":1}')
        assert [next(bob).kind for _ in range(3)] == ["create", "message", "evict"]
        with pytest.raises(Refused, match="open the member again"):
            bob.send("two")
    with relay.member("bob") as bob:
        assert bob.send("two") == ("bob", 1, 1)
        assert take(bob, 1) == ["two"]
    assert relay.dead == []


def test_in_a_group_with_keys_members_sign_and_a_newcomer_brings_its_key(relay: Relay, tmp_path: Path) -> None:
    files = {name: tmp_path / f"{name}.pem" for name in ("ann", "cem")}
    public = {name: public_text(make_key(file)) for name, file in files.items()}
    create(relay, "causal", "ann", keys={"ann": public["ann"]})
    with relay.member("ann", key=files["ann"]) as ann, relay.member("cem", key=files["cem"]) as cem:
        ann.send("signed")
        assert take(cem, 1) == ["signed"]
        cem.send("signed, too")
        assert take(ann, 2) == ["signed", "signed, too"]
        assert relay.dead == []
        with relay.member("bob") as bob, pytest.raises(Refused, match="accepts only signed records"):
            bob.send("unsigned")
        relay.publish(relay.raw, b'{"group":"g","sender":"bob","seq":1,"seen":[["bob",0,1]]}')
        wait_for(lambda: len(relay.dead) == 1, "the dead letter of what was not signed")
        assert json.loads(relay.dead[0])["code"] == "forged"


def test_what_the_group_misses_is_published_again_by_who_said_it(relay: Relay) -> None:
    lost = [b'"data":"two"']
    relay.lose = lambda value: bool(lost) and lost[0] in value and bool(lost.pop())
    create(relay, "fifo")
    with relay.member("ann") as ann, relay.member("bob") as bob:
        for data in ("one", "two", "three"):
            ann.send(data)
        assert take(bob, 1) == ["one"]
        relay.tick()  # and now the group requests it
        assert take(bob, 2) == ["two", "three"]
    again = [record.value for record in read(relay.bootstrap, relay.raw) if b'"data":"two"' in (record.value or b"")]
    assert len(again) == 2
    assert again[0] == again[1]


def test_a_member_says_how_many_messages_the_group_waits_for_and_how_many_were_given_up(relay: Relay) -> None:
    create(relay, "fifo")
    with relay.member("bob") as bob:
        wait_for(lambda: bob.poll(0.1) is None and bob.status[:3] == (True, 0, 0), "bob has read all there is")
        relay.publish(relay.raw, b'{"group":"g","sender":"ann","seq":3,"data":"three"}')
        relay.tick()
        wait_for(lambda: str(bob.status) == "2 missing", "bob hears what the group waits for")
        relay.publish(relay.raw, b'{"group":"g","kind":"abandon","ids":[["ann",0,1,2]]}')
        assert take(bob, 1) == ["three"]
        wait_for(lambda: bob.poll(0.1) is None and bob.status[:3] == (True, 0, 2), "both were given up")


def test_the_program_of_the_readme_answers_once_and_ends(relay: Relay, monkeypatch: pytest.MonkeyPatch) -> None:
    used = (ROOT / "README.md").read_text().partition("## Use it")[2]
    program = used.partition("```python\n")[2].partition("```")[0]
    for name, value in (("BOOTSTRAP", relay.bootstrap), ("RAW_TOPIC", relay.raw), ("ORDERED_TOPIC", relay.ordered)):
        monkeypatch.setenv(f"PRECEDE_{name}", value)
    with relay.member("ann", group="travel") as ann:
        ann.send("Who comes along?")
        exec(program, {})
        assert take(ann, 2) == ["Who comes along?", "I do."]
        assert ann.poll(0.3) is None


def test_ids_are_written_as_text_everywhere_and_a_member_may_leave_its_own_out(relay: Relay) -> None:
    create(relay, "s_b", "ann")
    with relay.member("ann") as ann, relay.member("bob", own=False, records=True) as bob:
        assert str(ann.send("Who?", meta={"trace": 7})) == "ann:1"
        view, question = next(bob), next(bob)
        assert isinstance(view, precede.View)
        assert [view.id, view.seq, view.kind] == [None, None, "create"]
        assert (type(question), str(question.id), question.id) == (precede.Message, "ann:1", ("ann", 0, 1))
        assert (question.meta, question.data) == ({"trace": 7}, "Who?")
        assert repr(question) == "<delivered ann:1 in g, position 2: 6 bytes of data>"
        bob.send("I do.", after="ann:1")
        bob.send("And I.", after=["ann:1"])
        relay.publish(relay.raw, b'{"group":"g","kind":"abandon","ids":[["zed",0,1,1]]}')
        given_up = next(bob)
        assert (type(given_up), str(given_up.id), given_up.data) == (precede.Abandoned, "zed:1", None)
        found = bob.find("bob:1")
        assert found is not None
        assert [str(id_) for id_ in found.after] == ["ann:1"]
        for wrong, sentence in (("ann", "is no id"), ("ann@01:1", "zero in front"), (view, "a create has no id")):
            with pytest.raises(ValueError, match=sentence):
                bob.send("", after=wrong)
        for meta in ({"x": "y" * 5_000}, ["x"], {"x": {1}}):
            with pytest.raises(ValueError, match="meta|JSON"):
                bob.send("", meta=meta)
    assert relay.dead == []


def test_what_retention_has_deleted_is_passed_over_with_one_warning_or_raised(
    relay: Relay, caplog: pytest.LogCaptureFixture
) -> None:
    with relay.member("ann") as ann:
        for number in range(4):
            ann.send(number)
        take(ann, 4)
        with relay.member("cem") as cem:
            assert take(cem, 1) == [0]
        places = [TopicPartition(relay.ordered, at) for at in range(2)]
        with precede.follow("g", bootstrap=relay.bootstrap, topic=relay.ordered) as follower:
            third = [next(follower) for _ in range(3)][-1]
            offsets = follower._source.token.offsets
        for place in places:
            place.offset = offsets.get(place.partition, 0) - 1
        admin = AdminClient({"bootstrap.servers": relay.bootstrap})
        for future in admin.delete_records([place for place in places if place.offset > 0]).values():
            future.result(10.0)
        assert third.data == 2
        with relay.member("bob") as bob, relay.member("cem") as cem:
            assert take(bob, 2) == take(cem, 2) == [2, 3]
        told = [record.message for record in caplog.records if "has deleted what came before" in record.message]
        assert len(told) == 2
        with relay.member("dan", retention="raise") as dan:
            with pytest.raises(precede.Hole):
                next(dan)
            assert take(dan, 2) == [2, 3]


def test_a_member_is_not_synced_while_something_of_its_own_is_not_delivered(relay: Relay) -> None:
    lost = [b'"data":"two"']
    relay.lose = lambda value: bool(lost) and lost[0] in value and bool(lost.pop())
    with relay.member("bob") as bob:
        bob.send("one")
        assert take(bob, 1) == ["one"]
        wait_for(lambda: bob.poll(0.1) is None and bob.status.synced, "bob has read all there is")
        bob.send("two")
        assert bob.poll(0.3) is None
        status = bob.status
        assert (status.synced, status.unsent, status.own_pending, status.missing) == (False, 0, 1, 0)
        assert str(status) == "1 not delivered yet"
    with relay.member("bob") as bob:
        wait_for(lambda: bob.poll(0.1) is None and bob.status.connection.state == "live", "bob reads on")
        assert bob.status.own_pending == 1, "it is known after a restart, too"


def test_a_member_says_how_far_the_job_is_behind(relay: Relay) -> None:
    progress = f"{relay.raw}.progress"
    topics.ensure(relay.bootstrap, [topics.progress(progress)])
    producer = Producer({"bootstrap.servers": relay.bootstrap})

    def publish_token(offset: int) -> None:
        for partition in range(2):
            key, value = token_record(relay.ordered, partition, offset)
            producer.produce(progress, value, key)
        assert producer.flush(30) == 0

    with relay.member("bob", progress_topic=progress) as bob:
        bob.send("one")
        assert take(bob, 1) == ["one"]
        wait_for(lambda: bob.poll(0.1) is None and bob.status.synced, "no job has said how far it is")
        publish_token(0)
        wait_for(lambda: bob.poll(0.1) is None and str(bob.status) == "job behind by 1", "it has not handled it")
        assert not bob.status.synced
        publish_token(1)
        wait_for(lambda: bob.poll(0.1) is None and str(bob.status) == "synced", "the job has handled all")


def test_a_member_whose_job_never_ran_is_connecting(broker: Broker) -> None:
    name = uuid.uuid4().hex[:8]
    with precede.Member("g", "bob", bootstrap=broker.bootstrap, raw_topic=name, ordered_topic=f"{name}.none") as bob:
        assert bob.poll(0.1) is None
        assert (bob.status.synced, str(bob.status)) == (False, "connecting")


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"group": ""}, "group must have 1 to 255 bytes"),
        ({"name": "x" * 256}, "name must have 1 to 255 bytes"),
        ({"name": 3}, "name must be text"),
        ({"history": "some"}, "history must be"),
        ({"history": -1}, "history must be"),
        ({"since": "5"}, "since must be the position"),
        ({"patience_s": 0}, "patience_s must be a number of seconds above 0"),
    ],
)
def test_what_cannot_be_a_member_is_refused_before_kafka_is_asked(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        precede.Member(**({"group": "g", "name": "ann", "bootstrap": "nowhere:1"} | given))


def test_what_cannot_be_sent_is_refused_in_a_sentence_and_takes_no_seq(relay: Relay) -> None:
    with relay.member("ann") as ann:
        one = ann.send("one")
        refused: dict[str, dict[str, Any]] = {
            "data must be a JSON value": {"data": float("nan")},
            "meta must be a JSON value": {"data": 1, "meta": {"load": float("nan")}},
            "data must be a JSON value.*set": {"data": {1}},
            "may have 524288 bytes": {"data": "x" * 600_000},
            "an id must be": {"data": "", "after": [("ann", 1)]},
            "the seq 1 to": {"data": "", "after": ("ann", 0, 0)},
            "one message at most": {"data": "", "after": [one, one]},
            "for the whole group": {"data": "", "to": ["bob"]},
        }
        for sentence, arguments in refused.items():
            with pytest.raises(ValueError, match=sentence):
                ann.send(**arguments)
        assert ann.send("two", after=one) == ("ann", 0, 2)


def test_the_program_that_runs_over_a_segment_runs_over_kafka(relay: Relay) -> None:
    names = ("ann", "bob", "cid")
    with contextlib.ExitStack() as opened:
        heard = converse([opened.enter_context(relay.member(name)) for name in names])
    assert [lines[0] for lines in heard] == ["ann: Who comes along?"] * 3
    assert all(set(lines[1:]) == {"bob: I do, says bob.", "cid: I do, says cid."} for lines in heard)
