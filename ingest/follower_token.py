"""The token of a follower: how far an application has read what is delivered.

Everything in partition q of the ordered topic below `offsets[q]` is delivered. So is everything that `released[p]`
covers, of what raw partition p released. Nothing else is. A reader of the ordered topic advances `offsets` and keeps
`released` as it is. A live reader advances `released`, and `offsets` as it compares itself with the ordered topic. So
each can go on where the other stopped: it drops what either of the two covers.

A token grows with the partitions, not with the groups. Only a follower of one group also keeps that group's positions.
"""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from precede.udfs.errors import Refused

VERSION = 2

Offset = Annotated[int, Meta(ge=0)]
Last = tuple[str, str | None, int]
"""A group, a destination where its order has them, and the last position delivered."""


class Released(msgspec.Struct, frozen=True, array_like=True):
    """What one raw partition released, up to a place between two ordered records.

    A record may release for many groups, as a tick does: then the groups follow each other in the order of their keys.
    """

    offset: Offset
    """What the raw records below this offset released is covered."""
    key: str | None = None
    """Of what the record at `offset` released, all groups with a smaller key are covered, too."""
    positions: int | dict[str, int] | None = None
    """Of the group `key`, what was released up to this position; in orders with destinations, for each of them."""

    def covers(self, released_offset: int, group: str, destination: str | None, position: int) -> bool:
        """Whether this ordered record is covered."""
        if released_offset != self.offset:
            return released_offset < self.offset
        if self.key is None or group != self.key:
            return self.key is not None and group < self.key
        if isinstance(self.positions, dict):
            return position <= self.positions.get(destination or "", 0)
        return destination is None and position <= (self.positions or 0)

    def with_record(self, released_offset: int, group: str, destination: str | None, position: int) -> "Released":
        """The place behind this record, which is the next one that the partition released."""
        goes_on = released_offset == self.offset and group == self.key
        if destination is None:
            return Released(released_offset, group, position)
        before = self.positions if goes_on and isinstance(self.positions, dict) else {}
        return Released(released_offset, group, before | {destination: position})


class FollowerToken(msgspec.Struct, kw_only=True, omit_defaults=True):
    """How far a follower has read; `text` is what an application stores."""

    topic: str
    v: int
    topic_id: str | None = None
    """A topic that was deleted and created again has another id; None if the id is not known."""
    offsets: dict[int, Offset] = {}
    """For each partition of the ordered topic, the next offset."""
    released: dict[int, Released] = {}
    """For each raw partition, what it released that is delivered, whatever `offsets` say."""
    differing: dict[str, Offset] = {}
    """Groups that a live reader came to read from the ordered topic only: of each, what was released below this offset
    is covered, whatever `released` says."""
    from_delta: dict[int, Released] = {}
    """While a follower catches up from Delta: for each raw partition, how far. The ordered topic comes after that."""
    group: str | None = None
    """The only group that was followed; None if all were."""
    last: list[Last] = []
    from_beginning: bool = False
    """Whether positions are counted from 1 for what `last` does not name."""

    def text(self) -> str:
        return msgspec.json.encode(self).decode()

    def covers(self, partition: int, released_offset: int, group: str, destination: str | None, position: int) -> bool:
        """Whether `released` covers this ordered record; `partition` is that of the raw topic."""
        if group in self.differing:
            return released_offset < self.differing[group]
        released = self.released.get(partition)
        return released is not None and released.covers(released_offset, group, destination, position)

    def belongs_to(self, topic: str, topic_id: str | None) -> bool:
        """Whether its offsets are those of this topic; an id that is not known cannot differ."""
        return self.topic == topic and (None in (topic_id, self.topic_id) or topic_id == self.topic_id)

    def check_topic(self, topic: str, topic_id: str | None = None) -> None:
        """Raise Refused if the token belongs to another topic."""
        if self.topic != topic:
            raise Refused(f"The token belongs to the topic {self.topic}, not to {topic}.")
        if not self.belongs_to(topic, topic_id):
            raise Refused(
                f"The token belongs to an earlier topic {topic}: that one was deleted, and a new one has its name. "
                "Its offsets mean nothing there: start without the token."
            )

    def check_group(self, group: str | None) -> None:
        """Raise Refused if only another group was followed: of this one, the token does not know what was delivered."""
        if self.group not in (None, group):
            wanted = "all groups" if group is None else f"the group {group}"
            raise Refused(f"The token belongs to a follower of the group {self.group}; it cannot resume {wanted}.")


def read_token(text: str) -> FollowerToken:
    """Read a token; raises Refused for anything else, and for one of a newer version."""
    try:
        _check_version(msgspec.json.decode(text))
        return msgspec.json.decode(text, type=FollowerToken)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise Refused(f"This is no token of a follower: {error}.") from error


def _check_version(found: Any) -> None:
    version = found.get("v") if isinstance(found, dict) else None
    if isinstance(version, int) and version > VERSION:
        raise Refused(
            f"The token has version {version}, and this release reads up to version {VERSION}: it was written by a "
            "newer precede; update this one."
        )
    if version != VERSION:
        raise Refused("This is no token of a follower: its version is missing.")
