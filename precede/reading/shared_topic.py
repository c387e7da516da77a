"""Deliveries from the ordered topic for one of a consumer group: Kafka shares the partitions, and keeps the places.

A message is handled when the next one is asked for, or when the follower is closed without an error. Its place is
committed within a second, and before its partition goes to another follower of the group. After a crash, and where a
follower is put out of the group, what was not committed comes again, here or there: at least once.
"""

from threading import Thread
from time import monotonic
from typing import Literal

from precede.ingest.follower_token import FollowerToken
from precede.ingest.kafka.group_reader import GroupReader, Place
from precede.reading.consumers_rule import ConsumersRule
from precede.reading.delivery import Delivery
from precede.reading.topic_source import TopicSource
from precede.udfs.errors import Hole, Refused
from precede.udfs.records.messages import LogRecord

COMMIT_S = 1.0
LEAVE_S_MAX = 0.5
"""The client waits a minute and more for a broker that is away; closing a follower does not."""
JOIN_S_MAX = 60.0
"""How long joining the group does not count as silence of the topic."""


class SharedTopic(TopicSource):
    """A source of deliveries for a `Follower`; the consumer's rule begins at the first record after a handover."""

    def __init__(
        self,
        reader: GroupReader,
        *,
        topic: str,
        group: str | None,
        start: Literal["beginning", "end"],
        consumer_group: str,
    ) -> None:
        super().__init__(reader, topic=topic, group=group)
        self._members = reader
        self._start = start
        self._consumer_group = consumer_group
        self._rules: dict[int, ConsumersRule] = {}
        """For each partition that is this follower's now."""
        self._cut: set[int] = set()
        """The partitions that had lost their beginning when the group began there."""
        self._handled: dict[int, int] = {}
        """For each of these partitions, the offset behind what is handled."""
        self._committed: dict[int, int] = {}
        self._handed: tuple[int, int] | None = None
        self._commit_s = monotonic()
        self._joined_from_s = 0.0

    @property
    def token(self) -> FollowerToken:
        """Raises Refused: Kafka keeps the places."""
        raise Refused(
            f"A follower in a consumer group has no token: Kafka keeps the places of {self._consumer_group}. Open it "
            "again with the same consumer_group, and it goes on there."
        )

    @property
    def is_catching_up(self) -> bool:
        """Whether it joins, or records came lately and the end of its partitions has not been seen yet."""
        return self._joins or super().is_catching_up

    @property
    def at_end(self) -> bool:
        """Whether everything in its partitions was delivered, according to the last reads."""
        return super().at_end and not self._joins

    @property
    def _joins(self) -> bool:
        return self._has_begun and not self._rules and monotonic() < self._joined_from_s + JOIN_S_MAX

    def poll(self, timeout_s: float) -> Delivery | None:
        """The next message, or None if none came in this time. Raises Hole once if positions are missing."""
        self._note_handled()  # to ask for more means that what was handed over before is done
        if monotonic() > self._commit_s + COMMIT_S:
            self._commit(wait=False)
        return super().poll(timeout_s)

    def is_at_cut(self, hole: Hole) -> bool:
        """Whether this hole is where the group began, and the topic had lost its beginning by then."""
        return self._partition in self._cut and hole.last == 0

    def give_back(self) -> None:
        """The message handed over last was not handled: it comes again."""
        self._handed = None

    def close(self) -> None:
        """Commit what is handled, and leave the group; where the broker does not answer, this goes on by itself."""
        self._note_handled()
        leaving = Thread(target=self._leave, name="precede leaves a consumer group", daemon=True)
        leaving.start()
        leaving.join(LEAVE_S_MAX)

    def _leave(self) -> None:
        self._commit(wait=True)
        super().close()

    def _begin(self, timeout_s: float) -> bool:
        if not self._reader.starts(self._topic, at_end=False, timeout_s=timeout_s):
            self._start = "beginning"  # if the topic did not exist before, all of its records are new
            return False
        self._joined_from_s = monotonic()
        self._members.join(self._topic, self._start, self._assigned, self._revoked)
        return True

    def _assigned(self, places: dict[int, Place]) -> None:
        for partition, place in places.items():
            from_beginning = place.is_first and self._start == "beginning"
            if from_beginning and place.offset > 0:
                self._cut.add(partition)
            self._rules[partition] = ConsumersRule(from_beginning=from_beginning)
            self._handled[partition] = place.offset

    def _revoked(self, partitions: set[int]) -> None:
        """Commit what is handled, and forget the partitions: another follower goes on there."""
        self._commit(wait=True)
        self._waiting = [record for record in self._waiting if record.partition not in partitions]
        for partition in partitions:
            self._rules.pop(partition, None)
            self._handled.pop(partition, None)
        if self._handed is not None and self._handed[0] in partitions:
            self._handed = None

    def _mine(self, records: list[LogRecord]) -> list[LogRecord]:
        """Without those of partitions that went to another follower while they were read."""
        return [record for record in records if record.partition in self._rules]

    def _admits(self, delivery: Delivery) -> bool:
        return self._rules[self._partition].admits(delivery)

    def _hand_over(self, next_offset: int) -> None:
        self._handed = self._partition, next_offset

    def _pass_over(self, next_offset: int) -> None:
        self._handled[self._partition] = next_offset

    def _note_handled(self) -> None:
        if self._handed is not None:
            partition, offset = self._handed
            self._handled[partition] = offset
            self._handed = None

    def _commit(self, *, wait: bool) -> None:
        if wait or self._handled != self._committed:
            self._members.commit(self._handled, wait=wait)
        self._committed = dict(self._handled)
        self._commit_s = monotonic()
