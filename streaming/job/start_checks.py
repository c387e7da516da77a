"""Before a job starts: whether log, checkpoint, output topics and tables are of one stream and of one moment.

Whatever would number positions anew, lose rows in silence or write them twice is refused here, before Spark starts and
before anything is written.
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
from precede.streaming.job.checkpoint import HistoryPart, OrderPart
from precede.streaming.job.settings import Settings
from precede.streaming.order.progress import read_progress, still_there
from precede.udfs.errors import Refused

Ask = Callable[[Callable[[], Any]], Any]
"""Asks Kafka until it answers; nothing where somebody stopped the job meanwhile."""

BEGIN_ANEW = "name a new ordered_topic, dead_letter_topic and delta folder, where positions begin anew"


def check_order(settings: Settings, kept: OrderPart | None, topics: dict[str, Topic], ask: Ask) -> OrderPart:
    """What the order query's part of the checkpoint will say."""
    now = checkpoint.check_order(settings, kept, topics)
    raw = topics[settings.raw_topic]
    ends = ask(lambda: reading.ends(settings.bootstrap, raw.name, raw.partitions))
    if ends is None:
        return now
    reached = spark_files.reached(settings.order_checkpoint).get(raw.name)
    if reached is None:
        _check_beginning(settings, topics, ends, ask)
    else:
        _check_what_follows(settings, reached, ends)
    return now


def _check_beginning(settings: Settings, topics: dict[str, Topic], ends: list[tuple[int, int]], ask: Ask) -> None:
    """Before a fresh start: is the log whole, or shall positions be counted from what is left of it?"""
    is_cut = checkpoint.is_cut(settings, ends)
    progress = topics[settings.progress_topic]
    known = ask(lambda: read_progress(settings.bootstrap, progress, settings.ordered_topic))
    if known is None:
        return
    owner, token = known
    if owner is not None and owner.partitioner is None:
        raw, ordered = topics[settings.raw_topic], topics[settings.ordered_topic]
        ask(lambda: group_places.check_ordered_topic(settings, raw, ordered))
    if is_cut and token:
        raise Refused(
            f"The beginning of the raw topic {settings.raw_topic} is gone, and the positions in "
            f"{settings.ordered_topic} are counted from it; start with the old checkpoint, or {BEGIN_ANEW}."
        )


def _check_what_follows(settings: Settings, reached: dict[int, int], ends: list[tuple[int, int]]) -> None:
    """What comes after the last batch must still be there, and what was in it too."""
    still_there(settings, reached, ends)
    for partition, (first, _) in enumerate(ends):
        if reached.get(partition, 0) < first:
            raise Refused(
                f"The raw topic {settings.raw_topic} has lost messages that were not ordered yet: its partition "
                f"{partition} begins at offset {first}, and the checkpoint {settings.checkpoint} is at "
                f"{reached.get(partition, 0)}; bring them back, or take a new checkpoint folder with accept_cut_log, "
                f"and {BEGIN_ANEW}."
            )


def check_history(settings: Settings, kept: HistoryPart | None, topics: dict[str, Topic]) -> HistoryPart:
    """What the history queries' part of the checkpoint will say."""
    now = checkpoint.check_history(settings, kept, topics)
    for table in TABLES:
        tables.check(settings, table, now.tables.get(table))
    return now


def rebuild_history(
    settings: Settings, kept: HistoryPart | None, topics: dict[str, Topic], ask: Ask, say: Callable[[str], object]
) -> HistoryPart:
    """Throw the tables away, where the topics still have all that was in them."""
    now = checkpoint.check_history(settings, kept, topics)  # a mistyped topic must not empty a table
    for table in TABLES:
        _check_whose(settings, table, topics)
        first = ask(partial(_first, settings, table))
        if first is None:
            return now  # nobody knows whether the topic has it all, so nothing is thrown away
        _check_that_all_is_there(settings, table, first)
    say("The Delta tables are thrown away, and written anew from the topics.")
    # First, or a crash would leave the checkpoint speaking of tables that are gone.
    checkpoint.forget_history(Path(settings.checkpoint))
    tables.remove(settings)
    return check_history(settings, None, topics)


def _check_whose(settings: Settings, table: str, topics: dict[str, Topic]) -> None:
    """Another topic cannot make a table again, nor can one of the same name that was made anew."""
    name = tables.topic(settings, table)
    if tables.is_of_another(settings, table, topics[name]):
        raise Refused(
            f"The Delta table {tables.path(settings, table)} holds what came of another topic than this {name}, and is "
            "not thrown away; choose another delta folder, or move the table elsewhere."
        )


def _first(settings: Settings, table: str) -> int:
    """Where the topic of a table begins, in the partition that lacks most."""
    name = tables.topic(settings, table)
    partitions = describe(settings.bootstrap, [name])[name].partitions
    return max(begin for begin, _ in reading.ends(settings.bootstrap, name, partitions))


def _check_that_all_is_there(settings: Settings, table: str, first: int) -> None:
    """A topic whose beginning is gone cannot make its table again, which then is the only copy."""
    folder = tables.path(settings, table)
    if first and (folder / "_delta_log").exists():
        raise Refused(
            f"The topic {tables.topic(settings, table)} no longer has its beginning, so the Delta table {folder} may "
            "be the only copy of it and is not thrown away; move it elsewhere first, and it is made anew from what the "
            "topic has."
        )
