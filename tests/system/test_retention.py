"""The alarm that the job lags behind the retention of the raw topic, from a real log."""

import time
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its types forget to export them
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from precede.ingest.kafka.reading import TopicReader
from precede.ingest.kafka.topics import Retention
from precede.local.embedded_broker import Broker
from precede.streaming.monitoring import retention_monitor
from precede.streaming.monitoring.retention_monitor import RetentionMonitor
from precede.streaming.spark.engine import SparkJob
from tests.records import conversation
from tests.system.stream import Stream
from tests.system.test_stream_refusals import SparkStarted

HOUR_MS = 3_600_000


@pytest.fixture
def stream(broker: Broker, tmp_path: Path) -> Stream:
    stream = Stream(broker.bootstrap, tmp_path)
    stream.send(conversation(100))
    return stream


def used(stream: Stream, retention: Retention, reached: dict[int, int]) -> float:
    reader = TopicReader(stream.settings.bootstrap)
    try:
        return RetentionMonitor(stream.settings, retention, lambda: reached)._ask(reader)
    finally:
        reader.close()


def test_the_age_of_the_oldest_record_that_is_not_ordered_counts(stream: Stream) -> None:
    time.sleep(5)  # much longer than asking takes on a busy machine
    with Producer({"bootstrap.servers": str(stream.settings.bootstrap)}) as producer:
        producer.produce(stream.settings.raw_topic, b'{"kind":"tick"}', partition=0)
    ends = {0: len([row for row in stream.raw() if row[2] == 0]), 1: len([row for row in stream.raw() if row[2] == 1])}
    assert used(stream, Retention(8_000, None), {0: 0, 1: ends[1]}) >= 0.5
    assert used(stream, Retention(8_000, None), {0: ends[0] - 1, 1: ends[1]}) <= 0.4
    assert used(stream, Retention(8_000, None), ends) == 0
    assert used(stream, Retention(HOUR_MS, None), {0: 0, 1: 0}) == 0
    assert used(stream, Retention(None, None), {0: 0, 1: 0}) == 0


def test_the_share_of_a_full_topic_counts_where_its_size_is_limited(stream: Stream) -> None:
    sized = Retention(None, 1)
    end = len([row for row in stream.raw() if row[2] == 0])
    assert used(stream, sized, {0: 0}) == 0, "nothing was deleted, so it is not full"
    stream.cut_partition(stream.settings.raw_topic, 0, 10)
    assert used(stream, sized, {0: 10}) == 1
    assert used(stream, sized, {0: 10 + (end - 10) // 2}) == pytest.approx(0.5, abs=0.05)
    assert used(stream, sized, {0: end}) == 0


def test_it_warns_once_each_time(stream: Stream) -> None:
    watch = RetentionMonitor(stream.settings, Retention(HOUR_MS, None), dict)
    found = []
    for share in (0.4, 0.6, 0.7, 0.1, 0.5):
        watch.used = share
        found.append(watch.warning_if_due())
    assert [sentence is not None for sentence in found] == [False, True, False, False, True]
    assert found[1] is not None
    assert "has used up 60% of the time or space" in found[1]
    assert "(1 hour)" in found[1]


def test_a_start_says_what_a_retention_means(stream: Stream, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from precede.streaming.job import job

    def started(*_: object) -> None:
        raise SparkStarted

    monkeypatch.setattr(SparkJob, "_start_spark", started)
    monkeypatch.setattr(retention_monitor, "EVERY_S", 0.05)
    said: list[str] = []
    with pytest.raises(SparkStarted):
        job.run(stream.settings, say=said.append)
    assert not any("keeps records for" in line for line in said)
    entry = ConfigEntry("retention.ms", "604800000", incremental_operation=AlterConfigOpType.SET)
    topic = ConfigResource(ResourceType.TOPIC, stream.settings.raw_topic, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": str(stream.settings.bootstrap)})
    admin.incremental_alter_configs([topic])[topic].result()
    with pytest.raises(SparkStarted):
        job.run(stream.settings, say=said.append)
    (sentence,) = [line for line in said if "keeps records for" in line]
    assert f"{stream.settings.raw_topic} keeps records for 7 days: what Kafka deletes before it is ordered" in sentence
