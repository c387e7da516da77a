"""An ordered topic stays the output of one stream: its raw log, order, limits, rules and output topics.

Whatever would make other bytes or other positions than those already published is refused here.
"""

from collections.abc import Mapping

from precede.ingest.progress import FRESH_OUTPUT, SAME_POSITIONS, Owner
from precede.streaming.settings import Settings
from precede.udfs.errors import Refused
from precede.udfs.limits import Limits
from precede.udfs.rules import RULES


def check_same_source(settings: Settings, found: Owner, mine: Owner) -> None:
    """An ordered topic always stays the output of one raw log under one order and limits."""
    topic = settings.ordered_topic
    if found.raw_topic_id != mine.raw_topic_id:
        source = f"the topic {found.raw_topic}"
        if found.raw_topic == mine.raw_topic:
            source = f"an earlier topic {found.raw_topic}, which has been deleted"
        raise Refused(
            f"The ordered topic {topic} holds the output of {source}; choose a new ordered_topic and "
            "dead_letter_topic, or delete these two and the progress topic."
        )
    if found.order != mine.order:
        raise Refused(
            f"The ordered topic {topic} was made with the order {found.order}, not {mine.order}; "
            "keep that order, or choose a new ordered_topic."
        )
    if found.partitioner != mine.partitioner:
        raise Refused(
            f"The ordered topic {topic} was made with the partitioner {found.partitioner}, not {mine.partitioner}; "
            "keep that one, or choose a new ordered_topic."
        )
    if found.limits != mine.limits:
        changed = changed_limits(found.limits, mine.limits)
        raise Refused(
            f"The ordered topic {topic} was made with other limits ({changed}); keep those, or choose a new "
            "ordered_topic."
        )


def check_log_reaches(settings: Settings, done: Mapping[int, int], ends: Mapping[int, tuple[int, int]]) -> None:
    """A raw topic that ends before what is done has lost records; new records there would be taken for done."""
    for partition, (_, end) in ends.items():
        if done.get(partition, 0) > end:
            raise Refused(
                f"The raw topic {settings.raw_topic} has lost its end: its partition {partition} ends at offset {end}, "
                f"but everything below {done[partition]} has been processed, so new records there would be skipped; "
                f"restore what is lost, or {FRESH_OUTPUT.removesuffix(SAME_POSITIONS)}."
            )


def check_same_topics(settings: Settings, found: Owner, mine: Owner) -> None:
    """Groups stay in their partitions, and what the token counts as published is still in the output topics."""
    topic = settings.ordered_topic
    if found.partitions != mine.partitions:
        raise Refused(
            f"The raw topic {mine.raw_topic} has {mine.partitions} partitions, but the content of the ordered topic "
            f"{topic} was made from {found.partitions}, and groups would move between them; continue with a new raw "
            "topic, new output topics and a new checkpoint."
        )
    if found.ordered_partitions != mine.ordered_partitions:
        raise Refused(
            f"The ordered topic {topic} has {mine.ordered_partitions} partitions, but had "
            f"{found.ordered_partitions} when it was started, and its readers would see holes in the groups that "
            f"move; {FRESH_OUTPUT}."
        )
    for name, before, now in (
        (topic, found.ordered_topic_id, mine.ordered_topic_id),
        (settings.dead_letter_topic, found.dead_letter_topic_id, mine.dead_letter_topic_id),
    ):
        if before != now:
            raise Refused(
                f"The topic {name} is not the one into which the stream of {topic} was published, and records that "
                f"are already published would be missing from it; {FRESH_OUTPUT}."
            )


def check_same_state_topic(settings: Settings, partition: int, found: Owner, mine: Owner) -> None:
    """Readers find the states of all groups in one topic, whichever job writes them."""
    if found.state_topic_id != mine.state_topic_id:
        which = "an earlier one of that name" if found.state_topic == mine.state_topic else found.state_topic
        raise Refused(
            f"The state topic of this job is {mine.state_topic}, but that of the job of raw partition {partition} is "
            f"{which}; all jobs of {settings.ordered_topic} need the same one. Only a job of all partitions, without "
            "raw_partitions, can change it."
        )


def check_rules(topic: str, owner: Owner, *, reads_log_again: bool) -> None:
    """Rules that this release does not know are refused; so is making a published sequence again under newer rules.

    A job that continues with its checkpoint, or begins at the state topic and the horizon, goes on from where it is
    under the rules of this release. One that reads the log from its beginning would give published records other
    positions.
    """
    if owner.rules > RULES:
        raise Refused(
            f"The ordered topic {topic} is written by a newer precede, under rules of version {owner.rules}; this one "
            f"knows version {RULES}: run the newer one."
        )
    if owner.rules < RULES and reads_log_again:
        raise Refused(
            f"The ordered topic {topic} was written by an older precede, under rules of version {owner.rules}; this "
            f"one has version {RULES}, under which a log that is read again could give other positions: start with the "
            f"checkpoint that belongs to {topic}, or {FRESH_OUTPUT.removesuffix(SAME_POSITIONS)}."
        )


def changed_limits(before: Limits, now: Limits) -> str:
    """The limits that differ, with both values, as a part of a sentence."""
    names = [name for name in Limits.__struct_fields__ if getattr(before, name) != getattr(now, name)]
    return ", ".join(f"{name} was {getattr(before, name)}, now {getattr(now, name)}" for name in names)
