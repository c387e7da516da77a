"""The state topic of a real job: what it holds, and that state and the log behind the horizon are the whole."""

from pathlib import Path

from pyspark.sql import SparkSession

from precede.ingest.kafka import topics
from precede.ingest.kafka.topics import describe
from precede.ingest.progress import Progress, read_progress
from precede.ingest.state_topic import read_state
from precede.local.embedded_broker import Broker
from precede.udfs.holdback import Holdback
from precede.udfs.records.state_pieces import StoredState
from tests.records import Row, by_group, by_kernel, conversation
from tests.system.stream import Stream


def progress_of(stream: Stream) -> Progress:
    settings = stream.settings
    topic = describe(settings.bootstrap, [settings.progress_topic])[settings.progress_topic]
    return read_progress(settings.bootstrap, topic, settings.ordered_topic)


def states_of(stream: Stream) -> dict[int, dict[bytes, StoredState]]:
    settings = stream.settings
    found = describe(settings.bootstrap, [settings.state_topic_name, settings.ordered_topic])
    name = settings.state_topic_name
    return read_state(settings.bootstrap, name, range(found[name].partitions), stream=found[settings.ordered_topic].id)


def ordered_behind(stream: Stream, rows: list[Row]) -> dict[bytes, list[bytes]]:
    """What a reader makes of the state and the records from the horizon on."""
    progress, states = progress_of(stream), states_of(stream)
    kernel = Holdback(partitions=len(states))
    for groups in states.values():
        kernel.load({key: one.blob for key, one in groups.items()}, {key: one.next for key, one in groups.items()})
    for key, value, partition, offset, ms in sorted(rows, key=lambda row: row[2:4]):
        if offset >= progress.horizon.get(partition, 0):
            kernel.receive(value, key, partition, offset, ms)
    return by_group(list(zip(kernel.ordered_keys, kernel.ordered, strict=True)))


def test_state_and_the_log_behind_the_horizon_give_what_the_whole_log_gives(broker: Broker, tmp_path: Path) -> None:
    stream = Stream(broker.bootstrap, tmp_path)
    pairs = list(conversation(3_000, groups=20))
    stream.send(pairs[:2_000])
    stream.once()
    assert progress_of(stream).horizon == progress_of(stream).token
    assert {key for groups in states_of(stream).values() for key in groups} == {key for key, _ in pairs}
    before = stream.ordered()
    stream.send(pairs[2_000:])
    behind = ordered_behind(stream, stream.raw())
    whole = by_kernel(stream.raw())[0]
    assert {key: before.get(key, []) + behind.get(key, []) for key in whole} == whole
    stream.once()
    assert stream.ordered() == whole


def test_a_new_state_topic_gets_the_states_of_all_groups_although_only_one_of_them_has_input(
    broker: Broker, spark: SparkSession, tmp_path: Path
) -> None:
    stream = Stream(broker.bootstrap, tmp_path, only="order", state_every_s=0)  # the first topic has all at once
    pairs = conversation(400, groups=20)
    stream.send(pairs)
    stream.once(spark)
    stream.change(state_topic=f"{stream.settings.ordered_topic}.second-state")
    topics.ensure(broker.bootstrap, stream.settings.topics())
    stream.send([(b"g", b'{"group":"g","sender":"ann","seq":1,"after":[]}')])
    stream.once(spark)
    assert {key for groups in states_of(stream).values() for key in groups} == {b"g", *(key for key, _ in pairs)}
    assert progress_of(stream).horizon == progress_of(stream).token
