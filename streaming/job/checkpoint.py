"""The checkpoint's own file: what its state was made of, so that a start with anything else is refused in a sentence.

Spark's checkpoint knows offsets and state, but not whose; this file stands beside it and does.
"""

import os
from contextlib import AbstractContextManager
from pathlib import Path

import msgspec

from precede.ingest.files import locked, replace_file
from precede.ingest.kafka.topics import Topic
from precede.streaming.job.settings import Settings
from precede.udfs.errors import Refused
from precede.udfs.limits import Limits

FILE = "precede.json"
VERSION = 4
"""Version 1 did not know the control topic, and 2 not how many partitions the ordered topic has: taken as found. Of
version 3 it is checked where its groups live."""

SAME = ", with the same positions"
ANEW = (
    "take a new ordered_topic, dead_letter_topic and progress_topic, and new checkpoint and delta folders: the whole "
    f"log is read again into them{SAME}"
)
"""The way out wherever an ordered topic cannot go on."""


class TopicId(msgspec.Struct, forbid_unknown_fields=True):
    """A topic of this name may be deleted and made anew; then its id is another."""

    name: str
    id: str


class OrderPart(msgspec.Struct, forbid_unknown_fields=True):
    """What the order query's state was made of."""

    raw: TopicId
    ordered: TopicId
    dead_letters: TopicId
    progress: TopicId
    partitions: int
    shards: int
    order: str
    limits: Limits
    control: TopicId | None = None
    ordered_partitions: int | None = None
    partitioner: str | None = None
    """None for state of an older release, where it is not known yet that each group lives where its key says."""


class HistoryPart(msgspec.Struct, forbid_unknown_fields=True):
    """What the history query reads, and the ids of the tables it writes."""

    ordered: TopicId
    dead_letters: TopicId
    tables: dict[str, str]
    control: TopicId | None = None


class Checkpoint(msgspec.Struct, forbid_unknown_fields=True):
    """The whole file; a part is there once its query has been started here."""

    v: int = VERSION
    order: OrderPart | None = None
    history: HistoryPart | None = None


def read(folder: Path) -> Checkpoint:
    """The file of a checkpoint, or an empty one where there is none yet."""
    path = folder / FILE
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        _refuse_foreign(folder)
        return Checkpoint()
    except OSError as error:
        raise Refused(f"The checkpoint file {path} cannot be read: {error.strerror}.") from error
    try:
        version = msgspec.json.decode(text).get("v")
        if isinstance(version, int) and version > VERSION:
            raise Refused(
                f"The checkpoint {folder} has version {version}, written by a newer precede; this one knows up to "
                f"{VERSION}."
            )
        return msgspec.json.decode(text, type=Checkpoint)
    except (msgspec.DecodeError, AttributeError) as error:
        raise Refused(f"The checkpoint file {path} is damaged: {error}.") from error


def _refuse_foreign(folder: Path) -> None:
    for name in ("order", "history", "offsets", "commits", "state"):
        if (folder / name).exists():
            raise Refused(
                f"The checkpoint folder {folder} holds {name}/ but no {FILE}: it was not written by precede, or the "
                "file was lost."
            )


def write(folder: Path, checkpoint: Checkpoint) -> None:
    """Replace the file as a whole."""
    replace_file(folder / FILE, msgspec.json.format(msgspec.json.encode(checkpoint), indent=2) + b"\n")


def update(folder: Path, *, order: OrderPart | None, history: HistoryPart | None) -> None:
    """Write the parts given, and leave the other as it is: its query may run in a job of its own."""
    with _file_alone(folder):
        kept = read(folder)
        kept.v = VERSION
        kept.order, kept.history = order or kept.order, history or kept.history
        write(folder, kept)


def forget_history(folder: Path) -> None:
    """The tables of this checkpoint are to be written anew."""
    with _file_alone(folder):
        kept = read(folder)
        if kept.history is not None:
            kept.history = None
            write(folder, kept)


def alone(folder: Path, part: str) -> AbstractContextManager[int]:
    """While this is open, no other job of this machine works with that part of the checkpoint."""
    return locked(
        folder / f".{part}.lock", refusal=f"Another job is at work with the {part} part of the checkpoint {folder}."
    )


def _file_alone(folder: Path) -> AbstractContextManager[int]:
    """While this is open, no other job writes the checkpoint's own file; it is waited for, for that is soon over."""
    return locked(folder / ".file.lock")


def make_writable(setting: str, folder: Path) -> None:
    """Make the folder if it is not there, and try to write in it."""
    probe = folder / f".precede-{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        raise Refused(f"The {setting} folder {folder} is not writable: {error.strerror}.") from error


def check_order(settings: Settings, found: OrderPart | None, topics: dict[str, Topic]) -> OrderPart:
    """What the order query will be made of now; refused where its checkpoint was made of something else."""
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
    )
    if found is None:
        return now
    if found.partitioner is None:
        now.partitioner = None
    folder = settings.checkpoint
    for role in ("raw", "ordered", "dead_letters", "progress", "control"):
        _same_topic(folder, getattr(found, role), getattr(now, role))
    if now.partitions != found.partitions:
        raise Refused(
            f"The raw topic {raw.name} has {now.partitions} partitions, but the checkpoint {folder} was made with "
            f"{found.partitions}, and groups would move between them; let the job deliver all that is there, then go "
            "on with a new raw topic, new output topics and a new checkpoint."
        )
    if found.ordered_partitions not in (None, now.ordered_partitions):
        raise Refused(
            f"The ordered topic {settings.ordered_topic} has {now.ordered_partitions} partitions, but the checkpoint "
            f"{folder} was made with {found.ordered_partitions}, and its readers would see the groups that move with "
            f"holes; {ANEW}."
        )
    if now.shards != found.shards:
        raise Refused(
            f"The setting shards is {now.shards}, but the checkpoint {folder} was made with {found.shards}; keep "
            "that, or take a new checkpoint folder: the whole log is read again then, and nothing is published twice."
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
        raise Refused(f"The setting limits differs from what the checkpoint {folder} was made with: {changed}.")
    return now


def check_history(settings: Settings, found: HistoryPart | None, topics: dict[str, Topic]) -> HistoryPart:
    """The same for the history query; which tables it writes is checked where they are opened."""
    ordered, dead_letters = _id(topics[settings.ordered_topic]), _id(topics[settings.dead_letter_topic])
    control = _id(topics[settings.control_topic])
    if found is None:
        return HistoryPart(ordered, dead_letters, {}, control)
    _same_topic(settings.checkpoint, found.ordered, ordered)
    _same_topic(settings.checkpoint, found.dead_letters, dead_letters)
    _same_topic(settings.checkpoint, found.control, control)
    return HistoryPart(ordered, dead_letters, found.tables, control)


def is_cut(settings: Settings, ends: list[tuple[int, int]]) -> bool:
    """Whether the log's beginning is gone; refused unless that is accepted, for positions count from the beginning."""
    cut = [partition for partition, (first, _) in enumerate(ends) if first > 0]
    if cut and not settings.accept_cut_log:
        raise Refused(
            f"The beginning of the raw topic {settings.raw_topic} is gone (partition {cut[0]} starts at offset "
            f"{ends[cut[0]][0]}), so a fresh start would number positions anew from what is left; "
            "if that is meant, set accept_cut_log."
        )
    return bool(cut)


def changed_limits(before: Limits, now: Limits) -> str:
    """The limits that differ, for a sentence."""
    names = [name for name in Limits.__struct_fields__ if getattr(before, name) != getattr(now, name)]
    return ", ".join(f"{name} was {getattr(before, name)}, now {getattr(now, name)}" for name in names)


def _id(topic: Topic) -> TopicId:
    return TopicId(topic.name, topic.id)


def _same_topic(folder: str, before: TopicId | None, now: TopicId) -> None:
    if before is None:
        return
    if before.name != now.name:
        raise Refused(f"The checkpoint {folder} belongs to the topic {before.name}, not to {now.name}.")
    if before.id != now.id:
        raise Refused(
            f"The checkpoint {folder} belongs to an earlier topic {now.name}, which was deleted and made anew."
        )
