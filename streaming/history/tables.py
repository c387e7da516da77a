"""The Delta tables: their columns (contract, section 6, and the gaps), how they are made, and whose they are."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast
from urllib.parse import unquote, urlparse

from precede.ingest.kafka.topics import Topic
from precede.streaming.job import spark_files
from precede.streaming.job.settings import Settings
from precede.streaming.job.spark_files import NONE_YET
from precede.udfs.errors import Refused

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ANEW = "precede run --rebuild-delta"
"""The way out wherever a table and its checkpoint do not belong together."""

LOG = "_delta_log"

DELIVERIES = "deliveries"
DEAD_LETTERS = "dead_letters"
GAPS = "gaps"
TABLES = (DELIVERIES, DEAD_LETTERS, GAPS)
BY_BATCHES = (DELIVERIES, DEAD_LETTERS)
"""Those to which a batch is added once, by its number; the rows of gaps are merged by what they say."""

COLUMNS = {
    DELIVERIES: (
        "`group` string, position long, destination string, sender string, epoch int, seq long, kind string, "
        "after array<struct<sender: string, epoch: int, seq: long>>, `order` string, status string, data string, "
        "record string, partition int, offset long, arrived_at timestamp, released_offset long, released_at timestamp, "
        "day date"
    ),
    DEAD_LETTERS: (
        "code string, reason string, `group` string, sender string, epoch int, seq long, destination string, "
        "partition int, offset long, arrived_ms long, value string, value_base64 string, truncated boolean, "
        "arrived_at timestamp, day date"
    ),
    GAPS: (
        "`group` string, sender string, epoch int, first long, last long, state string, opened_at timestamp, "
        "asked int, asked_at timestamp, closed_at timestamp, "
        "waited array<struct<sender: string, epoch: int, seq: long>>, partition int, offset long, day date"
    ),
}

# What a query would skip files by; the long texts are left out, since their statistics cost more than they save.
SKIPPED_BY = {
    DELIVERIES: "`group`,position,sender,epoch,seq,partition,offset,arrived_at,released_offset,released_at",
    DEAD_LETTERS: "code,`group`,sender,partition,offset,arrived_at",
    GAPS: "`group`,sender,epoch,first,last,state,opened_at,closed_at",
}

PROPERTIES = {
    "delta.autoOptimize.autoCompact": "true",  # thousands of commits a day must not leave thousands of files
    # delta-rs and every other engine shall read the tables, so nothing newer than the oldest protocol is used.
    "delta.minReaderVersion": "1",
    "delta.minWriterVersion": "2",
    "delta.enableDeletionVectors": "false",
    "delta.checkpointPolicy": "classic",
}


@dataclass(frozen=True)
class Found:
    """A table that is there already."""

    id: str
    empty: bool
    lost: str | None
    """A file that the table's log names and that is not there."""
    batch: int
    """The newest batch of the query in question that is in it."""


def path(settings: Settings, table: str) -> Path:
    """Where a table lies."""
    return (Path(settings.delta) / table).absolute()


def topic(settings: Settings, table: str) -> str:
    """The topic whose records a table shows."""
    topics = {
        DELIVERIES: settings.ordered_topic,
        DEAD_LETTERS: settings.dead_letter_topic,
        GAPS: settings.control_topic,
    }
    return topics[table]


def find(settings: Settings, table: str) -> Found | None:
    """The table as it is now, read without Spark."""
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError

    folder = path(settings, table)
    query = spark_files.query_id(settings.history_checkpoint(table))
    try:
        if not (folder / LOG).exists():
            if folder.exists() and any(folder.iterdir()):
                raise Refused(f"The folder {folder} is not empty and not a Delta table; choose another delta folder.")
            return None
        found = DeltaTable(folder)
        batch = None if query is None else found.transaction_version(query)
    except (DeltaError, OSError) as error:
        raise Refused(f"The Delta table {folder} cannot be read: {error}.") from error
    files = (Path(unquote(urlparse(uri).path)) for uri in found.file_uris())
    lost = next((str(file) for file in files if not file.exists()), None)
    return Found(str(found.metadata().id), found.version() == 0, lost, NONE_YET if batch is None else batch)


def check(settings: Settings, table: str, wanted: str | None) -> None:
    """Only the checkpoint that wrote a table may go on writing it: any other would write its rows again."""
    found = find(settings, table)
    folder = path(settings, table)
    if wanted is None and found is not None and not found.empty:
        raise Refused(
            f"The Delta table {folder} holds a history that the checkpoint {settings.checkpoint} did not write; "
            f"choose another delta folder, or write this one anew from the topic: {ANEW}."
        )
    if wanted is not None and found is None:
        raise Refused(
            f"The Delta table {folder} is gone, but the checkpoint {settings.checkpoint} has written it; "
            f"to write it anew from the topic: {ANEW}."
        )
    if found is not None and found.lost is not None:
        raise Refused(
            f"The Delta table {folder} lacks {found.lost}, which its log names; bring it back, or write the table "
            f"anew from the topic: {ANEW}."
        )
    if wanted is not None and found is not None and found.id != wanted:
        raise Refused(f"The Delta table {folder} is not the one that the checkpoint {settings.checkpoint} writes.")
    if found is not None and table in BY_BATCHES:
        _check_moment(settings, table, found)


def _check_moment(settings: Settings, table: str, found: Found) -> None:
    """A table and its checkpoint of two moments: Delta would skip what it takes for written, or take it twice."""
    if spark_files.query_id(settings.history_checkpoint(table)) is None:
        if found.empty:
            return
        raise Refused(
            f"The checkpoint {settings.checkpoint} no longer knows how far the Delta table {path(settings, table)} is; "
            f"bring back {settings.history_checkpoint(table)}, or write the table anew from the topic: {ANEW}."
        )
    last = spark_files.last_commit(settings.history_checkpoint(table))
    if not last <= found.batch <= last + 1:  # one more where a crash came between the two
        raise Refused(
            f"The Delta table {path(settings, table)} and the checkpoint {settings.checkpoint} are not of one moment: "
            f"{_upto('the table has', found.batch)}, {_upto('the checkpoint', last)}, so rows would be lost or written "
            f"twice; bring back both as they were together, or write the table anew from the topic: {ANEW}."
        )


def _upto(who: str, batch: int) -> str:
    return f"{who} none of its batches" if batch == NONE_YET else f"{who} those up to {batch}"


def origin(topic: Topic) -> str:
    """What a table says of itself: whose records it shows, by an id that a topic made anew does not have."""
    return f"The records of the topic {topic.name}, id {topic.id}."


def is_of_another(settings: Settings, table: str, topic: Topic) -> bool:
    """Whether the table says that it shows another topic's records; one that is damaged says nothing."""
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError

    try:
        told = DeltaTable(path(settings, table)).metadata().description
    except (DeltaError, OSError):
        return False
    return bool(told) and told != origin(topic)


def remove(settings: Settings) -> None:
    """Throw away the tables and how far they were written; a folder of something else is refused, and stays."""
    for table in TABLES:
        folder = path(settings, table)
        if not (folder / LOG).exists():
            find(settings, table)
    for table in TABLES:
        shutil.rmtree(settings.history_checkpoint(table), ignore_errors=True)
        folder = path(settings, table)
        # The log goes last, for by it the next start knows a table that was thrown away only in part.
        for part in [*(one for one in folder.glob("*") if one.name != LOG), folder]:
            shutil.rmtree(part, ignore_errors=True)


def create(spark: "SparkSession", settings: Settings, table: str, of: Topic) -> str:
    """Make the table of this topic's records if it is not there; its id."""
    from delta.tables import DeltaTable
    from pyspark.sql.types import StructType

    found = find(settings, table)
    if found is None:
        builder = DeltaTable.createIfNotExists(spark).location(str(path(settings, table)))
        builder = builder.comment(origin(of))
        columns = cast(StructType, StructType.fromDDL(COLUMNS[table]))
        builder = builder.addColumns(columns).partitionedBy("day")
        for name, value in PROPERTIES.items():
            builder = builder.property(name, value)
        builder.property("delta.dataSkippingStatsColumns", SKIPPED_BY[table]).execute()
        found = find(settings, table)
    assert found is not None
    return found.id
