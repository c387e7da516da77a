"""At the end of a job that handles what is there and stops: all state that the topic lacks is written.

While the job runs, the state of a group follows some seconds of the log after its change. A log that ends gives no such
time, and a shard without input is not called. So the driver reads the state from the checkpoint, once, at the end.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from precede.streaming.job import checkpoint_reader
from precede.streaming.job.settings import Settings
from precede.streaming.order.sink import Sink
from precede.udfs.holdback import Holdback
from precede.udfs.shard import ShardState, state_log
from precede.udfs.state_log import StateSettings
from precede.udfs.steps import StateRecord

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def write(spark: "SparkSession", settings: Settings, sink: Sink, partitions: int) -> None:
    """Write what the state topic lacks; everything up to the token is processed and published."""
    for state in checkpoint_reader.states(settings, None, spark):
        holdback = Holdback(
            order=settings.order, limits=settings.limits, partitions=partitions, partitioner=settings.partitioner
        )
        holdback.load(state.groups)
        sink.publish_state(_unwritten(state, holdback, sink.state, sink.token))
    sink.publish_state(iter(()), is_last=True)


def _unwritten(
    state: ShardState, holdback: Holdback, settings: StateSettings, reached: dict[int, int]
) -> Iterator[StateRecord]:
    """The states of a shard that are not in the topic, as of the token."""
    log = state_log(settings, holdback, state)
    for partition in log.uncovered():
        while partition in log.uncovered():
            due = log.take_due(partition, reached[partition], 2**62, state.groups.__getitem__, state.waiting)
            yield from ((partition, key, value) for key, value in due)
