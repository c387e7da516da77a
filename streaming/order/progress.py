"""The progress topic: how far the output of each ordered topic is published, and what that topic is made from."""

from typing import Any

import msgspec

from precede.ingest.kafka import reading
from precede.ingest.kafka.access import Address
from precede.ingest.kafka.topics import Topic
from precede.streaming.job.checkpoint import FRESH_OUTPUT
from precede.udfs.errors import Refused
from precede.udfs.limits import Limits

TOKEN_VERSION = 1
OWNER_VERSION = 3
"""Version 1 had neither the raw topic's partitions nor the output topics' ids: they are taken as they are found.
Version 2 had no partitioner: a group lived in the partition of its first accepted record."""

_FOREIGN_BYTES = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What decoding may raise for bytes that precede did not write."""


class ProgressToken(msgspec.Struct, forbid_unknown_fields=True):
    """Under the key ["ordered topic", partition]: the output of raw offsets below `next` is published."""

    next: int
    v: int = TOKEN_VERSION


class Owner(msgspec.Struct, forbid_unknown_fields=True):
    """Under the key ["ordered topic"]: what the ordered topic is made from, and the last job that claimed it."""

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


def owner_record(ordered_topic: str, owner: Owner) -> tuple[bytes, bytes]:
    """Key and value of an owner record."""
    return msgspec.json.encode([ordered_topic]), msgspec.json.encode(owner)


def token_record(ordered_topic: str, partition: int, next_offset: int) -> tuple[bytes, bytes]:
    """Key and value of a token for one raw partition."""
    return msgspec.json.encode([ordered_topic, partition]), msgspec.json.encode(ProgressToken(next_offset))


def read_progress(
    bootstrap: Address | str, progress: Topic, ordered_topic: str, *, settled: bool = True
) -> tuple[Owner | None, dict[int, int]]:
    """The newest committed owner and token of an ordered topic.

    The progress topic may serve other streams too; `settled` waits until open transactions no longer hide records of
    this one.
    """
    owner: Owner | None = None
    token: dict[int, int] = {}
    for key, value in reading.read_to_end(bootstrap, progress.name, progress.partitions, settled=settled):
        match _decode_key(key):
            case [name] if name == ordered_topic and value:
                owner = _decode(value, Owner, progress.name, OWNER_VERSION)
            case [name, int(partition)] if name == ordered_topic and value:
                token[partition] = _decode(value, ProgressToken, progress.name).next
    return owner, token


def _decode_key(key: bytes | None) -> Any:
    """What a key names; None for a record that precede did not write."""
    try:
        return msgspec.json.decode(key or b"null")
    except _FOREIGN_BYTES:
        return None


def _decode(value: bytes, type_: Any, topic: str, newest: int = TOKEN_VERSION) -> Any:
    try:
        version = msgspec.json.decode(value, type=dict[str, Any]).get("v")
        if version not in range(1, newest + 1):
            raise Refused(f"The topic {topic} was written by another precede (version {version}, not {newest}).")
        return msgspec.json.decode(value, type=type_)
    except _FOREIGN_BYTES as error:
        raise Refused(
            f"The topic {topic} holds, under this stream's key, a record that precede did not write ({error}), so it "
            f"is not known how far the stream is published; {FRESH_OUTPUT}, and let no other program write into that "
            "topic."
        ) from error
