"""The ordered topic as a source of deliveries, by the consumer's rule: followers with a token, or in a consumer group.

The rule: drop a position at or below the last one, deliver the next one; anything else is a hole.

`OrderedTopic` keeps its place in a token. `SharedTopic` is one of a consumer group: Kafka shares the partitions, and
keeps the places. A message is handled when the next one is asked for, or when the follower is closed without an error.
Its place is committed within a second, and before its partition goes to another follower of the group. After a crash,
and where a follower is put out of the group, what was not committed comes again, here or there: at least once.
"""

import warnings
from collections.abc import Iterable
from threading import Thread
from time import monotonic
from typing import Literal, Protocol

import msgspec

from precede.ingest.follower_token import VERSION, FollowerToken, Last
from precede.ingest.kafka.log_readers import GroupPlace, GroupReader, LogReader
from precede.reading.delivery import Delivery, as_delivery
from precede.udfs.errors import Hole, Refused
from precede.udfs.partitioner import MURMUR2, partition_of
from precede.udfs.records.messages import LogRecord


class ConsumersRule:
    """Applies the rule: knows the last position delivered per group and destination."""

    def __init__(self, last: Iterable[Last] = (), *, from_beginning: bool, is_claimed: bool = False) -> None:
        """`is_claimed` where the last positions are what an application says: `check_claims` looks at them."""
        self._last = {(group, destination): position for group, destination, position in last}
        self._begun = dict(self._last)
        self._claims = {place: position for place, position in self._last.items() if position} if is_claimed else {}
        self._shown: dict[tuple[str, str | None], int] = {}
        """While there are claims, the last position that records had."""
        # A reader that starts in the middle cannot know what came before the first record of a group.
        self._from_beginning = from_beginning

    @property
    def last(self) -> list[Last]:
        """The last position of each group and destination."""
        return [(group, destination, position) for (group, destination), position in self._last.items()]

    def admits(self, delivery: Delivery) -> bool:
        """Whether to deliver it; False if it was delivered before. Raises Hole once if any position is missing."""
        place = (delivery.group, delivery.destination)
        if self._claims:
            self._shown[place] = delivery.position
        last = self._last.get(place)
        if last is None:
            last = 0 if self._from_beginning else delivery.position - 1
        if delivery.position > last + 1:
            self._last[place] = delivery.position - 1
            raise Hole(delivery, last)
        if delivery.position <= last:
            return False
        self._last[place] = delivery.position
        return True

    def check_claims(self, *, lacks_beginning: bool) -> None:
        """At the end of the topic: raise Refused if a group has not come as far as the application says.

        Where the topic has lost its beginning, it may have lost all records of a group.
        """
        for (group, destination), position in self._claims.items():
            shown = self._shown.get((group, destination), 0)
            if shown < position and (shown or not (self._shown or lacks_beginning)):
                raise Refused(
                    f"The group {group} has no position {position}: the last one is {shown}, so everything up to "
                    f"{position} would be passed over in silence. Give since= a position that was handed over; one "
                    "that only a live reader was handed is there when the job has written it."
                )
        self._claims = {}

    def begins_with(self, hole: Hole) -> bool:
        """Whether nothing was delivered between the beginning and this hole."""
        place = (hole.delivery.group, hole.delivery.destination)
        return hole.last == self._begun.get(place, 0)

    def note(self, delivery: Delivery) -> None:
        """Count on behind this delivery, which came in another way."""
        self._last[delivery.group, delivery.destination] = delivery.position


class Reader(Protocol):
    """What a source needs of a Kafka client."""

    def starts(self, topic: str, *, at_end: bool, timeout_s: float) -> dict[int, int]:
        """The first, or the next, offset of each partition; empty if the topic does not exist yet."""

    def read(self, timeout_s: float) -> list[LogRecord]:
        """The records that have come; waits up to this time for the first one."""

    def at_end(self) -> bool:
        """Whether everything has been read, as far as the last reads showed."""

    def close(self) -> None:
        """Close the connection to the broker."""


class TopicSource:
    """Reads records, and hands over those of the followed group that the consumer's rule admits."""

    def __init__(self, reader: Reader, *, topic: str, group: str | None) -> None:
        self._reader = reader
        self._topic = topic
        self._key = None if group is None else group.encode()
        self._waiting: list[LogRecord] = []  # read from Kafka but not yet handled, newest first
        self._partition = -1  # of the record that is looked at
        self._has_begun = False
        self._was_at_end = False
        self._came_lately = False

    @property
    def at_end(self) -> bool:
        """Whether everything was delivered, according to the last reads."""
        return self._has_begun and not self._waiting and self._reader.at_end()

    @property
    def has_begun(self) -> bool:
        """Whether the topic was there, and is read."""
        return self._has_begun

    @property
    def is_catching_up(self) -> bool:
        """Whether records came lately, and the end of the topic has not been seen yet."""
        return self._came_lately and not self._was_at_end

    def poll(self, timeout_s: float) -> Delivery | None:
        """The next message, or None if none came in this time. Raises Hole once if positions are missing."""
        if not self.begin(timeout_s):
            return None
        deadline = monotonic() + timeout_s
        while True:
            delivery = self._next()
            if delivery is not None:
                return delivery
            self._waiting = self._mine(self._reader.read(max(0.0, deadline - monotonic())))[::-1]
            self._came_lately = bool(self._waiting)
            if not self._was_at_end and self.at_end:
                self._note_end()
                self._was_at_end = True
            if not self._waiting and monotonic() >= deadline:
                return None

    @property
    def waits_for(self) -> str | None:
        """What must be there before anything can be read; None if it is."""
        return None if self._has_begun else f"the topic {self._topic}"

    def is_at_cut(self, hole: Hole) -> bool:
        """Whether this hole is where the reading began, and the topic had lost its beginning by then."""
        raise NotImplementedError

    def begin(self, timeout_s: float) -> bool:
        """Start reading, if that has not happened; False, after this time, if the topic does not exist yet."""
        self._has_begun = self._has_begun or self._begin(timeout_s)
        return self._has_begun

    def close(self) -> None:
        """Close the connection to the broker."""
        self._reader.close()

    def _next(self) -> Delivery | None:
        """The next message among the records that were read."""
        while self._waiting:
            record = self._waiting[-1]
            self._partition = record.partition
            delivery = self._delivery_in(record)  # after a hole the record stays here, to be delivered next
            self._waiting.pop()
            if delivery is not None:
                self._hand_over(record.offset + 1)
                return delivery
            self._pass_over(record.offset + 1)
        return None

    def _delivery_in(self, record: LogRecord) -> Delivery | None:
        if record.value is None or (self._key is not None and record.key != self._key):
            return None
        delivery = as_delivery(record.value, f"{self._topic}, offset {record.offset},")
        return delivery if self._admits(delivery) else None

    def _note_end(self) -> None:
        """The end was seen, for the first time. Raises Refused if what was asked for lies behind it."""

    def _mine(self, records: list[LogRecord]) -> list[LogRecord]:
        """Those of the records that were read which this source should hand over."""
        return records

    def _begin(self, timeout_s: float) -> bool:
        """Start reading; False, after this time, if the topic does not exist yet."""
        raise NotImplementedError

    def _admits(self, delivery: Delivery) -> bool:
        """Whether to hand it over. Raises Hole once if positions are missing."""
        raise NotImplementedError

    def _hand_over(self, next_offset: int) -> None:
        """What lies before this offset of `_partition` is handed over."""
        raise NotImplementedError

    def _pass_over(self, next_offset: int) -> None:
        """The same, where the last record was not for this follower."""
        raise NotImplementedError


class OrderedTopic(TopicSource):
    """A source of deliveries for a `Follower`."""

    def __init__(
        self,
        reader: LogReader,
        *,
        topic: str,
        group: str | None,
        start: Literal["beginning", "end"] = "beginning",
        token: FollowerToken | None = None,
        passes_over_cut: bool = False,
    ) -> None:
        """With `passes_over_cut`, a token of all groups is taken where what comes next is deleted."""
        self._passes_over_cut = passes_over_cut
        self._cut: set[int] = set()
        """The partitions that had lost what came next when the reading began."""
        super().__init__(reader, topic=topic, group=group)
        self._log = reader
        self._group = group
        # Partitions that the token does not know were added later: all of their records are new.
        self._start = start if token is None else "beginning"
        if token is None:
            token = FollowerToken(topic=topic, v=VERSION, group=group, from_beginning=start == "beginning")
        token.check_topic(topic)
        token.check_group(group)
        self._token = token
        self._offsets = dict(token.offsets)
        self._rule = rule_behind(token)
        self._filling: list[Last] = []  # where Delta fills a hole in a group
        self.lacks_beginning = False
        """Whether the topic has lost records that this follower has not been handed, once it has begun."""

    @property
    def token(self) -> FollowerToken:
        """Where to continue after the last delivered message."""
        one = self._group is not None
        return msgspec.structs.replace(
            self._token,
            v=VERSION,
            group=self._group,
            offsets=dict(self._offsets),
            last=self._rule.last if one else self._filling,
            from_beginning=self._token.from_beginning and one,
        )

    def continue_after(self, delivery: Delivery) -> None:
        """Continue after this delivery, which Delta had."""
        self._rule.note(delivery)
        self._filling = [(delivery.group, delivery.destination, delivery.position)]

    def admits(self, delivery: Delivery) -> bool:
        """Whether to hand over this delivery, which Delta has. Raises Hole once if positions are missing."""
        return self._rule.admits(delivery)

    def is_at_cut(self, hole: Hole) -> bool:
        """Whether this hole is where the reading began, and the topic had lost its beginning by then."""
        return self._partition in self._cut and self._rule.begins_with(hole)

    def give_back(self) -> None:
        """Nothing: the application keeps the token with what it handled."""

    def _begin(self, timeout_s: float) -> bool:
        """Start reading as soon as the topic exists; if it did not exist before, all of its records are new."""
        starts = self._reader.starts(self._topic, at_end=self._start == "end", timeout_s=timeout_s)
        if not starts:
            self._start = "beginning"
            return False
        topic_id = self._log.topic_id(self._topic)
        self._token.check_topic(self._topic, topic_id)
        self._token.topic_id = topic_id
        self._check_partitions(starts)
        mine = partitions_of(self._group, starts)
        self._check_kept(mine)
        self.lacks_beginning = self._start == "beginning" and any(
            first > self._offsets.get(partition, 0) for partition, first in mine.items()
        )
        self._cut = {partition for partition, first in mine.items() if first > self._offsets.get(partition, 0)}
        self._offsets = {at: max(first, self._offsets.get(at, first)) for at, first in mine.items()}
        self._log.assign(self._topic, self._offsets)
        return True

    def _check_partitions(self, starts: dict[int, int]) -> None:
        unknown = sorted(set(self._offsets) - set(starts))
        if unknown:
            raise Refused(
                f"The token names partition {unknown[0]} of {self._topic}, which has {len(starts)}: it belongs to "
                "another topic of that name; start without it."
            )

    def _check_kept(self, starts: dict[int, int]) -> None:
        """Raise Refused if records behind the token are gone, and their positions could not show it as a hole."""
        for partition, first in starts.items():
            if self._token.group is None and self._offsets.get(partition, first) < first:
                why = told_of_cut(self._topic, partition, first, self._offsets[partition])
                if not self._passes_over_cut:
                    raise Refused(f"{why} Start without the token, and pass over what you have.")
                warnings.warn(f"{why} Reading goes on behind that.", stacklevel=8)
                return

    def _note_end(self) -> None:
        self._rule.check_claims(lacks_beginning=self.lacks_beginning)

    def _admits(self, delivery: Delivery) -> bool:
        one = delivery
        if self._token.covers(one.partition, one.released_offset, one.group, one.destination, one.position):
            self._rule.note(one)
            return False
        return self._rule.admits(one)

    def _hand_over(self, next_offset: int) -> None:
        self._filling = []
        self._offsets[self._partition] = next_offset

    def _pass_over(self, next_offset: int) -> None:
        self._offsets[self._partition] = next_offset


def told_of_cut(topic: str, partition: int, first: int, offset: int) -> str:
    """That a token cannot be followed to the letter."""
    return (
        f"Partition {partition} of {topic} begins at offset {first}, and the token stands at {offset}: its retention "
        "has deleted what lies between."
    )


def rule_behind(token: FollowerToken) -> ConsumersRule:
    """The consumer's rule behind a token; without an offset, its positions are what an application says."""
    return ConsumersRule(token.last, from_beginning=token.from_beginning, is_claimed=not token.offsets)


def partitions_of(group: str | None, starts: dict[int, int], partitioner: str = MURMUR2) -> dict[int, int]:
    """Of these partitions and offsets, those that hold the group; all without a group.

    The job's producer hashes the topics that it writes in one way, whatever partitioner the raw topic has.
    """
    if group is None or not starts:
        return starts
    partition = partition_of(group.encode(), len(starts), partitioner)
    return {partition: starts[partition]}


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

    def _assigned(self, places: dict[int, GroupPlace]) -> None:
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
