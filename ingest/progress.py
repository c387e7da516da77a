"""The progress topic: how far each ordered topic is published, what it is made from, and who writes it.

It is compacted. A key is a JSON array that begins with the name of the ordered topic, so that several streams may
share the topic; a value is a JSON object with its version as `v`:

    [ordered topic, raw partition]              the token: raw offsets below `next` are published
    [ordered topic, raw partition, "horizon"]   the state topic covers all raw offsets below `offset`
    [ordered topic, raw partition, "owner"]     the owner: who writes what comes from this raw partition
    [ordered topic]                             up to version 3 the owner of all raw partitions, as older releases
                                                wrote it; version 4 only keeps those releases from starting
"""

from collections.abc import Iterable
from hashlib import blake2b
from typing import Any, NamedTuple

import msgspec

from precede.ingest.kafka import reading
from precede.ingest.kafka.access import Address
from precede.ingest.kafka.topics import Topic
from precede.ingest.ways_out import FRESH_OUTPUT
from precede.udfs.errors import Refused
from precede.udfs.limits import Limits
from precede.udfs.rules import OLDER_RULES, RULES

TOKEN_VERSION = 1
HORIZON_VERSION = 1
OWNER_VERSION = 4
"""Up to version 3 there was one owner for all partitions. Version 1 had neither the raw topic's partitions nor the
output topics' ids: they are taken as they are found. Version 2 had no partitioner: a group lived in the partition of
its first accepted record."""

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
    since_ms: int | None = None
    """When that run was started; None where an older release wrote the record."""
    raw_topic: str
    raw_topic_id: str
    partitions: int | None
    order: str
    limits: Limits
    partitioner: str | None
    rules: int
    rules_from: int
    """The raw offset from which these rules hold; below it the sequence was made by older ones."""
    ordered_topic_id: str | None
    ordered_partitions: int | None
    dead_letter_topic_id: str | None
    state_topic: str | None = None
    state_topic_id: str | None = None
    v: int = OWNER_VERSION


class StreamTopics(NamedTuple):
    """The topics that an owner record names; without a state topic, no state is written."""

    raw: Topic
    ordered: Topic
    dead_letters: Topic
    state: Topic | None


def new_owner(
    topics: StreamTopics,
    *,
    job: str,
    order: str,
    limits: Limits,
    partitioner: str,
    engine: str = "spark",
    since_ms: int | None = None,
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
        state_topic=None if topics.state is None else topics.state.name,
        state_topic_id=None if topics.state is None else topics.state.id,
    )


class _OlderOwner(msgspec.Struct, forbid_unknown_fields=True):
    """The owner of all partitions, as releases wrote it that knew no other."""

    raw_topic: str
    raw_topic_id: str
    order: str
    limits: Limits
    job: str
    v: int
    partitions: int | None = None
    ordered_topic_id: str | None = None
    ordered_partitions: int | None = None
    dead_letter_topic_id: str | None = None
    partitioner: str | None = None


class Progress(NamedTuple):
    """What the progress topic says of one stream; each dictionary is by raw partition."""

    owners: dict[int, Owner]
    """The newest owner of each partition; one that an older release wrote stands for all partitions."""
    token: dict[int, int]
    horizon: dict[int, int]
    ids: dict[int, set[str]]
    """Every transactional id that any record of the topic names, the records that newer ones replace included."""
    is_guarded: bool
    """Whether releases that know one owner only are kept from starting."""

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


def guard_record(ordered_topic: str) -> tuple[bytes, bytes]:
    """Key and value of the record that keeps releases from starting that know one owner only."""
    return msgspec.json.encode([ordered_topic]), msgspec.json.encode({"v": OWNER_VERSION})


def read_progress(bootstrap: Address | str, progress: Topic, ordered_topic: str, *, settled: bool = True) -> Progress:
    """The newest committed progress of an ordered topic.

    The progress topic may serve other streams too; `settled` waits until open transactions no longer hide records of
    this one.
    """
    records = reading.read_to_end(bootstrap, progress.name, progress.partitions, settled=settled)
    return decode_progress(records, progress.name, ordered_topic)


def decode_progress(records: Iterable[tuple[bytes | None, bytes | None]], topic: str, ordered_topic: str) -> Progress:
    """The progress of an ordered topic from the records of the progress topic, in their order."""
    older: _OlderOwner | None = None
    found = Progress({}, {}, {}, {}, is_guarded=False)
    is_guarded = False
    for key, value in records:
        parts = _parts_of(key, ordered_topic)
        if parts is None:
            continue
        if not value:
            _forget(found, parts)
            older = older if parts else None
            continue
        match parts:
            case []:
                is_guarded = _version(value, topic, OWNER_VERSION) == OWNER_VERSION
                older = None if is_guarded else _decode(value, _OlderOwner, topic, OWNER_VERSION)
            case [int(partition)]:
                found.token[partition] = _decode(value, ProgressToken, topic, TOKEN_VERSION).next
            case [int(partition), "horizon"]:
                found.horizon[partition] = _decode(value, Horizon, topic, HORIZON_VERSION).offset
            case [int(partition), "owner"]:
                owner: Owner = _decode(value, Owner, topic, OWNER_VERSION)
                found.owners[partition] = owner
                found.ids.setdefault(partition, set()).update(owner.ids, [owner.transactional_id])
    if older is not None:
        _add_older(found, older, ordered_topic)
    return found._replace(is_guarded=is_guarded)


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
        case [] | [int(), "owner"]:
            return value is not None and unless.encode() not in value
    return False


def _add_older(found: Progress, older: _OlderOwner, ordered_topic: str) -> None:
    """Let the owner that an older release wrote stand for every partition without one."""
    own_id = transactional_id(ordered_topic)
    known = {name: getattr(older, name) for name in older.__struct_fields__ if name != "v"}
    # Version 1 does not say how many partitions there are.
    for partition in range(older.partitions or max(found.token, default=0) + 1):
        owner = Owner(**known, transactional_id=own_id, ids=[own_id], rules=OLDER_RULES, rules_from=0)
        found.owners.setdefault(partition, owner)
        found.ids.setdefault(partition, set()).add(own_id)


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


def _version(value: bytes, topic: str, newest: int) -> int:
    """The version of a record; refused where this release does not know it."""
    try:
        version = msgspec.json.decode(value, type=dict[str, Any]).get("v")
    except _FOREIGN_BYTES as error:
        raise _foreign(topic, error) from error
    if not isinstance(version, int) or version not in range(1, newest + 1):
        is_newer = isinstance(version, int) and version > newest
        sentence = f"The topic {topic} was written by another precede (version {version}, not {newest})."
        raise NewerFormat(sentence) if is_newer else Refused(sentence)
    return version


def _decode(value: bytes, type_: Any, topic: str, newest: int) -> Any:
    _version(value, topic, newest)
    try:
        return msgspec.json.decode(value, type=type_)
    except _FOREIGN_BYTES as error:
        raise _foreign(topic, error) from error


def _foreign(topic: str, error: Exception) -> Refused:
    return Refused(
        f"The topic {topic} holds, under this stream's key, a record that precede did not write ({error}), so it is "
        f"not known how far the stream is published; {FRESH_OUTPUT}, and let no other program write into that topic."
    )
