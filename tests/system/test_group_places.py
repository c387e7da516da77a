"""Where groups live in the real stream: where their keys say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

import precede
from precede.local.embedded_broker import Broker
from precede.udfs.errors import Refused
from precede.udfs.partitioner import LIBRDKAFKA, partition_of
from precede.udfs.records.wire import encode_message
from tests.system.stream import Stream, contiguous

PARTITIONS = 4
GROUPS = [f"group-{number}" for number in range(40)]
APART = [group for group in GROUPS if partition_of(group.encode(), 4) != partition_of(group.encode(), 4, "crc32")]


def publish(stream: Stream, partitioner: str, seq: int, groups: list[str] = GROUPS) -> None:
    """One message of each group, by a librdkafka producer with that setting."""
    producer = Producer({"bootstrap.servers": str(stream.settings.bootstrap), "partitioner": LIBRDKAFKA[partitioner]})
    for group in groups:
        value = encode_message(group, "ann", 0, seq, after=[] if seq == 1 else [("ann", 0, seq - 1)])
        producer.produce(stream.settings.raw_topic, value, group.encode())
    assert producer.flush(30) == 0


@pytest.mark.parametrize(("partitioner", "other"), [("murmur2", "crc32"), ("crc32", "murmur2")])
def test_groups_live_where_the_partitioner_says_and_records_elsewhere_are_told_where_they_belong(
    spark: SparkSession, broker: Broker, tmp_path: Path, partitioner: str, other: str
) -> None:
    stream = Stream(broker.bootstrap, tmp_path, partitions=PARTITIONS, partitioner=partitioner)
    publish(stream, other, 1, APART)
    publish(stream, partitioner, 1)
    stream.once(spark)
    publish(stream, other, 2, APART)
    publish(stream, partitioner, 2)
    stream.once(spark)
    ordered = stream.ordered()
    assert {key.decode() for key in ordered} == set(GROUPS)
    assert contiguous(ordered)
    assert {len(values) for values in ordered.values()} == {2}
    letters: list[Any] = [json.loads(letter) for letter in stream.dead()]
    assert sorted(letter["group"] for letter in letters) == sorted(APART * 2)
    for letter in letters:
        belongs = partition_of(letter["group"].encode(), PARTITIONS, partitioner)
        assert letter["code"] == "wrong_partition"
        assert f"belongs in partition {belongs} of {PARTITIONS}, by {partitioner} of the key" in letter["reason"]
        assert f"partitioner={LIBRDKAFKA[partitioner]}" in letter["reason"]


def test_another_partitioner_is_refused_with_the_checkpoint_and_with_a_fresh_one(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    stream = Stream(broker.bootstrap, tmp_path, partitions=PARTITIONS, partitioner="crc32")
    publish(stream, "crc32", 1)
    stream.once(spark)
    with pytest.raises(Refused, match=r"The setting partitioner is murmur2, but the checkpoint .* with crc32"):
        stream.once(spark, partitioner="murmur2")
    stream.change(checkpoint=str(tmp_path / "another"), delta=str(tmp_path / "another delta"))
    with pytest.raises(Refused, match=r"was made with the partitioner crc32, not murmur2; keep that one"):
        stream.once(spark, partitioner="murmur2")


def test_members_and_groups_publish_where_the_partitioner_says(broker: Broker, tmp_path: Path) -> None:
    stream = Stream(broker.bootstrap, tmp_path, partitions=PARTITIONS, partitioner="crc32")
    settings = stream.settings
    raw: dict[str, Any] = {
        "bootstrap": settings.bootstrap,
        "raw_topic": settings.raw_topic,
        "ordered_topic": settings.ordered_topic,
    }
    with precede.Groups(
        "ann",
        **raw,
        dead_letter_topic=settings.dead_letter_topic,
        state=tmp_path / "ann.json",
        answer_s=0,
        partitioner="crc32",
    ) as groups:
        for group in APART[:8]:
            groups.create(group)
    topics: dict[str, Any] = {"control_topic": settings.control_topic, "progress_topic": settings.progress_topic}
    for group in APART[:8]:
        with precede.Member(
            group, "bob", **raw, **topics, state=tmp_path / f"{group}.json", partitioner="crc32"
        ) as bob:
            bob.send("hello")
    stream.once()
    assert stream.dead() == []
    places = {key: partition for key, _, partition, *_ in stream.raw() if key is not None}
    assert places == {group.encode(): partition_of(group.encode(), PARTITIONS, "crc32") for group in APART[:8]}
    with pytest.raises(ValueError, match="there is no partitioner 'md5'"):
        precede.Member("g", "bob", **raw, partitioner="md5")
