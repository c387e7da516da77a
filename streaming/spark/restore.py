"""Restoring: reads the state topic and writes the state beside a fresh checkpoint, split by shard."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from time import perf_counter
from typing import TypeVar

from precede.ingest.gc_paused import gc_paused
from precede.ingest.kafka import reading
from precede.ingest.state_topic import read_state
from precede.streaming.job import starting_point
from precede.streaming.order.sink import Sink
from precede.streaming.places import spark_files
from precede.streaming.places.place import Place
from precede.streaming.raw_partitions import of_partitions
from precede.streaming.settings import Settings
from precede.streaming.spark import restored_files
from precede.streaming.spark.restored_files import RestoredFiles
from precede.udfs.records.state_pieces import StoredState
from precede.udfs.shard import RestoredGroup, initial_states
from precede.udfs.state_log import StateSettings

Item = TypeVar("Item")


def begin(
    settings: Settings,
    sink: Sink,
    say: Callable[..., object],
    *,
    check_stop: Callable[[], object] = reading.never_stop,
) -> RestoredFiles | None:
    """Prepare the checkpoint for the order query; the files of the state that it began with, if it was restored.

    The sink is open, so no other job moves the token or the horizon. Raises Refused and Unreachable, and what
    `check_stop` raises where the job is to stop, because this can take minutes.
    """
    ends = reading.ends_of(settings.bootstrap, settings.raw_topic, sink.ownership.partitions)
    position = of_checkpoint(settings, sink.token, sink.state.written_from, ends)
    start = starting_point.find(settings, position)
    if start.set_aside is not None:
        aside = set_aside(settings.order_checkpoint)
        say(f"The checkpoint is not continued, because {start.set_aside}: it is now {aside}.", level="warning")
    if position.reached is None or start.offsets is not None:
        sink.counts.forget_shards()
    if start.offsets is not None:
        restored = restore(settings, sink.state, start.offsets, say, check_stop=check_stop)
    elif position.reached is None:
        restored_files.forget(settings.restored_files)
        return None
    else:
        found = restored_files.find(settings.restored_files)
        if found is None:
            return None
        restored = found
        restored.remove()
    restored.show_in(sink.counts, spark_files.last_commit(settings.order_checkpoint))
    return restored


def restore(
    settings: Settings,
    state: StateSettings,
    offsets: dict[int, int],
    say: Callable[[str], object],
    *,
    check_stop: Callable[[], object],
) -> RestoredFiles:
    """Write the files for the shards of these settings; the log is then read from these offsets on."""
    began = perf_counter()
    with gc_paused():  # millions of small objects without cycles are made here
        found = read_state(
            settings.bootstrap, settings.state_topic_name, offsets, stream=state.stream, check_stop=check_stop
        )
        count = sum(map(len, found.values()))
        groups = _checked(_groups(found, offsets), check_stop)
        parts = initial_states(groups, settings.shards, state.topic)
        written = restored_files.write(settings.restored_files, _checked(parts, check_stop), offsets)
    say(
        f"The checkpoint is new: the state of {count:,} groups has been read from {settings.state_topic_name} in "
        f"{perf_counter() - began:.1f} s, and {settings.raw_topic} is read from the horizon on."
    )
    return written


def _groups(found: dict[int, dict[bytes, StoredState]], offsets: Mapping[int, int]) -> Iterator[RestoredGroup]:
    """The states, taken out of `found` one partition after the other."""
    for partition in sorted(found):
        first = offsets[partition]
        for key, state in found.pop(partition).items():
            covered = state.next if state.next > first else 0
            yield RestoredGroup(key, state.blob, covered, state.pieces, state.held, state.oldest_ms, state.gaps)


def _checked(items: Iterable[Item], check_stop: Callable[[], object]) -> Iterator[Item]:
    for item in items:
        check_stop()
        yield item


def of_checkpoint(
    settings: Settings, token: Mapping[int, int], horizon: Mapping[int, int], ends: Mapping[int, tuple[int, int]]
) -> starting_point.Position:
    """The position of the checkpoint of these settings; `ends` has the partitions of the job."""

    folder = settings.order_checkpoint
    reached = spark_files.reached(folder, starting_point.RESTORE_HINT).get(settings.raw_topic)
    restored = None if reached is None else restored_files.find(settings.restored_files)
    lacks_state = restored is not None and restored.is_needed_by(spark_files.last_commit(folder))
    return starting_point.Position(reached, of_partitions(ends, token), of_partitions(ends, horizon), ends, lacks_state)


def set_aside(folder: Place) -> Place:
    """Rename a query's folder, so that the query begins with a new one; returns the new name."""
    number = 1
    while (aside := folder.sibling(f"{folder.name}.set-aside-{number}")).exists():
        number += 1
    folder.rename(aside)
    return aside
