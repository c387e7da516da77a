"""The exactly-once sink against a real broker: fences, tokens, and commits of unknown outcome."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from precede.embedded_broker import HOST, Broker
from streaming import kafka, transaction
from streaming.errors import Refused
from streaming.progress import read_progress
from streaming.transaction import SAID_ENOUGH, SAID_MAX, Sink
from tests.system.door import END_TXN, Door
from tests.system.stream import Stream
from udfs.own_records import Own, encode_sentence
from udfs.shard import Records

Rows = list[tuple[int, int, int, Records]]


class Batch:
    """What the sink asks of a DataFrame, without Spark."""

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
    monkeypatch.setattr(transaction, "packed_rows", lambda batch: iter(batch.rows))


@pytest.fixture
def stream(broker: Broker, tmp_path: Path) -> Stream:
    return Stream(broker.bootstrap, tmp_path)


@pytest.fixture
def sink(stream: Stream) -> Iterator[Callable[[], Sink]]:
    """Another job's sink, each time it is called."""
    made: list[Sink] = []

    def make() -> Sink:
        made.append(new_sink(stream))
        return made[-1]

    yield make
    for one in made:
        one.close()


def new_sink(stream: Stream) -> Sink:
    topics = kafka.describe(stream.settings.bootstrap, [stream.settings.raw_topic, stream.settings.progress_topic])
    return Sink(stream.settings, topics[stream.settings.raw_topic], topics[stream.settings.progress_topic])


def published(stream: Stream) -> list[bytes]:
    return [value for values in stream.ordered().values() for value in values]


def test_what_the_job_itself_says_goes_out_once_with_the_batch_and_into_the_partition_of_its_group(
    stream: Stream, sink: Callable[[], Sink]
) -> None:
    def rows(*offsets: int) -> Any:
        own = [Own("raw", b"g", b"to the log %d" % one, one) for one in offsets]
        own += [Own("control", b"g", b"to the members %d" % one, one) for one in offsets]
        records = Records([], [], [], [], [], [], len(offsets), 0, 0, own=own)
        return Batch([(0, 1, offsets[-1], records)])

    sink().publish(rows(3, 5))
    sink().publish(rows(3, 5, 8))
    assert [(key, value, partition) for key, value, partition, *_ in stream.raw()] == [
        (b"g", b"to the log %d" % one, 1) for one in (3, 5, 8)
    ]
    control = stream.read(stream.settings.control_topic)
    assert [(key, value) for key, value, *_ in control] == [(b"g", b"to the members %d" % one) for one in (3, 5, 8)]


def test_what_the_kernel_tells_a_person_is_said_once_and_not_more_than_somebody_reads(
    stream: Stream, sink: Callable[[], Sink]
) -> None:
    own = [Own("person", b"g", encode_sentence(f"Group {one} lacks a key."), one) for one in range(200)]
    rows: Any = Batch([(0, 1, 200, Records([], [], [], [], [], [], 200, 0, 0, own=own))])
    said: list[str] = []
    one = sink()
    for _ in range(2):
        one.publish(rows)
        one.listen(lambda sentence, **_: said.append(sentence))
    assert said == [f"Group {number} lacks a key." for number in range(SAID_MAX)] + [SAID_ENOUGH]


def test_a_batch_is_published_with_its_token(stream: Stream, sink: Callable[[], Sink]) -> None:
    one = sink()
    one.publish(batch(0, 9))
    topics = kafka.describe(stream.settings.bootstrap, [stream.settings.progress_topic])
    owner, token = read_progress(
        stream.settings.bootstrap, topics[stream.settings.progress_topic], stream.settings.ordered_topic
    )
    assert len(published(stream)) == 10
    assert token == {0: 10}
    assert owner is not None
    assert owner.job == one.job


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


@pytest.mark.parametrize("happened", [True, False])
def test_a_commit_of_unknown_outcome_is_settled_by_the_token(
    stream: Stream, sink: Callable[[], Sink], monkeypatch: pytest.MonkeyPatch, happened: bool
) -> None:
    one = sink()
    one.publish(batch(0, 4))
    commit = Sink._commit
    failed: list[int] = []

    def fail_once(self: Sink, producer: Any, upto: dict[int, int]) -> None:
        if failed:
            return commit(self, producer, upto)
        failed.append(1)
        if happened:
            before = dict(self.token)
            commit(self, producer, upto)
            self.token = before
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "nobody knows"))

    monkeypatch.setattr(Sink, "_commit", fail_once)
    one.publish(batch(5, 9))
    assert published(stream) == [b"0:%d" % at for at in range(10)]
    assert one.token == {0: 10}


def test_a_commit_that_nobody_answers_leaves_each_record_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction, "COMMIT_S", 4.0)
    monkeypatch.setattr(transaction, "ABORT_S", 0.5)
    with Door() as door:
        properties = {"advertised.listeners": f"PLAINTEXT://{HOST}:{door.port}"}
        with Broker(door.behind, data=tmp_path / "broker", properties=properties):
            stream = Stream(f"{HOST}:{door.port}", tmp_path)
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
    dying._producer.begin_transaction()
    dying._producer.produce(stream.settings.ordered_topic, b"half a batch", b"g")
    dying._producer.flush()
    sink().publish(batch(0, 4))
    assert published(stream) == [b"0:%d" % at for at in range(5)]


def test_an_output_topic_without_its_token_is_refused(stream: Stream, sink: Callable[[], Sink]) -> None:
    sink().publish(batch(0, 4))
    other = Stream(stream.settings.bootstrap, Path(stream.settings.checkpoint).parent)
    stream.change(progress_topic=other.settings.progress_topic)
    with pytest.raises(Refused, match=r"holds records, but the progress topic .* does not know of them"):
        sink().publish(batch(0, 4))
