"""The checkpoint's own file, and the checks before a start: log, topics, tables and checkpoint belong to one stream.

Spark's checkpoint has offsets and state, but does not say which topics and settings they belong to. This file does, so
that a start with anything else is refused. What would restart positions, lose rows silently or write them twice is
refused before Spark starts and before anything is written.
"""

from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import msgspec

from precede.ingest.kafka import reading
from precede.ingest.kafka.topics import Topic, describe
from precede.ingest.progress import FRESH_OUTPUT
from precede.ingest.service.running import Say
from precede.streaming.history import tables
from precede.streaming.history.tables import TABLES
from precede.streaming.job import starting_point
from precede.streaming.job.starting_point import Ask
from precede.streaming.order.same_stream import changed_limits
from precede.streaming.places.lease import only_one
from precede.streaming.places.place import Place
from precede.streaming.raw_partitions import as_text, owned
from precede.streaming.settings import Settings
from precede.udfs.errors import Refused
from precede.udfs.limits import Limits

FILE = "precede.json"
VERSION = 5


class TopicId(msgspec.Struct, forbid_unknown_fields=True):
    """A topic; if it is deleted and created again under the same name, its id is different."""

    name: str
    id: str


class OrderPart(msgspec.Struct, forbid_unknown_fields=True):
    """What the order query's state was made from."""

    raw: TopicId
    ordered: TopicId
    dead_letters: TopicId
    progress: TopicId
    control: TopicId
    partitions: int
    ordered_partitions: int
    shards: int
    order: str
    limits: Limits
    partitioner: str
    raw_partitions: str | None = None
    """Those of the job, as its settings name them; None for all."""


class HistoryPart(msgspec.Struct, forbid_unknown_fields=True):
    """What the history queries read, and the ids of the tables they write."""

    ordered: TopicId
    dead_letters: TopicId
    control: TopicId
    tables: dict[str, str]


class Checkpoint(msgspec.Struct, forbid_unknown_fields=True):
    """The whole file; a part is in it once its query has been started with this checkpoint."""

    v: int = VERSION
    order: OrderPart | None = None
    history: HistoryPart | None = None


def read(folder: Place) -> Checkpoint:
    """The content of a checkpoint's file; empty where there is no file yet."""
    path = folder / FILE
    try:
        text = path.read()
    except FileNotFoundError:
        _refuse_foreign(folder)
        return Checkpoint()
    except OSError as error:
        raise Refused(f"The checkpoint file {path} cannot be read: {error.strerror}.") from error
    try:
        version = msgspec.json.decode(text).get("v")
        if isinstance(version, int) and version != VERSION:
            which = "a newer" if version > VERSION else "an older"
            raise Refused(
                f"The checkpoint {folder} has version {version}, written by {which} precede; this one knows version "
                f"{VERSION}."
            )
        return msgspec.json.decode(text, type=Checkpoint)
    except (msgspec.DecodeError, AttributeError) as error:
        raise Refused(f"The checkpoint file {path} is damaged: {error}.") from error


def _refuse_foreign(folder: Place) -> None:
    for name in ("order", "history", "offsets", "commits", "state"):
        if (folder / name).exists():
            raise Refused(
                f"The checkpoint folder {folder} holds {name}/ but no {FILE}: precede did not write it, or the file "
                "was lost."
            )


def write(folder: Place, checkpoint: Checkpoint) -> None:
    """Replace the file as a whole."""
    path = folder / FILE
    try:
        path.replace(msgspec.json.format(msgspec.json.encode(checkpoint), indent=2) + b"\n")
    except OSError as error:
        raise Refused(
            f"The checkpoint file {path} cannot be written: {error.strerror}. Start the job again when it can be."
        ) from error


def update(folder: Place, *, order: OrderPart | None, history: HistoryPart | None) -> None:
    """Write the given parts and keep the other one: its query may run in another job."""
    with _lock_file(folder):
        kept = read(folder)
        kept.v = VERSION
        kept.order, kept.history = order or kept.order, history or kept.history
        write(folder, kept)


def forget_history(folder: Place) -> None:
    """Remove the history part, because its tables are about to be rebuilt."""
    with _lock_file(folder):
        kept = read(folder)
        if kept.history is not None:
            kept.history = None
            write(folder, kept)


def lock_parts(folder: Place, *parts: str, **about: Any) -> AbstractContextManager[None]:
    """Keep other jobs from using these parts of the checkpoint; refused where one is using them."""
    refusal = (
        f"Another job uses the {{part}} part of the checkpoint {folder}. Stop that one first, or give this one a "
        "checkpoint of its own (--checkpoint)."
    )
    return only_one(folder, *parts, refusal=refusal, **about)


def _lock_file(folder: Place) -> AbstractContextManager[None]:
    """Keep other jobs from writing the checkpoint's own file; waits for one that does, since that takes no time."""
    return only_one(folder, "file")


def order_part(settings: Settings, found: OrderPart | None, topics: dict[str, Topic]) -> OrderPart:
    """The order part for these settings; refused where the checkpoint was made from something else."""
    raw = topics[settings.raw_topic]
    now = OrderPart(
        raw=_id(raw),
        ordered=_id(topics[settings.ordered_topic]),
        dead_letters=_id(topics[settings.dead_letter_topic]),
        progress=_id(topics[settings.progress_topic]),
        partitions=raw.partitions,
        shards=settings.shards,
        order=settings.order,
        limits=settings.limits,
        control=_id(topics[settings.control_topic]),
        ordered_partitions=topics[settings.ordered_topic].partitions,
        partitioner=settings.partitioner,
        raw_partitions=_of_the_job(settings, raw),
    )
    if found is None:
        return now
    folder = settings.checkpoint
    for role in ("raw", "ordered", "dead_letters", "progress", "control"):
        _check_topic(folder, getattr(found, role), getattr(now, role))
    if now.partitions != found.partitions:
        raise Refused(
            f"The raw topic {raw.name} has {now.partitions} partitions, but the checkpoint {folder} was made with "
            f"{found.partitions}, and groups would move between them; with the old partitions let the job deliver all "
            "that is there, then continue with a new raw topic, new output topics and a new checkpoint."
        )
    if now.raw_partitions != found.raw_partitions:
        raise Refused(
            f"The checkpoint {folder} is of {_partitions_text(found.raw_partitions)} of {raw.name}, and this job "
            f"orders {_partitions_text(now.raw_partitions)}; take a new checkpoint folder, which begins at the state "
            "topic and publishes nothing twice."
        )
    if found.ordered_partitions != now.ordered_partitions:
        raise Refused(
            f"The ordered topic {settings.ordered_topic} has {now.ordered_partitions} partitions, but the checkpoint "
            f"{folder} was made with {found.ordered_partitions}, and its readers would see holes in the groups that "
            f"move; {FRESH_OUTPUT}."
        )
    if now.shards != found.shards:
        raise Refused(
            f"The setting shards is {now.shards}, but the checkpoint {folder} was made with {found.shards}; keep "
            "that, or take a new checkpoint folder, which begins at the state topic and publishes nothing twice."
        )
    if now.partitioner != found.partitioner:
        raise Refused(
            f"The setting partitioner is {now.partitioner}, but the checkpoint {folder} was made with "
            f"{found.partitioner}, and groups would move between partitions; keep that one."
        )
    if now.order != found.order:
        raise Refused(f"The setting order is {now.order}, but the checkpoint {folder} was made with {found.order}.")
    if now.limits != found.limits:
        changed = changed_limits(found.limits, now.limits)
        raise Refused(f"The setting limits differs from the limits the checkpoint {folder} was made with: {changed}.")
    return now


def history_part(settings: Settings, found: HistoryPart | None, topics: dict[str, Topic]) -> HistoryPart:
    """The same for the history queries; `tables.check` checks which tables they write."""
    ordered, dead_letters = _id(topics[settings.ordered_topic]), _id(topics[settings.dead_letter_topic])
    control = _id(topics[settings.control_topic])
    if found is None:
        return HistoryPart(ordered, dead_letters, control, {})
    _check_topic(settings.checkpoint, found.ordered, ordered)
    _check_topic(settings.checkpoint, found.dead_letters, dead_letters)
    _check_topic(settings.checkpoint, found.control, control)
    return HistoryPart(ordered, dead_letters, control, found.tables)


def _of_the_job(settings: Settings, raw: Topic) -> str | None:
    partitions = owned(settings.raw_partitions, raw.name, raw.partitions)
    return as_text(partitions) if len(partitions) < raw.partitions else None


def _partitions_text(partitions: str | None) -> str:
    return "all partitions" if partitions is None else f"the partitions {partitions}"


def _id(topic: Topic) -> TopicId:
    return TopicId(topic.name, topic.id)


def _check_topic(folder: str, before: TopicId, now: TopicId) -> None:
    if before.name != now.name:
        raise Refused(f"The checkpoint {folder} belongs to the topic {before.name}, not to {now.name}.")
    if before.id != now.id:
        raise Refused(
            f"The checkpoint {folder} belongs to an earlier topic {now.name}, which was deleted and created again."
        )


# ── the checks before a start ─────────────────────────────────────────────────────────────────────────────────────────


def check_order(settings: Settings, kept: OrderPart | None, topics: dict[str, Topic], ask: Ask) -> OrderPart:
    """The order part of the checkpoint as it will be written."""
    now = order_part(settings, kept, topics)
    from precede.streaming.spark import restore  # needs pandas, which those who only ask for the file may lack

    starting_point.check(settings, topics, ask, restore.of_checkpoint)
    return now


def check_history(settings: Settings, kept: HistoryPart | None, topics: dict[str, Topic]) -> HistoryPart:
    """The history part of the checkpoint as it will be written."""
    now = history_part(settings, kept, topics)
    for table in TABLES:
        tables.check(settings, table, now.tables.get(table))
    return now


def rebuild_history(
    settings: Settings, kept: HistoryPart | None, topics: dict[str, Topic], ask: Ask, say: Say
) -> HistoryPart:
    """Remove the tables, provided that the topics still have everything that was in them."""
    now = history_part(settings, kept, topics)  # a mistyped topic must not empty a table
    for table in TABLES:
        _check_same_topic(settings, table, topics)
        first = ask(partial(_first_offset, settings, table))
        if first is None:
            return now  # it is not known whether the topic has everything, so nothing is removed
        _check_topic_is_whole(settings, table, first)
    say("The Delta tables are removed and will be written again from the topics.")
    # Before the tables go: after a crash the checkpoint must not name tables that do not exist.
    forget_history(settings.checkpoint_place)
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
