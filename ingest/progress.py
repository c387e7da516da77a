"""The progress topic: how far each ordered topic is published, what it is made from, and who writes it.

It is compacted. A key is a JSON array that begins with the name of the ordered topic, so that several streams may
share the topic; a value is a JSON object with its version as `v`:

    [ordered topic, raw partition]              the token: raw offsets below `next` are published
    [ordered topic, raw partition, "horizon"]   the state topic covers all raw offsets below `offset`
    [ordered topic, raw partition, "owner"]     the owner: who writes what comes from this raw partition
"""

from collections.abc import Iterable
from hashlib import blake2b
from typing import Any, NamedTuple

import msgspec

from precede.ingest.kafka import reading
from precede.ingest.kafka.access import Address
from precede.ingest.kafka.topics import Topic
from precede.udfs.errors import Refused
from precede.udfs.limits import Limits
from precede.udfs.rules import RULES

SAME_POSITIONS = ", with the same positions"
FRESH_OUTPUT = (
    "take a new ordered_topic, dead_letter_topic and progress_topic, and new checkpoint and delta folders: the whole "
    f"log is read again into them{SAME_POSITIONS}"
)
"""What to do when an ordered topic cannot be continued."""

TOKEN_VERSION = 1
HORIZON_VERSION = 1
OWNER_VERSION = 4

NAMED_MAX = 200
"""A longer list of partitions is not written out in an id."""

_FOREIGN_BYTES = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What decoding may raise for bytes that precede did not write."""


class NewerFormat(Refused):
    """A record is of a version that only a newer release knows."""


class ProgressToken(msgspec.Struct, forbid_unknown_fields=True):
    """The output of raw offsets below `next` is published."""

    next: int
    v: int = TOKEN_VERSION


class Horizon(msgspec.Struct, forbid_unknown_fields=True):
    """Every group's state in the state topic covers all raw offsets below `offset`."""

    offset: int
    v: int = HORIZON_VERSION


class Owner(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Who writes what comes from one raw partition, and what the ordered topic is made from."""

    job: str
    """A name that no other run of a job has."""
    transactional_id: str
    ids: list[str]
    """Every transactional id under which this partition was ever written; a start fences them all."""
    engine: str = "spark"
    since_ms: int
    """When that run was started."""
    raw_topic: str
    raw_topic_id: str
    partitions: int
    order: str
    limits: Limits
    partitioner: str
    rules: int
    rules_from: int
    """The raw offset from which these rules hold; below it the sequence was made by older ones."""
    ordered_topic_id: str
    ordered_partitions: int
    dead_letter_topic_id: str
    state_topic: str
    state_topic_id: str
    v: int = OWNER_VERSION


class StreamTopics(NamedTuple):
    """The topics that an owner record names."""

    raw: Topic
    ordered: Topic
    dead_letters: Topic
    state: Topic


def new_owner(
    topics: StreamTopics,
    *,
    job: str,
    order: str,
    limits: Limits,
    partitioner: str,
    engine: str = "spark",
    since_ms: int = 0,
    own_id: str | None = None,
    rules: int = RULES,
) -> Owner:
    """The owner of partitions that had none before; `own_id` is its transactional id."""
    own_id = transactional_id(topics.ordered.name) if own_id is None else own_id
    return Owner(
        job=job,
        transactional_id=own_id,
        ids=[own_id],
        engine=engine,
        since_ms=since_ms,
        raw_topic=topics.raw.name,
        raw_topic_id=topics.raw.id,
        partitions=topics.raw.partitions,
        order=order,
        limits=limits,
        partitioner=partitioner,
        rules=rules,
        rules_from=0,
        ordered_topic_id=topics.ordered.id,
        ordered_partitions=topics.ordered.partitions,
        dead_letter_topic_id=topics.dead_letters.id,
        state_topic=topics.state.name,
        state_topic_id=topics.state.id,
    )


class Progress(NamedTuple):
    """What the progress topic says of one stream; each dictionary is by raw partition."""

    owners: dict[int, Owner]
    """The newest owner of each partition."""
    token: dict[int, int]
    horizon: dict[int, int]
    ids: dict[int, set[str]]
    """Every transactional id that any record of the topic names, the records that newer ones replace included."""

    def horizon_in(self, state_topic_id: str) -> dict[int, int]:
        """The horizon, if this is the state topic that it speaks of, and not a new one of the same name."""
        owners = self.owners
        return {
            partition: offset
            for partition, offset in self.horizon.items()
            if partition in owners and owners[partition].state_topic_id == state_topic_id
        }

    @property
    def any_owner(self) -> Owner | None:
        """One of the owners: order, limits, partitioner and topics are the same in all of them."""
        return next(iter(self.owners.values()), None)


def transactional_id(ordered_topic: str, partitions: str | None = None) -> str:
    """The id of a job of all partitions, whatever its engine; or of one of some, which are named as in its settings.

    Jobs that share a partition have different ids or are the same one, and jobs that share none never have one id.
    """
    whole = f"precede.{ordered_topic}"
    if partitions is None:
        return whole
    return f"{whole}:{partitions if len(partitions) <= NAMED_MAX else blake2b(partitions.encode()).hexdigest()[:32]}"


def token_record(ordered_topic: str, partition: int, next_offset: int) -> tuple[bytes, bytes]:
    """Key and value of a token for one raw partition."""
    return msgspec.json.encode([ordered_topic, partition]), msgspec.json.encode(ProgressToken(next_offset))


def horizon_record(ordered_topic: str, partition: int, offset: int) -> tuple[bytes, bytes]:
    """Key and value of the horizon of one raw partition."""
    return msgspec.json.encode([ordered_topic, partition, "horizon"]), msgspec.json.encode(Horizon(offset))


def owner_record(ordered_topic: str, partition: int, owner: Owner) -> tuple[bytes, bytes]:
    """Key and value of an owner record for one raw partition."""
    return msgspec.json.encode([ordered_topic, partition, "owner"]), msgspec.json.encode(owner)


def read_progress(bootstrap: Address | str, progress: Topic, ordered_topic: str, *, settled: bool = True) -> Progress:
    """The newest committed progress of an ordered topic.

    The progress topic may serve other streams too; `settled` waits until open transactions no longer hide records of
    this one.
    """
    records = reading.read_to_end(bootstrap, progress.name, progress.partitions, settled=settled)
    return decode_progress(records, progress.name, ordered_topic)


def decode_progress(records: Iterable[tuple[bytes | None, bytes | None]], topic: str, ordered_topic: str) -> Progress:
    """The progress of an ordered topic from the records of the progress topic, in their order."""
    found = Progress({}, {}, {}, {})
    for key, value in records:
        parts = _parts_of(key, ordered_topic)
        if parts is None:
            continue
        if not value:
            _forget(found, parts)
            continue
        match parts:
            case [int(partition)]:
                found.token[partition] = _decode(value, ProgressToken, topic, TOKEN_VERSION).next
            case [int(partition), "horizon"]:
                found.horizon[partition] = _decode(value, Horizon, topic, HORIZON_VERSION).offset
            case [int(partition), "owner"]:
                owner: Owner = _decode(value, Owner, topic, OWNER_VERSION)
                found.owners[partition] = owner
                found.ids.setdefault(partition, set()).update(owner.ids, [owner.transactional_id])
    return found


def _forget(found: Progress, parts: list[Any]) -> None:
    """Take in that somebody removed a record: Kafka's cleaner would, some time later, leave nothing of it."""
    match parts:
        case [int(partition)]:
            found.token.pop(partition, None)
        case [int(partition), "horizon"]:
            found.horizon.pop(partition, None)
        case [int(partition), "owner"]:
            found.owners.pop(partition, None)


def is_owner_of(key: bytes | None, value: bytes | None, ordered_topic: str, *, unless: str) -> bool:
    """Whether a record of the progress topic may name another owner of this ordered topic than the job `unless`."""
    match _parts_of(key, ordered_topic):
        case [int(), "owner"]:
            return value is not None and unless.encode() not in value
    return False


def _parts_of(key: bytes | None, ordered_topic: str) -> list[Any] | None:
    """What a key names behind the ordered topic; None for a record of another stream, or that precede did not write."""
    try:
        found = msgspec.json.decode(key or b"null")
    except _FOREIGN_BYTES:
        return None
    match found:
        case [name, *parts] if name == ordered_topic:
            return parts
    return None


def _check_version(value: bytes, topic: str, known: int) -> None:
    """Refuse a record of a version that this release does not know."""
    try:
        version = msgspec.json.decode(value, type=dict[str, Any]).get("v")
    except _FOREIGN_BYTES as error:
        raise _foreign(topic, error) from error
    if version != known:
        is_newer = isinstance(version, int) and version > known
        sentence = f"The topic {topic} was written by another precede (version {version}, not {known})."
        raise NewerFormat(sentence) if is_newer else Refused(sentence)


def _decode(value: bytes, type_: Any, topic: str, known: int) -> Any:
    _check_version(value, topic, known)
    try:
        return msgspec.json.decode(value, type=type_)
    except _FOREIGN_BYTES as error:
        raise _foreign(topic, error) from error


def _foreign(topic: str, error: Exception) -> Refused:
    return Refused(
        f"The topic {topic} holds, under this stream's key, a record that precede did not write ({error}), so it is "
        f"not known how far the stream is published; {FRESH_OUTPUT}, and let no other program write into that topic."
    )
