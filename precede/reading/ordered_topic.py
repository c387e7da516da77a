"""Deliveries from the ordered topic, all groups or one; the place is kept in a token."""

import warnings
from typing import Literal

import msgspec

from precede.ingest.follower_token import VERSION, FollowerToken, Last
from precede.ingest.kafka.log_readers import LogReader
from precede.reading.consumers_rule import ConsumersRule
from precede.reading.delivery import Delivery
from precede.reading.topic_source import TopicSource
from precede.udfs.errors import Hole, Refused
from precede.udfs.partitioner import MURMUR2, partition_of


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
            if not self._token.counts_positions and self._offsets.get(partition, first) < first:
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
