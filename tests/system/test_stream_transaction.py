"""The exactly-once sink against a real broker: fences, tokens, and commits of unknown outcome."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Timer
from typing import Any

import msgspec
import pytest
from confluent_kafka import KafkaError, Producer
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its types forget to export them
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)
from confluent_kafka.cimpl import NewPartitions

from precede.ingest.kafka import topics
from precede.ingest.kafka.access import Address
from precede.ingest.kafka.topics import describe
from precede.ingest.progress import read_progress
from precede.local.embedded_broker import HOST, Broker
from precede.streaming.order import ownership, transaction
from precede.streaming.order import sink as sinks
from precede.streaming.order.notices import NO_MORE_SENTENCES, SENTENCES_MAX
from precede.streaming.order.sink import Sink
from precede.streaming.order.transaction import OverdueError, TransactionalProducer, TransactionError
from precede.udfs.errors import Refused, Unreachable
from precede.udfs.records.published import EXCERPT_BYTES_MAX, JobRecord, encode_sentence
from precede.udfs.sizes import DEAD_LETTER_BYTES_MAX, WRAPPED_BYTES, appended_bytes_max, ordered_bytes_max
from precede.udfs.steps import Records
from tests.system.door import END_TXN, Door
from tests.system.stream import Stream

Rows = list[tuple[int, int, int, Records]]


class Batch:
    """The part of a DataFrame that the sink uses, without Spark."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows

    def persist(self, _level: object) -> "Batch":
        return self

    def unpersist(self) -> None:
        pass


def batch(first: int, last: int, *, partition: int = 0) -> Any:
    """One packed row: a record for every raw offset from first to last."""
    offsets = list(range(first, last + 1))
    values = [b"%d:%d" % (partition, offset) for offset in offsets]
    records = Records(values, [b"g"] * len(values), offsets, [], [], [], len(offsets), 0, 0)
    return Batch([(0, partition, last, records)])


@pytest.fixture(autouse=True)
def rows_of_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sinks, "packed_rows", lambda batch: iter(batch.rows))


@pytest.fixture
def stream(broker: Broker, tmp_path: Path) -> Stream:
    return with_a_log(Stream(broker.bootstrap, tmp_path))


def with_a_log(stream: Stream) -> Stream:
    """The batches in this file are made up, but their offsets exist."""
    with Producer({"bootstrap.servers": str(stream.settings.bootstrap)}) as producer:
        for at in range(60):
            producer.produce(stream.settings.raw_topic, b"{}", partition=at % 2)
    return stream


@pytest.fixture
def sink(stream: Stream) -> Iterator[Callable[[], Sink]]:
    """Another job's sink at each call."""
    made: list[Sink] = []

    def make() -> Sink:
        made.append(new_sink(stream))
        return made[-1]

    yield make
    for one in made:
        one.close()


def new_sink(stream: Stream) -> Sink:
    found = describe(stream.settings.bootstrap, [stream.settings.raw_topic, stream.settings.progress_topic])
    return Sink(stream.settings, found[stream.settings.raw_topic], found[stream.settings.progress_topic])


def published(stream: Stream) -> list[bytes]:
    return [value for values in stream.ordered().values() for value in values]


def test_what_the_job_itself_says_goes_out_once_with_the_batch_and_into_the_partition_of_its_group(
    stream: Stream, sink: Callable[[], Sink]
) -> None:
    def rows(*offsets: int) -> Any:
        own = [JobRecord("raw", b"g", b"to the log %d" % one, one) for one in offsets]
        own += [JobRecord("control", b"g", b"to the members %d" % one, one) for one in offsets]
        records = Records([], [], [], [], [], [], len(offsets), 0, 0, own=own)
        return Batch([(0, 1, offsets[-1], records)])

    sink().publish(rows(3, 5))
    sink().publish(rows(3, 5, 8))
    assert [(key, value, partition) for key, value, partition, *_ in stream.raw() if key == b"g"] == [
        (b"g", b"to the log %d" % one, 1) for one in (3, 5, 8)
    ]
    control = stream.read(stream.settings.control_topic)
    assert [(key, value) for key, value, *_ in control] == [(b"g", b"to the members %d" % one) for one in (3, 5, 8)]


def test_what_the_job_writes_into_the_raw_topic_goes_out_directly_before_the_commit(
    stream: Stream, sink: Callable[[], Sink], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = stream.settings
    own = [JobRecord("raw", b"g", b"abandon", 3), JobRecord("control", b"g", b"request", 3)]
    records = Records([b"one"], [b"g"], [3], [b"two"], [b"g"], [3], 2, 0, 0, own=own)
    rows: Any = Batch([(0, 1, 3, records), (1, 1, 3, records)])
    produce = TransactionalProducer.produce
    topics_of_calls: list[str] = []

    def note(self: TransactionalProducer, topic: str, values: Any, *more: Any) -> None:
        topics_of_calls.extend([topic] * len(values))
        produce(self, topic, values, *more)

    one = sink()
    one.open()
    monkeypatch.setattr(TransactionalProducer, "produce", note)
    one.publish(rows)
    first, second = [settings.ordered_topic, settings.dead_letter_topic, settings.control_topic], settings.raw_topic
    assert topics_of_calls == [*first, *first, settings.progress_topic, second, second]
    assert [value for key, value, *_ in stream.raw() if key == b"g"] == [b"abandon"] * 2


def test_what_the_kernel_tells_a_person_is_said_once_and_not_more_than_somebody_reads(
    stream: Stream, sink: Callable[[], Sink]
) -> None:
    own = [JobRecord("person", b"g", encode_sentence(f"Group {one} lacks a key."), one) for one in range(200)]
    rows: Any = Batch([(0, 1, 200, Records([], [], [], [], [], [], 200, 0, 0, own=own))])
    said: list[str] = []
    one = sink()
    for _ in range(2):
        one.publish(rows)
        one.announce(lambda sentence, **_: said.append(sentence))
    assert said == [f"Group {number} lacks a key." for number in range(SENTENCES_MAX)] + [NO_MORE_SENTENCES]


def test_a_batch_is_published_with_its_token(stream: Stream, sink: Callable[[], Sink]) -> None:
    one = sink()
    one.publish(batch(0, 9))
    found = describe(stream.settings.bootstrap, [stream.settings.progress_topic])
    found_progress = read_progress(
        stream.settings.bootstrap, found[stream.settings.progress_topic], stream.settings.ordered_topic
    )
    assert len(published(stream)) == 10
    assert found_progress.token == {0: 10}
    assert {at: owner.job for at, owner in found_progress.owners.items()} == dict.fromkeys(range(2), one.ownership.job)


def test_a_batch_offered_again_or_cut_otherwise_publishes_only_what_is_new(
    stream: Stream, sink: Callable[[], Sink]
) -> None:
    sink().publish(batch(0, 9))
    later = sink()
    for rows in (batch(0, 9), batch(5, 14), batch(12, 19), batch(3, 4, partition=1)):
        later.publish(rows)
    assert sorted(published(stream)) == sorted([b"0:%d" % at for at in range(20)] + [b"1:3", b"1:4"])


def test_a_second_job_fences_the_first_which_says_so_and_stops(stream: Stream, sink: Callable[[], Sink]) -> None:
    first, second = sink(), sink()
    first.publish(batch(0, 4))
    second.publish(batch(5, 9))
    with pytest.raises(Refused, match="Another job took over the ordered topic"):
        first.publish(batch(5, 9))
    assert first.refused is not None
    assert len(published(stream)) == 10


def test_a_job_that_failed_and_tries_again_does_not_take_back_what_another_took_over(
    stream: Stream, sink: Callable[[], Sink]
) -> None:
    first, second = sink(), sink()
    first.publish(batch(0, 4))
    first.open()  # its query failed and is restarted
    first.close()
    second.publish(batch(5, 9))
    with pytest.raises(Refused, match="Another job took over the ordered topic"):
        first.open()
    second.publish(batch(10, 14))
    assert len(published(stream)) == 15


@pytest.mark.parametrize("happened", [True, False])
def test_a_commit_of_unknown_outcome_is_settled_by_the_token(
    stream: Stream, sink: Callable[[], Sink], monkeypatch: pytest.MonkeyPatch, happened: bool
) -> None:
    one = sink()
    one.publish(batch(0, 4))
    commit = TransactionalProducer.commit
    failed: list[int] = []

    def fail_once(self: TransactionalProducer) -> None:
        failed.append(1)
        if happened or len(failed) > 1:
            commit(self)
        if len(failed) == 1:
            raise TransactionError(KafkaError(KafkaError._TIMED_OUT, "nobody knows"))

    monkeypatch.setattr(TransactionalProducer, "commit", fail_once)
    one.publish(batch(5, 9))
    assert published(stream) == [b"0:%d" % at for at in range(10)]
    assert one.token == {0: 10}


def test_a_transaction_that_took_too_long_is_published_again_and_the_sentence_says_what_helps(
    stream: Stream, sink: Callable[[], Sink], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ownership, "CLAIM_S", 0.1)
    commit = TransactionalProducer.commit
    one = sink()
    one.publish(batch(0, 4))
    failed: list[int] = []

    def fail_once(self: TransactionalProducer) -> None:
        failed.append(1)
        if len(failed) == 1:
            raise OverdueError(KafkaError(KafkaError._FENCED, "the broker aborted it"))
        commit(self)

    monkeypatch.setattr(TransactionalProducer, "commit", fail_once)
    one.publish(batch(5, 9))
    said: list[str] = []
    one.announce(lambda sentence, **_: said.append(sentence))
    (sentence,) = said
    assert sentence.startswith("A transaction took longer than 30 s, so Kafka aborted it, and the batch is published")
    assert sentence.endswith("lower max_offsets_per_trigger, which is 200000, so that batches are smaller.")
    assert published(stream) == [b"0:%d" % at for at in range(10)]


def test_a_job_that_was_fenced_by_a_start_that_crashed_goes_on(
    stream: Stream, sink: Callable[[], Sink], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ownership, "CLAIM_S", 0.1)
    one = sink()
    one.publish(batch(0, 4))
    TransactionalProducer(
        stream.settings.bootstrap, one.ownership.transactional_id, batch_bytes_max=1_000, on_error=print
    )
    one.publish(batch(5, 9))
    assert published(stream) == [b"0:%d" % at for at in range(10)]


def test_a_commit_that_nobody_answers_leaves_each_record_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction, "COMMIT_S", 4.0)
    monkeypatch.setattr(transaction, "ABORT_S", 0.5)
    with Door() as door:
        properties = {"advertised.listeners": f"PLAINTEXT://{HOST}:{door.port}"}
        with Broker(door.behind, data=tmp_path / "broker", properties=properties):
            stream = with_a_log(Stream(f"{HOST}:{door.port}", tmp_path))
            one = new_sink(stream)
            one.publish(batch(0, 4))
            door.keep(END_TXN, forward=True)
            one.publish(batch(5, 9))
            door.keep(END_TXN, forward=False)
            one.publish(batch(10, 14))
            assert door.kept == [True, False], "a commit was answered"
            assert published(stream) == [b"0:%d" % at for at in range(15)]
            assert one.token == {0: 15}
            one.close()


def test_what_a_dead_job_left_open_is_never_seen(stream: Stream, sink: Callable[[], Sink]) -> None:
    dying = sink()
    dying.open()
    assert dying._producer is not None
    dying._producer.begin()
    dying._producer.produce(stream.settings.ordered_topic, [b"half a batch"], [b"g"])
    dying._producer._producer.flush()
    sink().publish(batch(0, 4))
    assert published(stream) == [b"0:%d" % at for at in range(5)]


def test_another_stream_s_open_transaction_does_not_hide_what_is_out(stream: Stream, sink: Callable[[], Sink]) -> None:
    topic = stream.settings.progress_topic
    other = Producer({"bootstrap.servers": str(stream.settings.bootstrap), "transactional.id": f"another of {topic}"})
    other.init_transactions()
    other.begin_transaction()
    other.produce(topic, b'{"next":9,"v":1}', b'["another",0]')
    other.flush()
    with pytest.raises(Unreachable, match=r"to its end: a transaction is open in it"):
        sink().publish(batch(0, 4))
    other.commit_transaction()
    first = sink()
    first.publish(batch(0, 4))
    other.begin_transaction()
    other.produce(topic, b'{"next":19,"v":1}', b'["another",0]')
    other.flush()
    first.publish(batch(5, 9))  # its token is behind the open transaction
    first.close()
    ended = Timer(2.0, other.commit_transaction)
    ended.start()
    sink().publish(batch(5, 12))
    ended.join()
    assert published(stream) == [b"0:%d" % at for at in range(13)]


def test_an_output_topic_without_its_token_is_refused(stream: Stream, sink: Callable[[], Sink]) -> None:
    sink().publish(batch(0, 4))
    other = Stream(stream.settings.bootstrap, Path(stream.settings.checkpoint).parent)
    stream.change(progress_topic=other.settings.progress_topic)
    with pytest.raises(Refused, match=r"holds records, but the progress topic .* does not know of them"):
        sink().publish(batch(0, 4))


@pytest.mark.parametrize(
    ("role", "sentence"),
    [
        ("raw_topic", r"The raw topic .* has 3 partitions, but the content of the ordered topic .* was made from 2"),
        (
            "ordered_topic",
            r"The ordered topic .* has 3 partitions, but had 2 when it was started.*with the same positions",
        ),
    ],
)
def test_more_partitions_are_refused_without_the_checkpoint_too(
    stream: Stream, sink: Callable[[], Sink], role: str, sentence: str
) -> None:
    sink().publish(batch(0, 4))
    name = getattr(stream.settings, role)
    admin = AdminClient({"bootstrap.servers": str(stream.settings.bootstrap)})
    admin.create_partitions([NewPartitions(name, 3)])[name].result()
    while len(admin.list_topics(timeout=10).topics[name].partitions) < 3:
        time.sleep(0.05)
    with pytest.raises(Refused, match=sentence):
        sink().publish(batch(5, 9))


@pytest.mark.parametrize("role", ["ordered_topic", "dead_letter_topic"])
def test_an_output_topic_made_anew_is_refused_without_the_checkpoint_too(
    stream: Stream, sink: Callable[[], Sink], role: str
) -> None:
    sink().publish(batch(0, 4))
    name = getattr(stream.settings, role)
    admin = AdminClient({"bootstrap.servers": str(stream.settings.bootstrap)})
    admin.delete_topics([name])[name].result()
    while name in admin.list_topics(timeout=10).topics:
        time.sleep(0.05)
    topics.ensure(stream.settings.bootstrap, [topics.output(name, 2)])
    with pytest.raises(Refused, match=r"is not the one into which .* was published.*with the same positions"):
        sink().publish(batch(5, 9))


@pytest.mark.parametrize(
    "key", [b"\xff", b'["\xff",0]', pytest.param(b"[" * 5_000, id="deep"), b"not JSON", b"{}", b'["another",0]']
)
def test_what_others_write_into_the_progress_topic_is_passed_over(
    stream: Stream, sink: Callable[[], Sink], key: bytes
) -> None:
    sink().publish(batch(0, 4))
    write(stream, stream.settings.progress_topic, key, b"nonsense")
    sink().publish(batch(0, 9))
    assert len(published(stream)) == 10


@pytest.mark.parametrize(
    "value", [b"nonsense", b'{"v":"\xff"}', b"[]", b"{}", b'{"v":1}', b'{"v":1,"next":"all"}', b'{"v":[1],"next":1}']
)
def test_a_token_that_no_precede_wrote_is_refused(stream: Stream, sink: Callable[[], Sink], value: bytes) -> None:
    sink().publish(batch(0, 4))
    key = msgspec.json.encode([stream.settings.ordered_topic, 0])
    write(stream, stream.settings.progress_topic, key, value)
    with pytest.raises(
        Refused, match=r"a record that precede did not write .*take a new ordered_topic|was written by another precede"
    ):
        sink().publish(batch(0, 9))


def write(stream: Stream, topic: str, key: bytes, value: bytes) -> None:
    with Producer({"bootstrap.servers": str(stream.settings.bootstrap)}) as producer:
        producer.produce(topic, value, key)


def test_a_log_that_ends_before_what_is_out_is_refused_and_what_comes_there_is_not_passed_over(
    stream: Stream, sink: Callable[[], Sink]
) -> None:
    sink().publish(batch(0, 30))  # the log has 30, so the one at offset 30 is lost
    with pytest.raises(
        Refused, match=r"has lost its end: its partition 0 ends at offset 30, but everything below 31 has been pr"
    ):
        sink().publish(batch(30, 35))


def test_topics_that_are_just_large_enough_take_what_is_largest_and_many_small_records(
    stream: Stream, sink: Callable[[], Sink]
) -> None:
    settings = stream.settings
    limits = settings.limits
    shrink(settings.bootstrap, settings.ordered_topic, ordered_bytes_max(limits))
    shrink(settings.bootstrap, settings.dead_letter_topic, DEAD_LETTER_BYTES_MAX)
    largest = limits.record_bytes_max + appended_bytes_max()
    ordered = [b"o" * size for size in (1_000,) * 3_000 + (largest,) + (1_000,) * 3_000]
    sizes = (1_000,) * 3_000 + (DEAD_LETTER_BYTES_MAX - EXCERPT_BYTES_MAX - WRAPPED_BYTES,)
    dead = [b'{"code":"late"'.ljust(size) for size in sizes]
    letter_keys: list[bytes | None] = [*[b"k"] * 3_000, b"k" * EXCERPT_BYTES_MAX]
    keys, at = [b"g" * 255] * len(ordered), [0] * (len(ordered) + len(dead))
    records = Records(ordered, keys, at[: len(ordered)], dead, letter_keys, at[: len(dead)], 1, 0, 0)
    made_up: Any = Batch([(0, 0, 0, records)])
    sink().publish(made_up)
    assert sum(map(len, published(stream))) == sum(map(len, ordered))
    assert stream.dead() == dead


def shrink(bootstrap: Address | str, topic: str, bytes_max: int) -> None:
    """Let a topic take batches of this size at most."""
    change = ConfigEntry("max.message.bytes", str(bytes_max), incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[change])
    admin = AdminClient({"bootstrap.servers": str(bootstrap)})  # it must outlive its answer
    admin.incremental_alter_configs([resource])[resource].result()
