"""Checks before the engine process starts: the log must reach back to where the kernel goes on."""

from collections.abc import Mapping

from precede.ingest.kafka import reading
from precede.ingest.kafka.topics import Topic
from precede.ingest.progress import read_progress
from precede.streaming.job import starting_point
from precede.streaming.job.log_checks import Ask, check_log_read_again
from precede.streaming.job.raw_partitions import of_partitions, owned
from precede.streaming.job.settings import Settings
from precede.streaming.job.starting_point import Position, StartingPoint
from precede.udfs.errors import Refused


def check(settings: Settings, topics: dict[str, Topic], ask: Ask) -> None:
    """Refuse a start that would lose messages or number from 1 again."""
    raw = topics[settings.raw_topic]
    partitions = owned(settings.raw_partitions, raw.name, raw.partitions)
    ends = ask(lambda: reading.ends_of(settings.bootstrap, raw.name, partitions))
    if ends is None:
        return
    try:
        _check(settings, topics, ends, ask, settled=False)
    except Refused:  # unless an open transaction only hides how far the stream is
        _check(settings, topics, ends, ask, settled=True)


def _check(
    settings: Settings, topics: dict[str, Topic], ends: dict[int, tuple[int, int]], ask: Ask, *, settled: bool
) -> None:
    progress_topic = topics[settings.progress_topic]
    progress = ask(lambda: read_progress(settings.bootstrap, progress_topic, settings.ordered_topic, settled=settled))
    if progress is None:
        return
    horizon = progress.horizon_in(topics[settings.state_topic_name].id)
    if beginning(settings, progress.token, horizon, ends).offsets is None:
        check_log_read_again(settings, progress, ends)


def beginning(
    settings: Settings, token: Mapping[int, int], horizon: Mapping[int, int], ends: Mapping[int, tuple[int, int]]
) -> StartingPoint:
    """Where the kernel begins: at the horizon, or at the beginning of the log. Raises Refused where it may not."""
    position = Position(None, of_partitions(ends, token), of_partitions(ends, horizon), ends)
    return starting_point.find(settings, position, lambda *_: False)
