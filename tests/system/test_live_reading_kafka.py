"""Live reading over a real broker, beside a small job without Spark."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import msgspec
import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

import precede
from bench.small_job import SmallJob, send
from precede.ingest.kafka import reading, topics
from precede.ingest.kafka.topics import describe
from precede.local.embedded_broker import Broker
from precede.reading.following import Follower
from precede.streaming.job.ticker import TICK
from precede.streaming.order.transaction import TransactionalProducer
from precede.streaming.settings import Settings
from precede.udfs.records import state_pieces
from tests.door.command import precede as precede_command
from tests.records import by_group, conversation
from tests.system.stream import own_topics

PARTITIONS = 3


def settings_of(broker: Broker, **more: Any) -> Settings:
    settings = Settings(bootstrap=broker.bootstrap, partitions=PARTITIONS, **own_topics(), **more)
    topics.ensure(broker.bootstrap, settings.topics())
    return settings


@pytest.fixture
def settings(broker: Broker) -> Settings:
    return settings_of(broker)


@pytest.fixture
def job(settings: Settings) -> Iterator[SmallJob]:
    running = SmallJob(settings)
    yield running
    running.close()


def follow(settings: Settings, group: str | None = None, *, live: bool = True, **more: Any) -> Follower:
    return precede.follow(group, config=settings, patience_s=3.0, live=live, **more)


def take(follower: Follower, count: int, wait_s: float = 20.0) -> list[bytes]:
    """So many records."""
    found: list[bytes] = []
    deadline = monotonic() + wait_s
    while len(found) < count and monotonic() < deadline:
        delivery = follower.poll(0.2)
        if delivery is not None:
            found.append(delivery.record)
    assert len(found) == count, f"only {len(found)} of {count} came"
    return found


def committed(settings: Settings) -> dict[bytes, list[bytes]]:
    with follow(settings, live=False) as follower:
        return by_group((one.group.encode(), one.record) for one in follower)


def grouped(records: list[bytes]) -> dict[bytes, list[bytes]]:
    return by_group((msgspec.json.decode(one)["group"].encode(), one) for one in records)


def test_a_live_reader_is_ahead_of_the_job_and_hands_over_the_bytes_that_the_job_writes_later(
    settings: Settings, job: SmallJob
) -> None:
    talk = conversation(900, groups=7, twice=0)
    send(settings, talk[:300])
    job.drain()
    with follow(settings) as follower:
        first = [one.record for one in iter(lambda: follower.poll(2.0), None)]
        send(settings, talk[300:600])
        before_the_job = first + [one.record for one in iter(lambda: follower.poll(2.0), None)]
        assert len(before_the_job) > len(first) + 250
        job.drain()
        send(settings, talk[600:])
        job.drain()
        live = grouped(before_the_job + [one.record for one in iter(lambda: follower.poll(2.0), None)])
    assert live == committed(settings)
    assert sum(map(len, live.values())) == 900


def test_tokens_go_from_live_to_committed_reading_and_back(settings: Settings, job: SmallJob) -> None:
    talk = conversation(600, groups=7, twice=0)
    send(settings, talk[:200])
    job.drain()
    send(settings, talk[200:])
    with follow(settings) as live:
        got = take(live, 350)
        token = live.token
    with follow(settings, live=False, token=token) as reader:
        assert [one.record for one in reader] == [], "the job has not written it yet"
        token = reader.token
    job.drain()
    with follow(settings, live=False, token=token) as reader:
        got += take(reader, 100)
        token = reader.token
    with follow(settings, token=token) as live:
        got += [one.record for one in iter(lambda: live.poll(2.0), None)]
    assert grouped(got) == committed(settings)
    assert len(got) == 600


def test_one_group_is_followed_in_its_own_partitions(settings: Settings, job: SmallJob) -> None:
    talk = conversation(600, groups=7, twice=0)
    send(settings, talk[:400])
    job.drain()
    send(settings, talk[400:])
    with follow(settings, "group-3") as live:
        got = [one.record for one in iter(lambda: live.poll(2.0), None)]
        raw = live._source._reader._reading.raw_offsets  # type: ignore[attr-defined]
    job.drain()
    assert got == committed(settings)[b"group-3"]
    assert len(raw) == 1


@pytest.mark.parametrize("live", [True, False])
def test_a_position_of_one_group_is_where_to_begin(settings: Settings, job: SmallJob, *, live: bool) -> None:
    send(settings, conversation(200, groups=3, twice=0))
    job.drain()
    with follow(settings, "group-1", since=20, live=live) as follower:
        assert [one.record for one in follower] == committed(settings)[b"group-1"][20:]


def test_the_end_is_behind_all_that_was_sent(settings: Settings, job: SmallJob) -> None:
    talk = conversation(400, groups=7, late=0, twice=0)
    send(settings, talk[:100])
    job.drain()
    send(settings, talk[100:200])
    with follow(settings, start="end") as live:
        assert live.poll(3.0) is None
        send(settings, talk[200:])
        got = take(live, 200)
    job.drain()
    assert (
        grouped(got).items()
        <= {key: records[-len(grouped(got)[key]) :] for key, records in committed(settings).items()}.items()
    )


def test_state_in_a_file_is_used_and_one_that_is_torn_or_foreign_is_left_aside_with_a_sentence(
    broker: Broker, settings: Settings, job: SmallJob, tmp_path: Path
) -> None:
    talk = conversation(600, groups=7, twice=0)
    file = tmp_path / "live.state"
    send(settings, talk[:400])
    job.drain()
    with follow(settings, live_state=file) as live:
        with pytest.raises(precede.Refused, match="Another live reader keeps its state in"):
            follow(settings, live_state=file)
        got = [one.record for one in iter(lambda: live.poll(2.0), None)]
        send(settings, talk[400:])
        got += take(live, 50)
        token = live.token
    assert file.stat().st_size > 100
    job.drain()
    whole = committed(settings)
    for content, warned in ((file.read_bytes(), False), (file.read_bytes()[:-5], True), (b"something else", True)):
        file.write_bytes(content)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            with follow(settings, live_state=file, token=token) as live:
                rest = [one.record for one in iter(lambda: live.poll(2.0), None)]
        assert grouped(got + rest) == whole
        assert any("is not used" in str(one.message) for one in said) == warned
    other = settings_of(broker)
    another = SmallJob(other)
    send(other, talk[:50])
    another.drain()
    another.close()
    with pytest.warns(UserWarning, match="it belongs to another stream"), follow(other, live_state=file) as live:
        assert grouped([one.record for one in iter(lambda: live.poll(2.0), None)]) == committed(other)


def test_a_difference_ends_live_reading_of_its_group_and_of_no_other(settings: Settings, job: SmallJob) -> None:
    talk = [(f"g{number % 2}".encode(), number) for number in range(20)]
    pairs = [(key, b'{"group":"%b","sender":"a","seq":%d,"after":[]}' % (key, number // 2 + 1)) for key, number in talk]
    send(settings, pairs[:10])
    job.drain()
    with follow(settings) as live:
        take(live, 10)
        send(settings, pairs[10:16])
        got = take(live, 6)
        wrong = got[0].replace(b'"seq":6', b'"seq":7')
        group = b"g0" if b'"g0"' in wrong else b"g1"
        job.spoil(group, wrong)
        with pytest.raises(precede.Difference, match=f"group {group.decode()} has ended"):
            live.poll(10.0)
        job.drain()
        send(settings, pairs[16:])
        assert {one[9:13] for one in take(live, 2)} == {b'"%b"' % (b"g1" if group == b"g0" else b"g0")}
        token = live.token
        job.drain()
        assert {one[9:13] for one in take(live, 2)} == {b'"%b"' % group}
    with follow(settings, live=False, token=token) as reader:
        assert {one[9:13] for one in take(reader, 2)} == {b'"%b"' % group}


def test_under_other_rules_a_live_reader_reads_what_is_committed_with_one_warning(broker: Broker) -> None:
    settings = settings_of(broker)
    job = SmallJob(settings, rules=999)
    send(settings, conversation(50, twice=0))
    job.drain()
    with follow(settings) as live, pytest.warns(UserWarning, match="version 999 of the rules") as said:
        got = [one.record for one in iter(lambda: live.poll(3.0), None)]
    assert grouped(got) == committed(settings)
    assert len([one for one in said if "999" in str(one.message)]) == 1
    job.close()


@pytest.mark.parametrize("is_live", [False, True], ids=["before it begins", "while it reads live"])
def test_where_a_newer_release_writes_a_live_reader_reads_what_is_committed_with_one_warning(
    settings: Settings, job: SmallJob, *, is_live: bool
) -> None:
    talk = conversation(60, groups=3, late=0, twice=0)
    send(settings, talk[:40])
    job.drain()
    if not is_live:
        job.change_owner(v=9)
    with follow(settings) as live, warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        got = take(live, 40)
        if is_live:
            send(settings, talk[40:50])
            got += take(live, 10)  # the job has ordered none of them
            job.drain()
            job.change_owner(v=9)
        sent = len(got)
        assert live.poll(3.0) is None
        send(settings, talk[sent:])
        assert live.poll(3.0) is None, "this is not committed yet"
        job.drain()
        got += take(live, len(talk) - sent)
    assert grouped(got) == committed(settings)
    assert len([one for one in said if "was written by another precede (version 9" in str(one.message)]) == 1


def test_without_a_job_a_live_reader_says_why_it_is_not_live_and_begins_when_one_starts(settings: Settings) -> None:
    send(settings, conversation(40, groups=2, late=0, twice=0))
    with follow(settings) as live:
        with pytest.warns(UserWarning, match="has not begun: no job has started yet"):
            assert live.poll(8.0) is None
        job = SmallJob(settings)
        take(live, 40)
        job.close()


def test_tail_shows_what_no_job_has_ordered_yet(settings: Settings, job: SmallJob) -> None:
    send(settings, conversation(40, groups=2, late=0, twice=0))
    names = ("bootstrap", "raw_topic", "ordered_topic", "progress_topic")
    variables = {f"PRECEDE_{name.upper()}": str(getattr(settings, name)) for name in names}
    done = precede_command("tail", "--live", "--from-beginning", "--json", "--count", "40", variables=variables)
    assert done.returncode == 0, done.stderr
    job.drain()
    assert grouped(done.stdout.splitlines()) == committed(settings)


def test_kafka_python_does_not_read_live(settings: Settings) -> None:
    with pytest.raises(ValueError, match="reads only what is committed"):
        follow(settings, client="kafka-python")


def test_an_open_transaction_in_the_raw_topic_holds_a_live_reader_up_until_it_ends(
    settings: Settings, job: SmallJob
) -> None:
    talk = conversation(60, groups=3, late=0, twice=0)
    send(settings, talk[:20])
    job.drain()
    killed = raw_transaction(settings)
    for at in range(PARTITIONS):
        killed.produce(settings.raw_topic, [TICK], [None], at)
    wait_for_records(settings, killed)
    send(settings, talk[20:40])
    with follow(settings) as live:
        got = [one.record for one in iter(lambda: live.poll(3.0), None)]
        assert len(got) == 20
        raw_transaction(settings)  # as a job that starts again: the transaction of the killed one is aborted
        got += take(live, 20)
        send(settings, talk[40:])
        got += take(live, 20)
    job.drain()
    assert grouped(got) == committed(settings)


def raw_transaction(settings: Settings) -> TransactionalProducer:
    producer = TransactionalProducer(
        settings.bootstrap, f"{settings.raw_topic}.own", batch_bytes_max=1_000_000, on_error=lambda _: None
    )
    producer.begin()
    return producer


def wait_for_records(settings: Settings, producer: TransactionalProducer) -> None:
    """Wait until what was produced is in the topic, though not committed."""
    deadline = monotonic() + 20
    while True:
        producer.poll()
        open_, committed_ = (
            reading.ends(settings.bootstrap, settings.raw_topic, PARTITIONS, committed=flag) for flag in (False, True)
        )
        if all(end[1] > stable[1] for end, stable in zip(open_, committed_, strict=True)):
            return
        assert monotonic() < deadline


def begin(settings: Settings) -> Follower:
    """A follower that is to fail when live reading begins."""
    follower = follow(settings)
    with follower:
        while not follower.at_end:
            follower.poll(0.5)
    return follower


def state_record(settings: Settings, key: bytes, value: bytes | None) -> None:
    producer = Producer({"bootstrap.servers": str(settings.bootstrap)})
    for at in range(PARTITIONS):
        producer.produce(settings.state_topic_name, value, key, at)
    assert producer.flush(30) == 0


def test_a_state_topic_with_a_newer_version_or_a_lost_piece_is_refused_in_a_sentence(broker: Broker) -> None:
    pieces = state_pieces.pieces(b"g", b"x" * 2_000, stream="?", rules=2, next_offset=1, bytes_max=1_500)
    for records, sentence in (
        ([(pieces[0][0], msgspec.msgpack.encode([99, 1]))], "newer precede"),
        ([pieces[0]], "is damaged: Piece 1 of 2"),
        ([(b"what", b"is this"), (b"[1]", b"2"), pieces[1]], None),
    ):
        settings = settings_of(broker)
        job = SmallJob(settings, state_every_ms=0)
        send(settings, conversation(50, twice=0))
        job.drain()
        job.close()
        ordered = describe(broker.bootstrap, [settings.ordered_topic])[settings.ordered_topic].id
        for key, value in records:
            stream = "another" if sentence is None else ordered
            own = value if value is None else value.replace(msgspec.msgpack.encode("?"), msgspec.msgpack.encode(stream))
            state_record(settings, key, own)
        if sentence is None:
            with follow(settings) as live:
                assert grouped([one.record for one in iter(lambda: live.poll(2.0), None)]) == committed(settings)
        else:
            with pytest.raises(precede.Refused, match=sentence):
                begin(settings)


def test_a_raw_topic_made_again_and_a_token_of_another_topic_are_refused_in_a_sentence(broker: Broker) -> None:
    settings = settings_of(broker)
    job = SmallJob(settings)
    send(settings, conversation(50, twice=0))
    job.drain()
    job.close()
    with follow(settings) as live:
        take(live, 10)
        token = live.token
    other = settings_of(broker)
    with pytest.raises(precede.Refused, match="The token belongs to the topic"):
        follow(other, token=token)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for future in admin.delete_topics([settings.raw_topic]).values():
        future.result()
    with pytest.raises(precede.Refused, match="has been deleted"):
        begin(settings)
    sleep(1.0)
    topics.ensure(broker.bootstrap, settings.topics())
    with pytest.raises(precede.Refused, match="and another one has its name"):
        begin(settings)


def test_a_raw_log_that_no_longer_reaches_back_to_the_horizon_is_refused(settings: Settings) -> None:
    job = SmallJob(settings, state_every_ms=1_000_000)
    send(settings, conversation(60, twice=0))
    job.drain()
    job.close()
    admin = AdminClient({"bootstrap.servers": str(settings.bootstrap)})
    for future in admin.delete_records(
        [TopicPartition(settings.raw_topic, at, 5) for at in range(PARTITIONS)]
    ).values():
        future.result()
    with pytest.raises(precede.Refused, match="begins at offset 5, and the state topic reaches only to 0"):
        begin(settings)


def test_a_member_that_reads_live_answers_before_the_job_has_ordered(
    settings: Settings, job: SmallJob, tmp_path: Path
) -> None:
    send(settings, [(b"g", b'{"group":"g","sender":"ann","seq":1,"after":[],"data":"Hello?"}')])
    job.drain()
    with precede.Member("g", "bob", config=settings, state=tmp_path / "bob", live=True, patience_s=10) as bob:
        first = next(bob)
        bob.send("Hello!", after=first)
        assert next(bob).data == "Hello!"
        send(settings, [(b"g", b'{"group":"g","sender":"ann","seq":2,"after":[["bob",0,1]],"data":"At last."}')])
        assert next(bob).data == "At last."
    job.drain()
    with precede.Member("g", "bob", config=settings, state=tmp_path / "bob", live=True, patience_s=3) as bob:
        assert [one.data for one in bob] == []
    assert len(committed(settings)[b"g"]) == 3
