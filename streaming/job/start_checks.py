"""Checks before a job starts: log, checkpoint, output topics and tables belong to one stream and to one moment.

What would restart positions, lose rows silently or write them twice is refused here, before Spark starts and before
anything is written.
"""

from functools import partial

from precede.ingest.kafka import reading
from precede.ingest.kafka.topics import Topic, describe
from precede.ingest.progress import read_progress
from precede.ingest.service.running import Say
from precede.streaming.history import tables
from precede.streaming.history.tables import TABLES
from precede.streaming.job import checkpoint, starting_point
from precede.streaming.job.checkpoint import HistoryPart, OrderPart
from precede.streaming.job.log_checks import Ask, check_log_read_again
from precede.streaming.job.raw_partitions import owned
from precede.streaming.job.settings import Settings
from precede.udfs.errors import Refused


def check_order(settings: Settings, kept: OrderPart | None, topics: dict[str, Topic], ask: Ask) -> OrderPart:
    """The order part of the checkpoint as it will be written."""
    now = checkpoint.check_order(settings, kept, topics)
    raw = topics[settings.raw_topic]
    partitions = owned(settings.raw_partitions, raw.name, raw.partitions)
    ends = ask(lambda: reading.ends_of(settings.bootstrap, raw.name, partitions))
    if ends is None:
        return now
    try:
        _check_starting_point(settings, topics, ends, ask, settled=False)
    except Refused:  # unless an open transaction only hides how far the stream is
        _check_starting_point(settings, topics, ends, ask, settled=True)
    return now


def _check_starting_point(
    settings: Settings, topics: dict[str, Topic], ends: dict[int, tuple[int, int]], ask: Ask, *, settled: bool
) -> None:
    """Whether the order query can begin; it is found out again when no other job can change anything any more."""
    progress = ask(
        lambda: read_progress(
            settings.bootstrap, topics[settings.progress_topic], settings.ordered_topic, settled=settled
        )
    )
    if progress is None:
        return
    position = starting_point.of_checkpoint(
        settings, progress.token, progress.horizon_in(topics[settings.state_topic_name].id), ends
    )
    start = starting_point.find(
        settings,
        position,
        lambda *places: bool(ask(lambda: reading.has_records(settings.bootstrap, settings.raw_topic, *places))),
    )
    if position.reached is None and start.offsets is None:
        check_log_read_again(settings, progress, ends)


def check_history(settings: Settings, kept: HistoryPart | None, topics: dict[str, Topic]) -> HistoryPart:
    """The history part of the checkpoint as it will be written."""
    now = checkpoint.check_history(settings, kept, topics)
    for table in TABLES:
        tables.check(settings, table, now.tables.get(table))
    return now


def rebuild_history(
    settings: Settings, kept: HistoryPart | None, topics: dict[str, Topic], ask: Ask, say: Say
) -> HistoryPart:
    """Remove the tables, provided that the topics still have everything that was in them."""
    now = checkpoint.check_history(settings, kept, topics)  # a mistyped topic must not empty a table
    for table in TABLES:
        _check_same_topic(settings, table, topics)
        first = ask(partial(_first_offset, settings, table))
        if first is None:
            return now  # it is not known whether the topic has everything, so nothing is removed
        _check_topic_is_whole(settings, table, first)
    say("The Delta tables are removed and will be written again from the topics.")
    # Before the tables go: after a crash the checkpoint must not name tables that do not exist.
    checkpoint.forget_history(settings.checkpoint_place)
    tables.remove(settings)
    return check_history(settings, None, topics)


def _check_same_topic(settings: Settings, table: str, topics: dict[str, Topic]) -> None:
    """Only the topic it was written from can rebuild a table, not one created later under the same name."""
    name = tables.topic(settings, table)
    if tables.is_of_another(settings, table, topics[name]):
        raise Refused(
            f"The Delta table {tables.path(settings, table)} holds the records of another topic than this {name}, and "
            "is not removed; choose another delta folder, or move the table elsewhere."
        )


def _first_offset(settings: Settings, table: str) -> int:
    """The highest first offset among the partitions of a table's topic; 0 where the topic is whole."""
    name = tables.topic(settings, table)
    partitions = describe(settings.bootstrap, [name])[name].partitions
    return max(begin for begin, _ in reading.ends(settings.bootstrap, name, partitions))


def _check_topic_is_whole(settings: Settings, table: str, first: int) -> None:
    """A topic whose beginning is gone cannot rebuild its table, which then is the only copy."""
    folder = tables.path(settings, table)
    if first and (folder / "_delta_log").exists():
        raise Refused(
            f"The topic {tables.topic(settings, table)} no longer has its beginning, so the Delta table {folder} may "
            "be the only copy of it and is not removed; move it elsewhere first, and a new one is made from what the "
            "topic has."
        )
