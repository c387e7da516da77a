"""Reads held messages and open gaps from a checkpoint, as of its last batch; its job may be running."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING
from urllib.parse import quote

from precede.streaming.order.sink import Sink
from precede.streaming.places import spark_files
from precede.streaming.places.place import LocalPlace, Place
from precede.streaming.settings import Settings
from precede.streaming.spark import checkpoint, restored_files
from precede.streaming.spark.checkpoint import OrderPart
from precede.streaming.spark.query import shard_of
from precede.udfs.engine.held import Held
from precede.udfs.engine.inspection import OpenGap
from precede.udfs.errors import Refused
from precede.udfs.holdback import Holdback
from precede.udfs.shard import ShardState, decode_state, shard_number, state_log
from precede.udfs.state_log import StateSettings
from precede.udfs.steps import StateRecord

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def read(settings: Settings, group: str | None = None, *, spark: "SparkSession | None" = None) -> Iterator[Held]:
    """The held messages of one group or of all groups, shard by shard; a given session is left running."""
    for holdback in holdbacks(settings, group, spark):
        yield from holdback.held(group)


def gaps(settings: Settings, group: str | None = None, *, spark: "SparkSession | None" = None) -> Iterator[OpenGap]:
    """The open gaps of one group or of all groups, in the same way."""
    for holdback in holdbacks(settings, group, spark):
        yield from holdback.gaps(group)


def holdbacks(settings: Settings, group: str | None, spark: "SparkSession | None") -> Iterator[Holdback]:
    """The kernel's state of one shard after the other."""
    order = check(settings, spark)
    for state in states(settings, group, spark):
        holdback = Holdback(order=order.order, limits=order.limits, patience=settings.patience())
        holdback.load(state.groups)
        yield holdback


def states(settings: Settings, group: str | None, spark: "SparkSession | None") -> Iterator[ShardState]:
    """What Spark keeps of one shard after the other."""
    order = check(settings, spark)
    if spark_files.last_commit(settings.order_checkpoint) != spark_files.NO_BATCH:
        with ExitStack() as stack:
            session = spark or _start(settings, stack)
            for blob in _blobs(session, settings.order_checkpoint, order.shards, group):
                yield decode_state(blob)
    yield from _not_taken(settings, order.shards, group)


def _not_taken(settings: Settings, shards: int, group: str | None) -> Iterator[ShardState]:
    """The restored state of shards that had no input since, so that Spark does not have it yet."""
    restored = restored_files.find(settings.restored_files)
    read = None if restored is None else restored.reader
    if restored is None or read is None:
        return
    last_commit = spark_files.last_commit(settings.order_checkpoint)
    wanted = restored.not_taken(last_commit)
    for shard in sorted(wanted) if group is None else wanted & {shard_number(group.encode(), shards)}:
        state = read(shard)
        if state is not None:
            yield state


def check(settings: Settings, spark: "SparkSession | None" = None) -> OrderPart:
    """What the checkpoint was made from; refused where there is no checkpoint."""
    if settings.stores:
        from precede.streaming.spark import session

        session.reach_stores(settings, spark)
    folder = settings.checkpoint_place
    order = checkpoint.read(folder).order if folder.exists() else None
    if order is None:
        raise Refused(f"There is no checkpoint of an order query in {folder}.")
    return order


def _start(settings: Settings, stack: ExitStack) -> "SparkSession":
    """A session with temporary files, stopped when the stack is closed."""
    from precede.streaming.spark import session

    folder = Path(stack.enter_context(TemporaryDirectory(prefix="precede-held-")))
    spark = session.start(settings, session.jars_for(settings), folder)
    stack.callback(spark.stop)
    return spark


def _blobs(spark: "SparkSession", folder: Place, shards: int, group: str | None) -> Iterator[bytes]:
    """The state of each shard, or of the shard of one group, loaded one at a time."""
    from pyspark.sql import functions as F  # noqa: N812 (the name all of Spark's pages use)

    with _plain_name(folder) as path:
        states = spark.read.format("statestore").load(path)
        if group is not None:
            states = states.where(F.col("key.shard") == shard_of(F.lit(group.encode()), shards))
        kept = states.schema["value"].dataType.fieldNames()  # type: ignore[attr-defined]
        column = "value.groupState.blob" if "groupState" in kept else "value.blob"
        for row in states.select("key.shard", F.col(column).alias("blob")).orderBy("shard").toLocalIterator():
            yield bytes(row.blob)


@contextmanager
def _plain_name(folder: Place) -> Iterator[str]:
    """A name of the folder that Spark's reader of state takes: it looks for `%20` where there is a space."""
    path = folder.location
    if not isinstance(folder, LocalPlace) or quote(path, safe="/~") == path:
        yield path
        return
    with TemporaryDirectory(prefix="precede-state-") as other:
        link = Path(other, "order")
        link.symlink_to(path)
        yield str(link)


# ── at the end of a job that handles what is there ────────────────────────────────────────────────────────────────────
# While the job runs, the state of a group follows some seconds of the log after its change. A log that ends gives no
# such time, and a shard without input is not called. So the driver reads the state from the checkpoint, once.


def write_last_states(spark: "SparkSession", settings: Settings, sink: Sink, partitions: int) -> None:
    """Write what the state topic lacks; everything up to the token is processed and published."""
    for state in states(settings, None, spark):
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
