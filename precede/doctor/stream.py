"""Whether a start would go on with the stream: what it checks before it starts an engine, without changing anything."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import msgspec

from precede.doctor.findings import Finding, note, stop, tried
from precede.ingest.extras import is_there
from precede.ingest.kafka.retention import retention_of
from precede.ingest.kafka.topics import Topic, describe
from precede.ingest.progress import Owner, read_progress
from precede.streaming.job import starting_point
from precede.streaming.order.same_stream import check_same_source
from precede.streaming.raw_partitions import as_text, owned
from precede.streaming.settings import Settings
from precede.streaming.spark import checkpoint
from precede.udfs.errors import PrecedeError


def check_stream(settings: Settings) -> Iterator[Finding]:
    """The checks of a start, where its topics exist."""
    names = [topic.name for topic in settings.topics()]
    try:
        topics = describe(settings.bootstrap, names)
        if len(topics) < len(names):
            yield note("The stream is new: some of its topics do not exist yet.")
            return
        raw = topics[settings.raw_topic]
        owned(settings.raw_partitions, raw.name, raw.partitions)
        yield from _retention(settings)
        if settings.only != "history":
            yield from _order(settings, topics)
            yield from _owners(settings, topics)
        if not settings.runs_without_spark and settings.only != "order":
            yield from _history(settings, topics)
    except PrecedeError as error:
        yield stop(str(error))


def _now(ask: Callable[[], Any]) -> Any:
    """Kafka answered a moment ago, so nothing is asked twice."""
    return ask()


def _retention(settings: Settings) -> Iterator[Finding]:
    retention = retention_of(settings.bootstrap, settings.raw_topic)
    if retention.is_limited:
        yield note(
            f"The raw topic {settings.raw_topic} keeps records for {retention}: what is deleted before it is ordered "
            "is lost."
        )


def _order(settings: Settings, topics: dict[str, Topic]) -> Iterator[Finding]:
    if settings.runs_without_spark:
        yield from tried(
            lambda: starting_point.check(settings, topics, _now), "The log reaches back to where the order goes on."
        )
        return
    if not is_there("spark"):
        return  # said with the packages
    yield from tried(
        lambda: checkpoint.check_order(settings, _kept(settings).order, topics, _now),
        f"The checkpoint {settings.checkpoint}, the log and the topics belong together.",
    )


def _history(settings: Settings, topics: dict[str, Topic]) -> Iterator[Finding]:
    if not is_there("delta"):
        return  # said with the packages
    if settings.rebuild_delta:
        yield note("With rebuild_delta a start removes the Delta tables and writes them again.")
        return
    yield from tried(
        lambda: checkpoint.check_history(settings, _kept(settings).history, topics),
        f"The Delta tables in {settings.delta} and the checkpoint belong together.",
    )


def _kept(settings: Settings) -> checkpoint.Checkpoint:
    return checkpoint.read(settings.checkpoint_place)


def _owners(settings: Settings, topics: dict[str, Topic]) -> Iterator[Finding]:
    """Who has the partitions now, and whether this is the same stream."""
    raw = topics[settings.raw_topic]
    mine = owned(settings.raw_partitions, raw.name, raw.partitions)
    progress = read_progress(settings.bootstrap, topics[settings.progress_topic], settings.ordered_topic, settled=False)
    by_job: dict[str, list[int]] = {}
    for partition, owner in sorted(progress.owners.items()):
        by_job.setdefault(owner.job, []).append(partition)
    for partitions in by_job.values():
        owner = progress.owners[partitions[0]]
        yield from _same_source(settings, owner, topics)
        shared = [partition for partition in partitions if partition in mine]
        what = "a start takes them over, and that job ends if it runs" if shared else "this job leaves them alone"
        yield note(f"The raw partitions {as_text(partitions)} belong to {_name(owner)}: {what}.")
    without = [partition for partition in range(raw.partitions) if partition not in progress.owners]
    if without and set(without) - set(mine):
        lacking = as_text(sorted(set(without) - set(mine)))
        yield note(f"No job has ever taken the raw partitions {lacking}, and this one does not either.")


def _same_source(settings: Settings, owner: Owner, topics: dict[str, Topic]) -> Iterator[Finding]:
    mine = msgspec.structs.replace(
        owner,
        raw_topic=settings.raw_topic,
        raw_topic_id=topics[settings.raw_topic].id,
        order=settings.order,
        limits=settings.limits,
        partitioner=settings.partitioner,
    )
    yield from (one for one in tried(lambda: check_same_source(settings, owner, mine), "") if one.level == "stop")


def _name(owner: Owner) -> str:
    since = datetime.fromtimestamp(owner.since_ms / 1000, UTC)
    return f"a job with the engine {owner.engine}, started {since:%Y-%m-%d %H:%M:%S} UTC"
