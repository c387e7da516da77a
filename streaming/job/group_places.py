"""Groups of an older release must live where the rule says, or the start is refused with their names.

In releases before the setting `partitioner` a group lived in the partition of its first accepted record. Where such a
group is continued under the rule, its records would be refused or its positions would start over. So the first start
with a checkpoint, or with an ordered topic, of such a release compares every group with its key.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from precede.ingest.kafka import reading
from precede.ingest.kafka.topics import Topic
from precede.streaming.job.settings import Settings
from precede.udfs.errors import Refused
from precede.udfs.partitioner import partition_of
from precede.udfs.records.lenient import lenient_reader

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAMED_MAX = 5
"""How many groups the sentence names."""


class _Origin(msgspec.Struct):
    """Where the raw record of an ordered record was."""

    partition: int


_read_origin = lenient_reader(_Origin)


def check_checkpoint(settings: Settings, raw: Topic, spark: "SparkSession") -> None:
    """Check the groups in the state of the checkpoint."""
    from precede.streaming.job import checkpoint_reader  # needs pandas, which the other check does not

    homes = (home for holdback in checkpoint_reader.holdbacks(settings, None, spark) for home in holdback.homes())
    _check(settings, raw, homes, f"the checkpoint {settings.checkpoint}")


def check_topics(settings: Settings, raw: Topic, ordered: Topic) -> None:
    """Check the groups in the ordered topic and, of those that are not in it, the groups in the raw topic.

    Both are read to their ends, because without a checkpoint no state has the groups. A group that is not in the
    ordered topic may have held messages, and lives where the log took its first record.
    """
    homes: dict[bytes, int] = {}
    for key, value in reading.read_to_end(settings.bootstrap, ordered.name, ordered.partitions):
        if key is not None and value is not None and key not in homes:
            homes[key] = _read_origin(value).partition
    first: dict[bytes, tuple[int, int]] = {}
    for record in reading.records_to_end(settings.bootstrap, raw.name, raw.partitions):
        if record.key is not None and record.key not in homes:
            place = record.timestamp_ms, record.partition
            first[record.key] = min(first.get(record.key, place), place)
    homes |= {key: partition for key, (_, partition) in first.items()}
    _check(settings, raw, homes.items(), f"the ordered topic {ordered.name} and the raw topic {raw.name}")


def _check(settings: Settings, raw: Topic, homes: Iterable[tuple[bytes, int]], where: str) -> None:
    found = 0
    named: list[str] = []
    for key, home in homes:
        belongs = partition_of(key, raw.partitions, settings.partitioner)
        if home != belongs:
            found += 1
            if len(named) < NAMED_MAX:
                named.append(f"{key.decode(errors='replace')} is in {home} and belongs in {belongs}")
    if not found:
        return
    more = f"; and {found - len(named)} more" if found > len(named) else ""
    raise Refused(
        f"Groups in {where}, which an older release made, do not live in the partition of {raw.name} that "
        f"{settings.partitioner} of their key says ({'; '.join(named)}{more}): set partitioner to the function that "
        "their producers use, or go on with a new raw topic, new output topics and a new checkpoint."
    )
