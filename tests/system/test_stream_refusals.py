"""Conditions that forbid a start are refused before Spark starts, with a sentence that says how to fix them."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions
from pyspark.sql import SparkSession

from precede.ingest.kafka import topics
from precede.ingest.kafka.topics import describe
from precede.local.embedded_broker import Broker
from precede.streaming.job import job
from precede.streaming.order.sink import Sink
from precede.streaming.spark import checkpoint
from precede.streaming.spark.engine import SparkJob
from precede.udfs.errors import Refused
from precede.udfs.limits import Limits
from tests.records import conversation
from tests.system.stream import Stream


class SparkStarted(Exception):
    """The job was about to start Spark."""


@pytest.fixture
def stream(broker: Broker, tmp_path: Path) -> Stream:
    """A stream with a checkpoint as a job writes it after its checks."""
    stream = Stream(broker.bootstrap, tmp_path)
    settings = stream.settings
    outputs = [settings.ordered_topic, settings.dead_letter_topic, settings.control_topic]
    names = [settings.raw_topic, settings.progress_topic, *outputs]
    found = describe(settings.bootstrap, names)
    folder = Path(settings.checkpoint)
    folder.mkdir()
    checkpoint.update(
        settings.checkpoint_place,
        order=checkpoint.order_part(settings, None, found),
        history=checkpoint.history_part(settings, None, found),
    )
    return stream


@pytest.fixture(autouse=True)
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    def started(*_: Any) -> None:
        raise SparkStarted

    monkeypatch.setattr(SparkJob, "_start_spark", started)


def start(stream: Stream, **more: Any) -> None:
    stream.change(**more)
    job.run(stream.settings, say=lambda _: None)


def through(stream: Stream, next_offsets: dict[int, int]) -> None:
    """Write Spark's part of the checkpoint as after a batch up to there."""
    folder = Path(stream.settings.order_checkpoint.location)
    for part in ("commits", "offsets"):
        (folder / part).mkdir(parents=True)
    (folder / "commits" / "0").write_text("v1\n{}")
    offsets = json.dumps({stream.settings.raw_topic: next_offsets})
    (folder / "offsets" / "0").write_text(f"v1\n{{}}\n{offsets}")


def test_the_same_settings_again_are_welcome(stream: Stream) -> None:
    with pytest.raises(SparkStarted):
        start(stream)


def test_a_checkpoint_of_another_topic_is_refused(stream: Stream, broker: Broker, tmp_path: Path) -> None:
    other = Stream(broker.bootstrap, tmp_path / "other")
    with pytest.raises(Refused, match=rf"belongs to the topic {stream.settings.raw_topic}, not to"):
        start(stream, raw_topic=other.settings.raw_topic)


def test_a_topic_deleted_and_made_anew_is_another_topic(stream: Stream) -> None:
    name = stream.settings.raw_topic
    admin = AdminClient({"bootstrap.servers": str(stream.settings.bootstrap)})
    admin.delete_topics([name])[name].result()
    while name in admin.list_topics(timeout=10).topics:  # it lingers and would be mistaken for the new one
        time.sleep(0.05)
    topics.ensure(stream.settings.bootstrap, [topics.raw(name, 2)])
    with pytest.raises(Refused, match=r"belongs to an earlier topic .*deleted and created again"):
        start(stream)


@pytest.mark.parametrize(("more", "which"), [(1, "a newer"), (-1, "an older")])
def test_a_checkpoint_of_another_version_is_refused(stream: Stream, more: int, which: str) -> None:
    path = Path(stream.settings.checkpoint) / checkpoint.FILE
    other = checkpoint.VERSION + more
    path.write_text(json.dumps(json.loads(path.read_text()) | {"v": other, "something": "new"}))
    with pytest.raises(Refused, match=f"has version {other}, written by {which} precede"):
        start(stream)


def test_a_damaged_checkpoint_file_is_refused(stream: Stream) -> None:
    path = Path(stream.settings.checkpoint) / checkpoint.FILE
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(Refused, match=r"precede.json is damaged"):
        start(stream)


def test_a_checkpoint_without_its_file_is_refused(stream: Stream) -> None:
    folder = Path(stream.settings.checkpoint)
    (folder / checkpoint.FILE).unlink()
    (folder / "order").mkdir()
    with pytest.raises(Refused, match=r"holds order/ but no precede.json"):
        start(stream)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"shards": 9}, "shards is 9, but the checkpoint .* was made with 8; .*, which begins at the state topic"),
        ({"order": "fifo"}, "The setting order is fifo, but the checkpoint .* was made with s_b"),
        ({"partitioner": "crc32"}, "The setting partitioner is crc32, but the checkpoint .* was made with murmur2"),
        ({"limits": Limits(window=7)}, "window was 100000, now 7"),
    ],
)
def test_other_shards_order_or_limits_are_refused(stream: Stream, change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(Refused, match=sentence):
        start(stream, **change)


def test_a_raw_topic_that_got_more_partitions_is_refused_with_the_way_out(stream: Stream, tmp_path: Path) -> None:
    name = stream.settings.raw_topic
    admin = AdminClient({"bootstrap.servers": str(stream.settings.bootstrap)})
    admin.create_partitions([NewPartitions(name, 3)])[name].result()
    with pytest.raises(Refused, match=r"has 3 partitions, but the checkpoint .* with 2.*new raw topic"):
        start(stream)
    fresh = Stream(stream.settings.bootstrap, tmp_path / "anew", partitions=3).settings
    stream.settings = fresh
    with pytest.raises(SparkStarted):
        start(stream)  # the way out: a new raw topic, new output topics, a new checkpoint


def test_a_fresh_start_on_a_log_whose_beginning_is_gone_is_refused_unless_accepted(
    stream: Stream, tmp_path: Path
) -> None:
    stream.send(conversation(50))
    stream.cut(stream.settings.raw_topic, 5)
    with pytest.raises(Refused, match=r"The beginning of the raw topic .* is gone .*accept_cut_log"):
        start(stream)  # Spark's part of the checkpoint is gone
    publish_once(stream, {0: 5, 1: 9})
    with pytest.raises(Refused, match=r"The beginning .* is gone, and the positions in .* are counted from it"):
        start(stream, accept_cut_log=True)
    through(stream, {0: 5, 1: 9})
    with pytest.raises(SparkStarted):
        start(stream, accept_cut_log=False)  # not a fresh start
    fresh = Stream(stream.settings.bootstrap, tmp_path / "anew").settings
    with pytest.raises(SparkStarted):
        start(
            stream,
            checkpoint=str(tmp_path / "fresh"),
            accept_cut_log=True,
            ordered_topic=fresh.ordered_topic,
            dead_letter_topic=fresh.dead_letter_topic,
        )


def test_a_start_that_was_accepted_and_killed_in_its_first_batch_goes_on(stream: Stream) -> None:
    stream.send(conversation(50))
    stream.cut(stream.settings.raw_topic, 5)
    began = Path(stream.settings.order_checkpoint.location) / "sources" / "0" / "0"
    began.parent.mkdir(parents=True)
    began.write_bytes(b"\0v1\n" + json.dumps({stream.settings.raw_topic: {0: 5, 1: 5}}).encode())
    publish_once(stream)  # the batch is published, and Spark does not know it
    with pytest.raises(SparkStarted):
        start(stream, accept_cut_log=True)
    with pytest.raises(SparkStarted):
        start(stream)
    stream.cut(stream.settings.raw_topic, 6)
    with pytest.raises(Refused, match=r"lost messages .* begins at offset 6, and the checkpoint .* is at 5"):
        start(stream, accept_cut_log=True)


def publish_once(stream: Stream, reached: dict[int, int] | None = None) -> None:
    """Like a job while the log was complete."""
    found = describe(stream.settings.bootstrap, [stream.settings.raw_topic, stream.settings.progress_topic])
    sink = Sink(stream.settings, found[stream.settings.raw_topic], found[stream.settings.progress_topic])
    sink.open()
    assert sink._producer is not None
    sink._producer.begin()
    sink._commit(sink._producer, {0: 3} if reached is None else reached, {})
    sink.close()


def test_a_job_that_ends_before_its_first_offsets_are_answered_ends_at_once(stream: Stream) -> None:
    began = time.monotonic()
    publish_once(stream)
    assert time.monotonic() - began < 15


def test_messages_that_are_gone_before_they_were_ordered_are_told_and_not_passed_over(stream: Stream) -> None:
    stream.send(conversation(50))
    through(stream, {0: 5, 1: 4})
    stream.cut(stream.settings.raw_topic, 5)
    with pytest.raises(
        Refused, match=r"lost messages .* partition 1 begins at offset 5, and the checkpoint .* is at 4"
    ):
        start(stream)


def test_a_log_that_ends_before_the_checkpoint_is_refused(stream: Stream) -> None:
    through(stream, {0: 0, 1: 4})
    with pytest.raises(
        Refused, match=r"has lost its end: its partition 1 ends at offset 0, but everything below 4 has been processed"
    ):
        start(stream)


def test_a_checkpoint_ahead_of_what_is_published_is_refused(stream: Stream) -> None:
    stream.send(conversation(50))
    publish_once(stream, {0: 5, 1: 5})
    through(stream, {0: 5, 1: 8})
    with pytest.raises(
        Refused, match=r"ahead of the stream: in partition 1 it is at offset 8, .* below 5 is published"
    ):
        start(stream)


def test_an_ordered_topic_that_got_more_partitions_is_refused(stream: Stream) -> None:
    name = stream.settings.ordered_topic
    admin = AdminClient({"bootstrap.servers": str(stream.settings.bootstrap)})
    admin.create_partitions([NewPartitions(name, 3)])[name].result()
    with pytest.raises(
        Refused, match=r"ordered topic .* has 3 partitions, but the checkpoint .* with 2.*new ordered_t"
    ):
        start(stream)


def test_a_table_is_not_thrown_away_where_the_topic_no_longer_has_its_beginning(stream: Stream) -> None:
    log = Path(stream.settings.delta) / "deliveries" / "_delta_log"
    log.mkdir(parents=True)
    with Producer({"bootstrap.servers": str(stream.settings.bootstrap)}) as producer:
        for at in range(10):
            producer.produce(stream.settings.ordered_topic, b"{}", partition=at % 2)
    stream.cut(stream.settings.ordered_topic, 2)
    with pytest.raises(Refused, match=r"no longer has its beginning, so the Delta table .*/deliveries may be the only"):
        start(stream, rebuild_delta=True)
    assert log.exists()
    log.parent.rename(log.parent.with_name("kept"))
    with pytest.raises(SparkStarted):
        start(stream)


@pytest.mark.parametrize("setting", ["checkpoint", "delta"])
def test_a_folder_that_cannot_be_written_is_refused(stream: Stream, tmp_path: Path, setting: str) -> None:
    (tmp_path / "a-file").write_text("")
    with pytest.raises(Refused, match=rf"The {setting} folder .*a-file/inside is not writable: Not a directory"):
        start(stream, **{setting: str(tmp_path / "a-file" / "inside")})


def test_a_delta_folder_of_something_else_is_refused(stream: Stream) -> None:
    folder = Path(stream.settings.delta) / "deliveries"
    folder.mkdir(parents=True)
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(Refused, match="is not empty and not a Delta table"):
        start(stream)


def test_a_topic_that_is_not_there_is_refused(stream: Stream, tmp_path: Path) -> None:
    with pytest.raises(Refused, match="The topic nowhere does not exist"):
        start(stream, raw_topic="nowhere")


def test_a_second_job_with_the_same_checkpoint_is_refused(stream: Stream) -> None:
    with (
        checkpoint.lock_parts(stream.settings.checkpoint_place, "order"),
        pytest.raises(Refused, match="Another job uses the order part of the checkpoint"),
    ):
        start(stream)
    with checkpoint.lock_parts(stream.settings.checkpoint_place, "order"), pytest.raises(SparkStarted):
        start(stream, only="history")


def test_a_broker_that_does_not_come_back_is_given_up_on_in_a_sentence(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topics, "REQUEST_S_MAX", 1.0)
    said: list[str] = []
    stream.change(bootstrap="127.0.0.1:1", patience_s=1)
    with pytest.raises(Refused, match=r"Cannot reach Kafka at 127.0.0.1:1; gave up after 1 s"):
        job.run(stream.settings, say=said.append)


def test_an_ordered_topic_of_another_log_is_refused(
    stream: Stream, broker: Broker, spark: SparkSession, tmp_path: Path
) -> None:
    first = Stream(broker.bootstrap, tmp_path / "first", only="order")
    first.once(spark)
    second = Stream(broker.bootstrap, tmp_path / "second", only="order")
    second.change(
        ordered_topic=first.settings.ordered_topic,
        dead_letter_topic=first.settings.dead_letter_topic,
        progress_topic=first.settings.progress_topic,
    )
    with pytest.raises(Refused, match=f"holds the output of the topic {first.settings.raw_topic}"):
        second.once(spark)
    first.change(checkpoint=str(tmp_path / "fresh"), order="total")
    with pytest.raises(Refused, match="was made with the order s_b, not total"):
        first.once(spark)
