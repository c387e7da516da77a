"""Checks before a job starts: log, checkpoint, output topics and tables belong to one stream and to one moment.

What would restart positions, lose rows silently or write them twice is refused here, before Spark starts and before
anything is written.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from precede.ingest.kafka import reading
from precede.ingest.kafka.topics import Topic, describe
from precede.streaming.history import tables
from precede.streaming.history.tables import TABLES
from precede.streaming.job import checkpoint, group_places, spark_files
from precede.streaming.job.announcer import Say
from precede.streaming.job.checkpoint import HistoryPart, OrderPart
from precede.streaming.job.settings import Settings
from precede.streaming.order.ownership import check_log_reaches
from precede.streaming.order.progress import read_progress
from precede.udfs.errors import Refused

Ask = Callable[[Callable[[], Any]], Any]
"""Asks Kafka until it answers; None where the job was stopped meanwhile."""

NEW_OUTPUT = "choose a new ordered_topic, dead_letter_topic and delta folder, where positions start over"


def check_order(settings: Settings, kept: OrderPart | None, topics: dict[str, Topic], ask: Ask) -> OrderPart:
    """The order part of the checkpoint as it will be written."""
    now = checkpoint.check_order(settings, kept, topics)
    raw = topics[settings.raw_topic]
    ends = ask(lambda: reading.ends(settings.bootstrap, raw.name, raw.partitions))
    if ends is None:
        return now
    reached = spark_files.reached(settings.order_checkpoint).get(raw.name)
    if reached is None:
        _check_fresh_start(settings, topics, ends, ask)
    else:
        _check_continued(settings, reached, ends)
    return now


def _check_fresh_start(settings: Settings, topics: dict[str, Topic], ends: list[tuple[int, int]], ask: Ask) -> None:
    """The log must be whole, unless positions may be counted from what is left and no output was made from the rest."""
    cut = [partition for partition, (first, _) in enumerate(ends) if first > 0]
    if cut and not settings.accept_cut_log:
        raise Refused(
            f"The beginning of the raw topic {settings.raw_topic} is gone (partition {cut[0]} starts at offset "
            f"{ends[cut[0]][0]}), so a fresh start would count positions from what is left; "
            "if you want that, set accept_cut_log."
        )
    progress = topics[settings.progress_topic]
    known = ask(lambda: read_progress(settings.bootstrap, progress, settings.ordered_topic))
    if known is None:
        return
    owner, token = known
    if owner is not None and owner.partitioner is None:
        raw, ordered = topics[settings.raw_topic], topics[settings.ordered_topic]
        ask(lambda: group_places.check_topics(settings, raw, ordered))
    if cut and token:
        raise Refused(
            f"The beginning of the raw topic {settings.raw_topic} is gone, and the positions in "
            f"{settings.ordered_topic} are counted from it; start with the old checkpoint, or {NEW_OUTPUT}."
        )


def _check_continued(settings: Settings, reached: dict[int, int], ends: list[tuple[int, int]]) -> None:
    """The log must still reach up to the end of the last batch, and still have everything after it."""
    check_log_reaches(settings, reached, ends)
    for partition, (first, _) in enumerate(ends):
        if reached.get(partition, 0) < first:
            raise Refused(
                f"The raw topic {settings.raw_topic} has lost messages that were not ordered yet: its partition "
                f"{partition} begins at offset {first}, and the checkpoint {settings.checkpoint} is at "
                f"{reached.get(partition, 0)}; restore them, or take a new checkpoint folder with accept_cut_log, "
                f"and {NEW_OUTPUT}."
            )


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
    checkpoint.forget_history(Path(settings.checkpoint))
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
