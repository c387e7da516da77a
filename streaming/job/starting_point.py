"""Where the order query begins: at its checkpoint, at the state topic and the horizon, or at the beginning of the log.

It is computed before Spark starts, so that what a person must decide is refused early, and once more when the job
has fenced all others, so that nothing it depends on can change any more.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

from precede.ingest.kafka import reading
from precede.ingest.kafka.topics import Topic
from precede.ingest.progress import Progress, read_progress
from precede.streaming.order.same_stream import check_log_reaches, check_rules
from precede.streaming.raw_partitions import of_partitions, owned
from precede.streaming.settings import Settings
from precede.udfs.errors import Refused

NEW_OUTPUT = "choose a new ordered_topic, dead_letter_topic and delta folder, where positions start over"
NEW_TOPICS = "choose a new ordered_topic and dead_letter_topic, where positions start over"
RESTORE_HINT = "take a new checkpoint folder, which begins at the state topic and publishes nothing twice"


class StartingPoint(NamedTuple):
    """Where the order query begins."""

    offsets: dict[int, int] | None = None
    """Where the log is read from behind the state in the state topic, by partition; None where that is not read."""
    set_aside: str | None = None
    """Why the checkpoint is not continued; None where it is, or where there is none."""


class Position(NamedTuple):
    """What the starting point depends on; each dictionary is by raw partition, and has those of the job."""

    reached: dict[int, int] | None
    """The offsets up to which the checkpoint has processed the log; None for a fresh one."""
    token: dict[int, int]
    horizon: dict[int, int]
    ends: Mapping[int, tuple[int, int]]
    """The first and the next offset of each raw partition of the job."""
    lacks_state: bool = False
    """Whether the checkpoint is older than files that it needs."""


Ask = Callable[[Callable[[], Any]], Any]
"""Asks Kafka until it answers; None where the job was stopped meanwhile."""
Offsets = Mapping[int, int]
PositionOf = Callable[[Settings, Offsets, Offsets, Mapping[int, tuple[int, int]]], Position]
"""What an engine makes of its settings, the token, the horizon, and the ends of the log."""


def at_once(ask: Callable[[], Any]) -> Any:
    """Ask Kafka once."""
    return ask()


def fresh(_settings: Settings, token: Offsets, horizon: Offsets, ends: Mapping[int, tuple[int, int]]) -> Position:
    """The position of an engine that has nothing but what is in Kafka."""
    return Position(None, of_partitions(ends, token), of_partitions(ends, horizon), ends)


def check(settings: Settings, topics: dict[str, Topic], ask: Ask, position_of: PositionOf = fresh) -> None:
    """Refuse a start that would lose messages, or number from 1 again; nothing is changed yet."""
    raw, progress_topic = topics[settings.raw_topic], topics[settings.progress_topic]
    partitions = owned(settings.raw_partitions, raw.name, raw.partitions)
    ends = ask(lambda: reading.ends_of(settings.bootstrap, raw.name, partitions))

    def check_progress(*, settled: bool) -> None:
        known = {"settled": settled}
        progress = ask(lambda: read_progress(settings.bootstrap, progress_topic, settings.ordered_topic, **known))
        if progress is None:
            return
        horizon = progress.horizon_in(topics[settings.state_topic_name].id)
        position = position_of(settings, progress.token, horizon, ends)
        if find(settings, position, ask).offsets is None and position.reached is None:
            _check_read_again(settings, progress, ends)

    if ends is None:
        return
    try:
        check_progress(settled=False)
    except Refused:  # unless an open transaction only hides how far the stream is
        check_progress(settled=True)


def find(settings: Settings, position: Position, ask: Ask = at_once) -> StartingPoint:
    """The starting point; raises Refused where there is none."""

    def has_records(*places: int) -> bool:
        """Offsets alone do not say it: the mark of a transaction has one, too."""
        return bool(ask(lambda: reading.has_records(settings.bootstrap, settings.raw_topic, *places)))

    check_log_reaches(settings, position.reached or {}, position.ends)
    if position.reached is None:
        return _fresh(settings, position)
    _check_not_ahead(settings, position, position.reached, has_records)
    why = _why_not_continued(settings, position, position.reached)
    if why is None:
        return StartingPoint()
    if not position.horizon or _first_cut(settings, position) is not None:
        raise _lost_messages(settings, position, position.reached)
    return StartingPoint(_from_horizon(settings, position), why)


def _fresh(settings: Settings, position: Position) -> StartingPoint:
    if position.horizon:
        cut = _first_cut(settings, position)
        if cut is None:
            return StartingPoint(_from_horizon(settings, position))
        raise Refused(
            f"The raw topic {settings.raw_topic} no longer reaches back to the horizon: its partition {cut} begins at "
            f"offset {position.ends[cut][0]}, and the state topic {settings.state_topic_name} only covers what is "
            f"below {position.horizon.get(cut, 0)}; {_way_out_of_a_cut_log(settings)}."
        )
    cut = next((partition for partition, (first, _) in position.ends.items() if first > 0), None)
    if cut is None:
        return StartingPoint()
    where = f"partition {cut} starts at offset {position.ends[cut][0]}"
    if position.token:
        raise Refused(
            f"The beginning of the raw topic {settings.raw_topic} is gone, and the positions in "
            f"{settings.ordered_topic} are counted from it ({where}); {_way_out_of_a_cut_log(settings)}."
        )
    if not settings.accept_cut_log:
        raise Refused(
            f"The beginning of the raw topic {settings.raw_topic} is gone ({where}), so a fresh start would count "
            "positions from what is left; if you want that, set accept_cut_log."
        )
    return StartingPoint()


def _way_out_of_a_cut_log(settings: Settings) -> str:
    """What to do where nothing covers what the log has lost; the engine process has no checkpoint and no tables."""
    if settings.runs_without_spark:
        return f"set accept_cut_log and {NEW_TOPICS}"
    return f"start with the old checkpoint, or set accept_cut_log and {NEW_OUTPUT}"


def _check_not_ahead(
    settings: Settings, position: Position, reached: dict[int, int], has_records: Callable[[int, int, int], bool]
) -> None:
    """What lies between the token and a checkpoint that is ahead of it would never be published."""
    for partition, (first, _) in position.ends.items():
        done, published = reached.get(partition, 0), position.token.get(partition, 0)
        if done > max(first, published) and has_records(partition, max(first, published), done):
            raise Refused(
                f"The checkpoint {settings.checkpoint} is ahead of the stream: in partition {partition} it is at "
                f"offset {done}, but the progress topic {settings.progress_topic} says that only what is below "
                f"{published} is published, so messages would be skipped; {RESTORE_HINT}."
            )


def _why_not_continued(settings: Settings, position: Position, reached: dict[int, int]) -> str | None:
    for partition, (first, _) in position.ends.items():
        if reached.get(partition, 0) < first:
            return (
                f"it is at offset {reached.get(partition, 0)} of partition {partition}, and the raw topic "
                f"{settings.raw_topic} now begins at {first}"
            )
    return "it is older than state that was restored into it" if position.lacks_state else None


def _first_cut(settings: Settings, position: Position) -> int | None:
    """The first partition in which the log no longer reaches back to the horizon."""
    offsets = _from_horizon(settings, position)
    return next((at for at, (first, _) in position.ends.items() if offsets[at] < first), None)


def _from_horizon(settings: Settings, position: Position) -> dict[int, int]:
    """Where the log is read from behind the state; of a partition that was never ordered, what is left if accepted."""
    horizon, token = position.horizon, position.token
    return {
        at: horizon.get(at, first if settings.accept_cut_log and at not in token else 0)
        for at, (first, _) in position.ends.items()
    }


def _lost_messages(settings: Settings, position: Position, reached: dict[int, int]) -> Refused:
    folder, topic = settings.checkpoint, settings.raw_topic
    for partition, (first, _) in position.ends.items():
        if max(reached.get(partition, 0), position.token.get(partition, 0)) < first:
            return Refused(
                f"The raw topic {topic} has lost messages that were not ordered yet: its partition {partition} begins "
                f"at offset {first}, and the checkpoint {folder} is at {reached.get(partition, 0)}; restore them, or "
                f"take a new checkpoint folder with accept_cut_log, and {NEW_OUTPUT}."
            )
    return Refused(
        f"The checkpoint {folder} cannot be continued, because {_why_not_continued(settings, position, reached)}, and "
        f"the state topic {settings.state_topic_name} does not cover what is missing; restore a newer checkpoint, or "
        f"take a new checkpoint folder with accept_cut_log, and {NEW_OUTPUT}."
    )


def _check_read_again(settings: Settings, progress: Progress, partitions: Collection[int]) -> None:
    """A log that is read from its beginning must give what was published from these partitions of it."""
    for partition, found in progress.owners.items():
        if partition in partitions and progress.token.get(partition):
            check_rules(settings.ordered_topic, found, reads_log_again=True)
