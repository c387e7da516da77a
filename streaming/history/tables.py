"""The Delta tables: their columns, how they are created, and which checkpoint and topic each one belongs to."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast
from urllib.parse import unquote

import msgspec

from precede.ingest.kafka.topics import Topic
from precede.ingest.service.running import reason_of
from precede.streaming.history import row_counts
from precede.streaming.history.row_counts import LOG, Comparison
from precede.streaming.places import place, spark_files
from precede.streaming.places.place import Place
from precede.streaming.places.spark_files import NO_BATCH
from precede.streaming.places.store_options import open_table
from precede.streaming.settings import Settings
from precede.udfs.errors import Refused

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

REBUILD = "precede run --rebuild-delta"
"""What to do when a table and its checkpoint do not belong together."""

DELIVERIES = "deliveries"
DEAD_LETTERS = "dead_letters"
GAPS = "gaps"
TABLES = (DELIVERIES, DEAD_LETTERS, GAPS)
BY_BATCHES = (DELIVERIES, DEAD_LETTERS)
"""Delta adds each batch to these once, by its number; rows of gaps are merged by their content."""

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

# Columns by which a query can skip files; statistics of the long texts would cost more than they save.
SKIPPED_BY = {
    DELIVERIES: "`group`,position,sender,epoch,seq,partition,offset,arrived_at,released_offset,released_at",
    DEAD_LETTERS: "code,`group`,sender,partition,offset,arrived_at",
    GAPS: "`group`,sender,epoch,first,last,state,opened_at,closed_at",
}

PROPERTIES = {
    "delta.autoOptimize.autoCompact": "true",  # merges the files of thousands of commits a day
    # The oldest protocol, so that delta-rs and every other engine can read the tables.
    "delta.minReaderVersion": "1",
    "delta.minWriterVersion": "2",
    "delta.enableDeletionVectors": "false",
    "delta.checkpointPolicy": "classic",
}


@dataclass(frozen=True)
class TableFacts:
    """A table that exists already."""

    id: str
    empty: bool
    lost: str | None
    """A file that the table's log names and that does not exist."""
    batch: int
    """The newest batch of its query that is in it."""


def path(settings: Settings, table: str) -> Place:
    """The folder of a table."""
    return place.at(place.at(settings.delta).location) / table


def history_name(table: str) -> str:
    """The name of a table's history query, as sentences and metrics show it."""
    return f"history of {table}"


def topic(settings: Settings, table: str) -> str:
    """The topic whose records a table holds."""
    topics = {
        DELIVERIES: settings.ordered_topic,
        DEAD_LETTERS: settings.dead_letter_topic,
        GAPS: settings.control_topic,
    }
    return topics[table]


def find(settings: Settings, table: str) -> TableFacts | None:
    """The table as it is now, read without Spark."""
    from deltalake.exceptions import DeltaError

    folder = path(settings, table)
    try:
        if not (folder / LOG).exists():
            if folder.names():
                raise Refused(f"The folder {folder} is not empty and not a Delta table; choose another delta folder.")
            return None
        found = open_table(folder, settings.storage_options)
        query = _query_id(settings, table)
        batch = None if query is None else found.transaction_version(query)
        files = set(folder.all_files())
    except (DeltaError, OSError) as error:
        raise Refused(f"The Delta table {folder} cannot be read: {error}.") from error
    named = (unquote(str(name)) for name in found.get_add_actions(flatten=True).column("path").to_pylist())
    lost = next((str(folder / name) for name in named if name not in files), None)
    return TableFacts(str(found.metadata().id), found.version() == 0, lost, NO_BATCH if batch is None else batch)


def check(settings: Settings, table: str, wanted: str | None) -> None:
    """Only the checkpoint that wrote a table may continue it: another one would write its rows again."""
    found = find(settings, table)
    folder = path(settings, table)
    if wanted is None and found is not None and not found.empty:
        raise Refused(
            f"The Delta table {folder} holds a history that the checkpoint {settings.checkpoint} did not write; "
            f"choose another delta folder, or rebuild the table from the topic: {REBUILD}."
        )
    if wanted is not None and found is None:
        raise Refused(
            f"The Delta table {folder} is gone, but the checkpoint {settings.checkpoint} has written it; "
            f"to rebuild it from the topic: {REBUILD}."
        )
    if found is not None and found.lost is not None:
        raise Refused(
            f"The Delta table {folder} lacks {found.lost}, which its log names; restore that file, or rebuild the "
            f"table from the topic: {REBUILD}."
        )
    if wanted is not None and found is not None and found.id != wanted:
        raise Refused(f"The Delta table {folder} is not the one that the checkpoint {settings.checkpoint} writes.")
    if found is not None and table in BY_BATCHES:
        _check_same_batch(settings, table, found)
        compared = compare_rows(settings, table)
        if compared is not None and compared.broken:
            raise Refused(wrong_rows(settings, table, compared))


def compare_rows(settings: Settings, table: str) -> Comparison | None:
    """The rows of a table that its query fills by batches, and those that were written; None before there is a table.

    What is kept of it stands in the checkpoint (`keep_rows`).
    """
    from deltalake.exceptions import DeltaError

    folder, query = path(settings, table), _query_id(settings, table)
    if query is None or not (folder / LOG).exists():
        return None
    kept = row_counts.load(settings.history_checkpoint(table))
    try:
        opened = open_table(folder, settings.storage_options)
        batch = opened.transaction_version(query)
        return row_counts.compare(folder, opened, query, NO_BATCH if batch is None else batch, kept)
    except (DeltaError, OSError, msgspec.DecodeError) as error:
        raise Refused(f"The rows of the Delta table {folder} cannot be counted: {error}.") from error


def keep_rows(settings: Settings, table: str, compared: Comparison) -> None:
    """Note in the checkpoint how many rows the table has; a number that is not right changes nothing there."""
    if compared.broken is None:
        row_counts.save(settings.history_checkpoint(table), compared.found)


def wrong_rows(settings: Settings, table: str, compared: Comparison) -> str:
    """The sentence about a table that has not the rows that were written to it."""
    missing = f"{-compared.difference:,} are missing"
    wrong = missing if compared.difference < 0 else f"{compared.difference:,} are too many"
    back = (
        "" if compared.undone_by is None else f"bring its version {compared.undone_by} back with Delta's RESTORE, or "
    )
    return (
        f"The Delta table {path(settings, table)} has {compared.found.rows:,} rows, but {compared.expected:,} were "
        f"written to it: {wrong} {compared.broken}. To mend it, {back}rebuild the table from the topic: {REBUILD}."
    )


def _query_id(settings: Settings, table: str) -> str | None:
    """The id by which the query that writes a table is known there."""
    return spark_files.query_id(settings.history_checkpoint(table), f"rebuild the table from the topic: {REBUILD}")


def _check_same_batch(settings: Settings, table: str, found: TableFacts) -> None:
    """The table has the batches that its checkpoint counts, or Delta would skip new ones or add old ones again."""
    if _query_id(settings, table) is None:
        if found.empty:
            return
        raise Refused(
            f"The checkpoint {settings.checkpoint} no longer knows how far the Delta table {path(settings, table)} is "
            f"written; restore {settings.history_checkpoint(table)}, or rebuild the table from the topic: {REBUILD}."
        )
    last = spark_files.last_commit(settings.history_checkpoint(table))
    if not last <= found.batch <= last + 1:  # a crash between the two commits leaves one more in the table
        raise Refused(
            f"The Delta table {path(settings, table)} and the checkpoint {settings.checkpoint} are from different "
            f"times: {_has_batches('the table', found.batch)}, {_has_batches('the checkpoint', last)}, so rows would "
            f"be lost or written twice; restore both as they were together, or rebuild the table from the topic: "
            f"{REBUILD}."
        )


def _has_batches(owner: str, batch: int) -> str:
    return f"{owner} has no batches" if batch == NO_BATCH else f"{owner} has the batches up to {batch}"


def origin(topic: Topic) -> str:
    """The table's description: the topic of its records, with the id, which a topic created again does not have."""
    return f"The records of the topic {topic.name}, id {topic.id}."


def is_of_another(settings: Settings, table: str, topic: Topic) -> bool:
    """Whether the table's description names another topic; False where it cannot be read."""
    from deltalake.exceptions import DeltaError

    try:
        description = open_table(path(settings, table), settings.storage_options).metadata().description
    except (DeltaError, OSError):
        return False
    return bool(description) and description != origin(topic)


def remove(settings: Settings) -> None:
    """Remove the tables and their queries' checkpoints; a folder with something else is refused, and stays."""
    for table in TABLES:
        folder = path(settings, table)
        if not (folder / LOG).exists():
            find(settings, table)
    for table in TABLES:
        settings.history_checkpoint(table).remove_all()
        folder = path(settings, table)
        # The log goes last: by it the next start recognises a table that was removed only in part.
        for part in [*(folder / name for name in folder.names() if name != LOG), folder]:
            part.remove_all()


def create(spark: "SparkSession", settings: Settings, table: str, of: Topic) -> str:
    """Create the table of this topic's records where it is absent; its id."""
    from delta.tables import DeltaTable
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException
    from pyspark.sql.types import StructType

    found = find(settings, table)
    if found is None:
        builder = DeltaTable.createIfNotExists(spark).location(path(settings, table).location)
        builder = builder.comment(origin(of))
        columns = cast(StructType, StructType.fromDDL(COLUMNS[table]))
        builder = builder.addColumns(columns).partitionedBy("day")
        for name, value in PROPERTIES.items():
            builder = builder.property(name, value)
        builder = builder.property("delta.dataSkippingStatsColumns", SKIPPED_BY[table])
        try:
            builder.execute()
        except (PySparkException, Py4JJavaError) as error:
            raise Refused(
                f"The Delta table {path(settings, table)} cannot be created: {reason_of(error)}. Start the job again "
                "when it can be."
            ) from error
        found = find(settings, table)
    assert found is not None
    return found.id
