"""At the end of a job that handles what is there and stops: all state that the topic lacks is written.

While the job runs, the state of a group follows some seconds of the log after its change. A log that ends gives no such
time, and a shard without input is not called. So the driver reads the state from the checkpoint, once, at the end.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from precede.streaming.job import checkpoint_reader
from precede.streaming.job.settings import Settings
from precede.streaming.order.sink import Sink
from precede.udfs.shard import ShardState
from precede.udfs.state_log import StateLog, StateSettings
from precede.udfs.steps import StateRecord

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def write(spark: "SparkSession", settings: Settings, sink: Sink) -> None:
    """Write what the state topic lacks; everything up to the token is processed and published."""
    for state in checkpoint_reader.states(settings, None, spark):
        sink.publish_state(_unwritten(state, sink.state, sink.token))
    sink.publish_state(iter(()), is_last=True)


def _unwritten(state: ShardState, settings: StateSettings, reached: dict[int, int]) -> Iterator[StateRecord]:
    """The states of a shard that are not in the topic, as of the token."""
    if state.log is None:
        return
    log = StateLog(settings, state.log)
    for partition in state.log.unwritten.copy():
        while partition in log.uncovered():
            due = log.take_due(partition, reached[partition], 2**62, state.groups.__getitem__, state.waiting)
            yield from ((partition, key, value) for key, value in due)
