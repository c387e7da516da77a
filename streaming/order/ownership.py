"""Who may write the ordered topic: one job at a time, and only from the raw log, order and limits it was made with.

A job claims the topic by an owner record in the progress topic. It must have fenced all other jobs before, so that
what it reads there cannot change any more.
"""

import uuid

from precede.ingest.kafka import reading
from precede.ingest.kafka.topics import Topic, describe
from precede.streaming.job.checkpoint import FRESH_OUTPUT, SAME_POSITIONS, changed_limits
from precede.streaming.job.settings import Settings
from precede.streaming.order.progress import Owner, owner_record, read_progress
from precede.streaming.order.transaction import TransactionalProducer
from precede.udfs.errors import Refused


class Ownership:
    """This job's claim to the ordered topic of its settings."""

    def __init__(self, settings: Settings, raw: Topic, progress: Topic) -> None:
        self.job = uuid.uuid4().hex
        self._settings = settings
        self._raw = raw
        self._progress = progress
        self._has_claimed = False

    def check(self) -> tuple[Owner, dict[int, int]]:
        """This job's owner record and the token; raises Refused where this job may not write the ordered topic."""
        settings = self._settings
        found, token = read_progress(settings.bootstrap, self._progress, settings.ordered_topic)
        mine = self.record()
        if found is None:
            self._check_no_output(mine.ordered_partitions or 0)
            return mine, token
        if self._has_claimed:
            self._check_own(found)
        check_same_source(settings, found, mine)
        check_same_topics(settings, found, mine)
        ends = reading.ends(settings.bootstrap, self._raw.name, self._raw.partitions)
        check_log_reaches(settings, token, ends)
        return mine, token

    def claim(self, producer: TransactionalProducer, mine: Owner) -> None:
        """Write the owner record, in a transaction of its own."""
        key, value = owner_record(self._settings.ordered_topic, mine)
        producer.begin()
        producer.produce(self._progress.name, [value], [key])
        producer.commit()
        self._has_claimed = True

    def check_not_taken_over(self) -> None:
        """Raise Refused where another job has claimed the topic since this one did."""
        settings = self._settings
        self._check_own(read_progress(settings.bootstrap, self._progress, settings.ordered_topic)[0])

    def record(self) -> Owner:
        """The owner record that this job would write now."""
        settings, raw = self._settings, self._raw
        names = settings.ordered_topic, settings.dead_letter_topic
        found = describe(settings.bootstrap, list(names))
        for name in names:
            if name not in found:
                raise Refused(f"The topic {name} does not exist any more.")
        ordered, dead_letters = (found[name] for name in names)
        return Owner(
            raw.name,
            raw.id,
            settings.order,
            settings.limits,
            self.job,
            partitions=raw.partitions,
            ordered_topic_id=ordered.id,
            ordered_partitions=ordered.partitions,
            dead_letter_topic_id=dead_letters.id,
            partitioner=settings.partitioner,
        )

    def _check_own(self, owner: Owner | None) -> None:
        """The job that took over keeps the topic: this one must not take it back when it fails and tries again."""
        if owner is None or owner.job != self.job:
            raise Refused(f"Another job took over the ordered topic {self._settings.ordered_topic}; this one stops.")

    def _check_no_output(self, partitions: int) -> None:
        """Without a token it is not known which rows are published, so there must be none."""
        topic = self._settings.ordered_topic
        if any(end > 0 for _, end in reading.ends(self._settings.bootstrap, topic, partitions)):
            raise Refused(
                f"The ordered topic {topic} holds records, but the progress topic {self._progress.name} does not know "
                "of them; choose a new ordered_topic, or the progress topic that belongs to it."
            )


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
    if found.partitioner not in (None, mine.partitioner):
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


def check_log_reaches(settings: Settings, done: dict[int, int], ends: list[tuple[int, int]]) -> None:
    """A raw topic that ends before what is done has lost records; new records there would be taken for done."""
    for partition, (_, end) in enumerate(ends):
        if done.get(partition, 0) > end:
            raise Refused(
                f"The raw topic {settings.raw_topic} has lost its end: its partition {partition} ends at offset {end}, "
                f"but everything below {done[partition]} has been processed, so new records there would be skipped; "
                f"restore what is lost, or {FRESH_OUTPUT.removesuffix(SAME_POSITIONS)}."
            )


def check_same_topics(settings: Settings, found: Owner, mine: Owner) -> None:
    """Groups stay in their partitions, and what the token counts as published is still in the output topics."""
    topic = settings.ordered_topic
    if found.partitions not in (None, mine.partitions):
        raise Refused(
            f"The raw topic {mine.raw_topic} has {mine.partitions} partitions, but the content of the ordered topic "
            f"{topic} was made from {found.partitions}, and groups would move between them; continue with a new raw "
            "topic, new output topics and a new checkpoint."
        )
    if found.ordered_partitions not in (None, mine.ordered_partitions):
        raise Refused(
            f"The ordered topic {topic} has {mine.ordered_partitions} partitions, but had "
            f"{found.ordered_partitions} when it was started, and its readers would see holes in the groups that "
            f"move; {FRESH_OUTPUT}."
        )
    for name, before, now in (
        (topic, found.ordered_topic_id, mine.ordered_topic_id),
        (settings.dead_letter_topic, found.dead_letter_topic_id, mine.dead_letter_topic_id),
    ):
        if before not in (None, now):
            raise Refused(
                f"The topic {name} is not the one into which the stream of {topic} was published, and records that "
                f"are already published would be missing from it; {FRESH_OUTPUT}."
            )
