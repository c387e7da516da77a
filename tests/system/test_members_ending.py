"""`precede.Member` closed, forked, shared by threads, and without a broker or a disk for a while."""

import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

import precede
from precede.ingest import sender_state
from precede.local.embedded_broker import Broker, free_port
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


def test_a_member_that_is_closed_twice_leaves_its_state_to_the_next_holder(relay: Relay, state: Path) -> None:
    with relay.member("ann") as ann:
        ann.send("one")
        ann.close()
        (file,) = state.glob("*.json")
        with sender_state.opened(file) as kept:  # the name is open elsewhere now
            kept.memory.senders[0].seq = 9
            kept.save()
        ann.close()
    with sender_state.opened(file) as kept:
        assert kept.memory.senders[0].seq == 9


def test_a_state_file_is_not_written_without_its_lock(tmp_path: Path) -> None:
    with sender_state.opened(tmp_path / "state.json") as kept:
        kept.save()
    with pytest.raises(precede.Closed):
        kept.save()


def test_after_close_every_call_says_that_the_member_is_closed(relay: Relay) -> None:
    ann = relay.member("ann")
    id_ = ann.send("one")
    ann.close()
    for call in (
        lambda: ann.send("two"),
        lambda: ann.poll(0.0),
        lambda: next(ann),
        lambda: ann.find(id_),
        ann.leave,
        ann.flush,
        lambda: ann.status,
        lambda: ann.members,
        lambda: ann.outbox,
    ):
        with pytest.raises(precede.Closed, match="The member ann of g is closed: open it again"):
            call()


@pytest.mark.parametrize("more", [{}, {"live": True}, {"client": "kafka-python"}])
def test_close_takes_a_second_at_most_and_ends_who_waits(relay: Relay, more: dict[str, Any]) -> None:
    bob = relay.member("bob", patience_s=None, **more)
    ends: list[str] = []

    def iterate() -> None:
        ends.extend("a message" for _ in bob)
        ends.append("end")

    def poll() -> None:
        try:
            bob.poll(60.0)
        except precede.Closed:
            ends.append("closed")

    threads = [threading.Thread(target=iterate), threading.Thread(target=poll)]
    for thread in threads:
        thread.start()
    time.sleep(0.5)
    began = time.monotonic()
    bob.close()
    assert time.monotonic() - began < 1.0
    for thread in threads:
        thread.join(1.0)
    assert sorted(ends) == ["closed", "end"]


def test_threads_that_read_one_member_get_each_message_once(relay: Relay) -> None:
    count = 3_000
    producer = Producer({"bootstrap.servers": relay.bootstrap, "partitioner": "murmur2_random"})
    with relay.member("bob", patience_s=None) as bob:
        for seq in range(1, count + 1):
            record = {"group": "g", "sender": "ann", "seq": seq, "after": [], "data": seq}
            producer.produce(relay.raw, json.dumps(record).encode(), b"g")
        assert producer.flush(30) == 0
        got: list[list[int]] = [[], [], [], []]
        failed: list[Exception] = []

        def take(mine: list[int]) -> None:
            try:
                for message in bob:
                    mine.append(message.data)  # noqa: PERF401 (the others look at it meanwhile)
            except Exception as error:  # noqa: BLE001 (whatever it is, the test shows it)
                failed.append(error)

        threads = [threading.Thread(target=take, args=(mine,)) for mine in got]
        for thread in threads:
            thread.start()
        wait_for(lambda: failed != [] or sum(map(len, got)) == count, "all were handed over")
    for thread in threads:
        thread.join()
    assert failed == []
    assert all(mine == sorted(mine) for mine in got)
    assert sorted(seq for mine in got for seq in mine) == list(range(1, count + 1))


def test_a_forked_child_is_told_to_open_a_member_of_its_own_and_takes_nothing_from_its_parent(relay: Relay) -> None:
    with relay.member("ann") as ann:
        ann.send("one")
        child = os.fork()
        if child == 0:
            try:
                ann.send("from the child")
            except precede.Refused as refused:
                ann.close()
                os._exit(7 if "opened in another process" in str(refused) else 8)
            os._exit(9)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert ann.send("two") == ("ann", 0, 2)
        with pytest.raises(precede.Refused, match="is in use"):
            relay.member("ann")


def test_what_kafka_did_not_confirm_is_sent_in_the_background_and_said_once(tmp_path: Path) -> None:
    port = free_port()
    with Broker(port, data=tmp_path / "broker") as broker:
        ann = precede.Member("g", "ann", bootstrap=broker.bootstrap, confirm_s=1.0)
        ann.send("one")
        broker.stop()
        began = time.monotonic()
        with pytest.raises(precede.Unconfirmed, match=r"ann:2 is stored.*do not say it again") as said:
            ann.send("two")
        assert time.monotonic() - began < 5.0
        assert (said.value.id, ann.outbox) == (("ann", 0, 2), [("ann", 0, 2)])
        with pytest.raises(precede.Unconfirmed, match=r"ann:2, which was said before, so nothing after it") as also:
            ann.send("three")
        assert also.value.id is None
        assert not ann.flush(0.1)
        status = ann.status
        assert (status.synced, status.unsent, status.connection.state) == (False, 1, "broker away")
        with Broker(port, data=tmp_path / "broker"):
            assert ann.flush(10.0)  # and no one called `send`
            assert ann.send("three") == ("ann", 0, 3)
            wait_for(lambda: ann.status.connection.state == "connecting", "no job has ever run here")
        with pytest.raises(precede.Unconfirmed):
            ann.send("four")
        began = time.monotonic()
        ann.close()
        assert time.monotonic() - began < 1.0
        with Broker(port, data=tmp_path / "broker"):
            with precede.Member("g", "ann", bootstrap=broker.bootstrap) as ann:
                assert ann.flush(10.0)
                assert ann.outbox == []
            records = read(broker.bootstrap, "precede.raw")
            values = [record.value for record in records]
            said_once = sorted(set(values), key=values.index)
            assert [json.loads(value or b"")["data"] for value in said_once] == ["one", "two", "three", "four"]


def test_a_full_disk_is_told_in_a_sentence_and_nothing_ends_or_is_lost_by_it(relay: Relay, state: Path) -> None:
    create = {"group": "g", "kind": "create", "options": {"order": "lamport"}, "members": ["ann", "bob"]}
    relay.publish(relay.raw, json.dumps(create).encode())
    with relay.member("ann") as ann, relay.member("bob") as bob:
        ann.send("one")
        assert next(bob).data == "one"
        blocks = [file.with_name(f"{file.name}.new") for file in state.glob("*.json")]
        for block in blocks:
            block.mkdir()  # what would be written cannot be
        with pytest.raises(precede.Refused, match=r"The state file .* cannot be written"):
            bob.send("lost")
        time.sleep(2.0)  # heartbeats fail meanwhile
        assert bob.poll(0.1) is None
        for block in blocks:
            block.rmdir()
        assert ann.send("two") == ("ann", 0, 2)
        assert bob.send("three") == ("bob", 0, 1)
        assert [next(bob).data, next(bob).data] in (["two", "three"], ["three", "two"])
    assert relay.dead == []
