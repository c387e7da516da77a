"""The progress topic: how far each ordered topic is out, and what it is made of."""

from typing import Any

import msgspec

from streaming import kafka
from streaming.checkpoint import changed_limits
from streaming.errors import Refused
from streaming.kafka import Topic
from streaming.settings import Settings
from udfs.limits import Limits

TOKEN_VERSION = 1


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
    v: int = TOKEN_VERSION


def read_progress(bootstrap: str, progress: Topic, ordered_topic: str) -> tuple[Owner | None, dict[int, int]]:
    """The newest owner and token of an ordered topic, as far as they are committed."""
    owner: Owner | None = None
    token: dict[int, int] = {}
    for key, value in kafka.read_all(bootstrap, progress.name, progress.partitions):
        match msgspec.json.decode(key or b"null"):
            case [name] if name == ordered_topic and value:
                owner = _decode(value, Owner, progress.name)
            case [name, int(partition)] if name == ordered_topic and value:
                token[partition] = _decode(value, Token, progress.name).next
    return owner, token


def _decode(value: bytes, type_: Any, topic: str) -> Any:
    version = msgspec.json.decode(value).get("v")
    if version != TOKEN_VERSION:
        raise Refused(f"The topic {topic} was written by another precede (version {version}, not {TOKEN_VERSION}).")
    return msgspec.json.decode(value, type=type_)


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
    if found.limits != mine.limits:
        changed = changed_limits(found.limits, mine.limits)
        raise Refused(
            f"The ordered topic {topic} was made with other limits ({changed}); keep those, or choose a new "
            "ordered_topic."
        )
