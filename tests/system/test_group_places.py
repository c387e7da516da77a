"""Where groups live in the real stream: where their keys say. What an older release put elsewhere is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

import precede
from precede.local.embedded_broker import Broker
from precede.streaming.job import checkpoint
from precede.udfs.errors import Refused
from precede.udfs.partitioner import LIBRDKAFKA, partition_of
from precede.udfs.records.wire import encode_message
from tests.system.stream import Stream, contiguous

PARTITIONS = 4
GROUPS = [f"group-{number}" for number in range(40)]
APART = [group for group in GROUPS if partition_of(group.encode(), 4) != partition_of(group.encode(), 4, "crc32")]

OF_VERSION_2 = ("partitions", "ordered_topic_id", "ordered_partitions", "dead_letter_topic_id")


def publish(stream: Stream, partitioner: str, seq: int, groups: list[str] = GROUPS) -> None:
    """One message of each group, by a librdkafka producer with that setting."""
    producer = Producer({"bootstrap.servers": str(stream.settings.bootstrap), "partitioner": LIBRDKAFKA[partitioner]})
    for group in groups:
        value = encode_message(group, "ann", 0, seq, after=[] if seq == 1 else [("ann", 0, seq - 1)])
        producer.produce(stream.settings.raw_topic, value, group.encode())
    assert producer.flush(30) == 0


def as_of_an_older_release(stream: Stream, *, fresh: bool) -> None:
    """One owner record without a partitioner, and a checkpoint's file without it; `fresh` names a new checkpoint."""
    settings = stream.settings
    owners = {key: value for key, value, *_ in stream.read(settings.progress_topic) if b'"owner"' in (key or b"")}
    assert len(owners) == PARTITIONS
    owner = json.loads(owners[json.dumps([settings.ordered_topic, 0, "owner"], separators=(",", ":")).encode()] or b"")
    older = {name: owner[name] for name in ("raw_topic", "raw_topic_id", "order", "limits", "job", *OF_VERSION_2)}
    producer = Producer({"bootstrap.servers": str(settings.bootstrap)})
    for key in owners:
        producer.produce(settings.progress_topic, None, key)
    key = json.dumps([settings.ordered_topic]).encode()
    producer.produce(settings.progress_topic, json.dumps(older | {"v": 2}).encode(), key)
    assert producer.flush(30) == 0
    path = Path(settings.checkpoint) / checkpoint.FILE
    kept = json.loads(path.read_text())
    assert kept["order"].pop("partitioner") == settings.partitioner
    path.write_text(json.dumps(kept | {"v": 3}))
    if fresh:
        stream.change(checkpoint=settings.checkpoint + "-fresh", delta=settings.delta + "-fresh")


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


@pytest.mark.parametrize("fresh", [False, True], ids=["with its checkpoint", "with a fresh checkpoint"])
def test_groups_of_an_older_release_that_live_elsewhere_are_named_and_the_start_is_refused(
    spark: SparkSession, broker: Broker, tmp_path: Path, *, fresh: bool
) -> None:
    stream = Stream(broker.bootstrap, tmp_path, partitions=PARTITIONS, partitioner="crc32")
    publish(stream, "crc32", 1)
    stream.once(spark)
    as_of_an_older_release(stream, fresh=fresh)
    publish(stream, "crc32", 2)
    before = len(stream.read(stream.settings.ordered_topic))
    with pytest.raises(Refused) as refused:
        stream.once(spark, partitioner="murmur2")
    sentence = str(refused.value)
    assert "which an older release made" in sentence
    assert sum(f"{group} is in {partition_of(group.encode(), 4, 'crc32')} and" in sentence for group in APART) == 5
    assert f"and {len(APART) - 5} more" in sentence
    assert "set partitioner to the function that their producers use" in sentence
    assert len(stream.read(stream.settings.ordered_topic)) == before
    if fresh:  # what fits goes on with its own checkpoint only: there is no state topic to begin at
        with pytest.raises(Refused, match=r"by an older precede, under rules of version 1; .* start with the c"):
            stream.once(spark, partitioner="crc32")
        assert len(stream.read(stream.settings.ordered_topic)) == before
        return
    for _ in range(2):  # what fits goes on, and is not compared again
        stream.once(spark, partitioner="crc32")
    assert contiguous(stream.ordered())
    assert {len(values) for values in stream.ordered().values()} == {2}
    assert stream.dead() == []
    with pytest.raises(Refused, match=r"The setting partitioner is murmur2, but the checkpoint .* with crc32"):
        stream.once(spark, partitioner="murmur2")
    stream.change(checkpoint=str(tmp_path / "another"), delta=str(tmp_path / "another delta"))
    with pytest.raises(Refused, match=r"was made with the partitioner crc32, not murmur2; keep that one"):
        stream.once(spark, partitioner="murmur2")


def test_a_group_of_an_older_release_that_has_only_held_messages_is_named_with_a_fresh_checkpoint_too(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    stream = Stream(broker.bootstrap, tmp_path, partitions=PARTITIONS, partitioner="crc32")
    fitting = next(group for group in GROUPS if group not in APART)
    publish(stream, "crc32", 1, [fitting])
    publish(stream, "crc32", 2, [APART[0]])  # it answers a message that never came
    stream.once(spark)
    assert set(stream.ordered()) == {fitting.encode()}
    as_of_an_older_release(stream, fresh=True)
    belongs = partition_of(APART[0].encode(), PARTITIONS)
    with pytest.raises(Refused, match=rf"{APART[0]} is in \d and belongs in {belongs}"):
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
