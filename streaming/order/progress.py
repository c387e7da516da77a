"""The progress topic: how far each ordered topic is out, and what it is made of."""

from typing import Any

import msgspec

from precede.ingest.kafka import reading
from precede.ingest.kafka.access import Address
from precede.ingest.kafka.topics import Topic
from precede.streaming.job.checkpoint import ANEW, SAME, changed_limits
from precede.streaming.job.settings import Settings
from precede.udfs.errors import Refused
from precede.udfs.limits import Limits

TOKEN_VERSION = 1
OWNER_VERSION = 3
"""Version 1 did not know the raw topic's partitions, nor the output topics by their ids: taken as found. Version 2 had
no partitioner: a group lived in the partition of its first accepted record."""

_NOT_OURS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What reading may raise of bytes that no precede wrote."""


class Token(msgspec.Struct, forbid_unknown_fields=True):
    """Key ["ordered topic", partition]: rows of raw offsets below `next` are out."""

    next: int
    v: int = TOKEN_VERSION


class Owner(msgspec.Struct, forbid_unknown_fields=True):
    """Key ["ordered topic"]: what the ordered topic is made of, and which job took it last."""

    raw_topic: str
    raw_topic_id: str
    order: str
    limits: Limits
    job: str
    v: int = OWNER_VERSION
    partitions: int | None = None
    ordered_topic_id: str | None = None
    ordered_partitions: int | None = None
    dead_letter_topic_id: str | None = None
    partitioner: str | None = None


def read_progress(
    bootstrap: Address | str, progress: Topic, ordered_topic: str, *, settled: bool = True
) -> tuple[Owner | None, dict[int, int]]:
    """The newest owner and token of an ordered topic, as far as they are committed.

    The topic may serve other streams too, and their open transactions must not hide what is out here.
    """
    owner: Owner | None = None
    token: dict[int, int] = {}
    for key, value in reading.read_to_end(bootstrap, progress.name, progress.partitions, settled=settled):
        match _whose(key):
            case [name] if name == ordered_topic and value:
                owner = _decode(value, Owner, progress.name, OWNER_VERSION)
            case [name, int(partition)] if name == ordered_topic and value:
                token[partition] = _decode(value, Token, progress.name).next
    return owner, token


def _whose(key: bytes | None) -> Any:
    """What a key names; of a record that nobody's stream wrote, nothing."""
    try:
        return msgspec.json.decode(key or b"null")
    except _NOT_OURS:
        return None


def _decode(value: bytes, type_: Any, topic: str, newest: int = TOKEN_VERSION) -> Any:
    try:
        version = msgspec.json.decode(value, type=dict[str, Any]).get("v")
        if version not in range(1, newest + 1):
            raise Refused(f"The topic {topic} was written by another precede (version {version}, not {newest}).")
        return msgspec.json.decode(value, type=type_)
    except _NOT_OURS as error:
        raise Refused(
            f"The topic {topic} holds, under this stream's key, what no precede wrote ({error}), so how far the stream "
            f"is out is not known; {ANEW}, and let nobody else write into that topic."
        ) from error


def same_source(settings: Settings, found: Owner, mine: Owner) -> None:
    """An ordered topic is the output of one raw log under one order and limits, for ever."""
    topic = settings.ordered_topic
    if found.raw_topic_id != mine.raw_topic_id:
        whose = f"the topic {found.raw_topic}"
        if found.raw_topic == mine.raw_topic:
            whose = f"an earlier topic {found.raw_topic}, deleted since"
        raise Refused(
            f"The ordered topic {topic} holds what came of {whose}; choose a new ordered_topic and dead_letter_topic, "
            "or delete these two and the progress topic."
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


def still_there(settings: Settings, through: dict[int, int], ends: list[tuple[int, int]]) -> None:
    """A log that ends before what is through has lost its end; what came there now would pass for through."""
    for partition, (_, end) in enumerate(ends):
        if through.get(partition, 0) > end:
            raise Refused(
                f"The raw topic {settings.raw_topic} has lost its end: its partition {partition} ends at offset {end}, "
                f"and all below {through[partition]} is through, so what comes there now would be passed over; bring "
                f"back what is lost, or {ANEW.removesuffix(SAME)}."
            )


def same_topics(settings: Settings, found: Owner, mine: Owner) -> None:
    """Groups stay where they are, and what the token takes for published must still be where it was published."""
    topic = settings.ordered_topic
    if found.partitions not in (None, mine.partitions):
        raise Refused(
            f"The raw topic {mine.raw_topic} has {mine.partitions} partitions, but what is in the ordered topic "
            f"{topic} came of {found.partitions}, and groups would move between them; go on with a new raw topic, new "
            "output topics and a new checkpoint."
        )
    if found.ordered_partitions not in (None, mine.ordered_partitions):
        raise Refused(
            f"The ordered topic {topic} has {mine.ordered_partitions} partitions, but was begun with "
            f"{found.ordered_partitions}, and its readers would see the groups that move with holes; {ANEW}."
        )
    for name, before, now in (
        (topic, found.ordered_topic_id, mine.ordered_topic_id),
        (settings.dead_letter_topic, found.dead_letter_topic_id, mine.dead_letter_topic_id),
    ):
        if before not in (None, now):
            raise Refused(
                f"The topic {name} is not the one into which the stream of {topic} was published, and what is out "
                f"already would not come into it; {ANEW}."
            )
