"""Finds what the kernel of a live reader begins with: horizon, states and token, in this order.

The horizon is read first: each state read after it covers what lies below. The token is read last: whatever the states
cover is published by then."""

import warnings
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec

from precede.ingest.follower_token import FollowerToken, Released
from precede.ingest.gc_paused import gc_paused
from precede.ingest.kafka import clients, reading
from precede.ingest.kafka.access import Address
from precede.ingest.kafka.topics import Topic, describe
from precede.ingest.live import kept_state
from precede.ingest.live.kernel import KernelState, StreamIdentity
from precede.ingest.progress import NewerFormat, Owner, Progress, read_progress
from precede.ingest.state_topic import read_state
from precede.udfs.errors import AccessDenied, Refused, Unreachable
from precede.udfs.orders import ORDERS
from precede.udfs.partitioner import DEFAULT_PARTITIONER, MURMUR2, partition_of
from precede.udfs.rules import RULES


class LiveStart(NamedTuple):
    """What a live reader begins with."""

    stream: StreamIdentity
    state: KernelState
    published: dict[int, int]
    """The job's token, of the raw partitions that are read."""
    raw_ends: dict[int, int]


class NotYet(NamedTuple):
    """Why live reading cannot begin now; it may, a little later."""

    reason: str


class OtherRules(NamedTuple):
    """Why live reading is not possible between these releases."""

    reason: str


class ReadingPlace(NamedTuple):
    """Where a live reader reads, and what."""

    bootstrap: Address | str
    ordered: Topic
    progress_topic: str
    groups: Collection[bytes] | None


def find_raw_ends(place: ReadingPlace) -> dict[int, int]:
    """The end of each raw partition that is read; none if no job has named the raw topic, or only a newer one has."""
    try:
        progress = _progress(place, settled=False)
    except NewerFormat:  # then what is committed is read, and that needs no such ends
        return {}
    owner = None if progress is None else progress.any_owner
    if owner is None:
        return {}
    raw = _same_raw_topic(place, owner)
    ends = _raw_ends(place, raw.name, raw.partitions)
    return {at: ends[at][1] for at in _wanted(place, raw.partitions, owner.partitioner or DEFAULT_PARTITIONER)}


def find_start(
    place: ReadingPlace, delivered: Mapping[int, Released], kept_file: Path | None = None
) -> LiveStart | NotYet | OtherRules:
    """Read what a live reader begins with. Raises Refused where live reading would be wrong."""
    try:
        return _find_start(place, delivered, kept_file)
    except NewerFormat as error:
        return OtherRules(f"{error} So what is committed is read instead: run the same release in both places.")


def _find_start(
    place: ReadingPlace, delivered: Mapping[int, Released], kept_file: Path | None
) -> LiveStart | NotYet | OtherRules:
    before = _progress(place, settled=False)
    if before is None or before.any_owner is None:
        return NotYet("no job has started yet")
    stream = _stream(place, before)
    if not isinstance(stream, StreamIdentity):
        return stream
    wanted = _wanted(place, stream.partitions, stream.partitioner)
    for partition in wanted:
        owner = before.owners.get(partition)
        if owner is None or before.horizon.get(partition, 0) < owner.rules_from:
            return NotYet(f"the state of raw partition {partition} is not written under these rules yet")
    kept = None if kept_file is None else kept_state.read_state(kept_file, stream, place.groups)
    if kept is not None and _is_fresh(kept, before.horizon, wanted):
        published = _published(place, before, wanted)
        if _reaches(kept, published, delivered):
            return _checked(place, stream, kept, published, delivered)
    state = _read_states(place, stream, before, wanted)
    return _checked(place, stream, state, _published(place, before, wanted), delivered)


def _progress(place: ReadingPlace, *, settled: bool) -> Progress | None:
    topic = _describe(place, place.progress_topic)
    with _told_if_denied(place, place.progress_topic):
        return None if topic is None else read_progress(place.bootstrap, topic, place.ordered.name, settled=settled)


@contextmanager
def _told_if_denied(place: ReadingPlace, topic: str) -> Iterator[None]:
    """Where an access rule is missing, say which, rather than that the topic cannot be read now."""
    try:
        yield
    except Unreachable as error:
        why = reading.why_unreadable(place.bootstrap, topic, error)
        raise (why if isinstance(why, AccessDenied) else error) from error


def _describe(place: ReadingPlace, topic: str) -> Topic | None:
    with _told_if_denied(place, topic):
        found = describe(place.bootstrap, [topic]).get(topic)
        if found is None:
            clients.check_visible(place.bootstrap, topic)
        return found


def _raw_ends(place: ReadingPlace, topic: str, partitions: int) -> list[tuple[int, int]]:
    with _told_if_denied(place, topic):
        return reading.ends(place.bootstrap, topic, partitions, committed=False)


def _stream(place: ReadingPlace, progress: Progress) -> StreamIdentity | NotYet | OtherRules:
    """What the ordered topic is made from."""
    owner = next(iter(progress.owners.values()))
    for one in progress.owners.values():
        if one.rules != RULES:
            return OtherRules(
                f"The job writes {place.ordered.name} by version {one.rules} of the rules, and this release knows "
                f"version {RULES}, so live reading could give other bytes: what is committed is read instead. "
                "Run the same release in both places."
            )
    if owner.ordered_topic_id != place.ordered.id:
        raise Refused(
            f"The topic {place.ordered.name} is not the one that the job writes: it was deleted and made again. Live "
            "reading begins when a job has started with the new one."
        )
    if owner.order not in ORDERS:
        raise Refused(
            f"The job orders {place.ordered.name} by {owner.order}, which this program does not know: register that "
            "order (precede.register), or read without live."
        )
    raw = _same_raw_topic(place, owner)
    return StreamIdentity(
        place.ordered.id,
        raw.name,
        raw.id,
        raw.partitions,
        owner.order,
        owner.limits,
        owner.partitioner or DEFAULT_PARTITIONER,
        owner.rules,
    )


def _same_raw_topic(place: ReadingPlace, owner: Owner) -> Topic:
    raw = _describe(place, owner.raw_topic)
    if raw is None or raw.id != owner.raw_topic_id:
        raise Refused(
            f"The raw topic {owner.raw_topic}, from which {place.ordered.name} is made, has been deleted"
            f"{'' if raw is None else ', and another one has its name'}: read without live."
        )
    return raw


def _wanted(place: ReadingPlace, partitions: int, partitioner: str) -> list[int]:
    """The raw partitions in which the groups live."""
    if place.groups is None:
        return list(range(partitions))
    return sorted({partition_of(key, partitions, partitioner) for key in place.groups})


def _read_states(place: ReadingPlace, stream: StreamIdentity, progress: Progress, wanted: list[int]) -> KernelState:
    """The states in the state topic, and the horizon from which the raw topic is to be read."""
    owner = progress.owners[wanted[0]]
    starts = {at: progress.horizon.get(at, 0) for at in wanted}
    topic = _describe(place, owner.state_topic)
    if topic is None or topic.id != owner.state_topic_id:
        raise Refused(
            f"The state topic {owner.state_topic} is not the one that the job writes: it was deleted"
            f"{'' if topic is None else ' and made again'}. Read without live until a job has started with a new one."
        )
    if topic.partitions <= max(wanted):
        raise Refused(
            f"The state topic {topic.name} has {topic.partitions} partitions, and the raw topic {stream.partitions}: "
            "there must be as many. Read without live."
        )
    group = next(iter(place.groups)) if place.groups is not None and len(place.groups) == 1 else None
    with gc_paused():  # the pieces hold no cycles
        found = read_state(place.bootstrap, topic.name, wanted, stream=stream.ordered_topic_id, group=group)
    groups: dict[bytes, bytes] = {}
    covered: dict[bytes, int] = {}
    for at, states in found.items():
        for key, state in states.items():
            if place.groups is None or key in place.groups:
                groups[key] = state.blob
                if state.next > starts[at]:
                    covered[key] = state.next
    return KernelState(starts, groups, covered)


def _is_fresh(kept: KernelState, horizon: Mapping[int, int], wanted: list[int]) -> bool:
    """Whether beginning with it is no more work than beginning with the state topic."""
    return kept.starts.keys() == set(wanted) and all(kept.starts[at] >= horizon.get(at, 0) for at in wanted)


def _reaches(kept: KernelState, published: Mapping[int, int], delivered: Mapping[int, Released]) -> bool:
    """Whether all that was released before it is delivered, or can be read in the ordered topic."""
    return all(
        start <= max(published.get(at, 0), delivered.get(at, Released(0)).offset) for at, start in kept.starts.items()
    )


def _published(place: ReadingPlace, before: Progress, wanted: list[int]) -> dict[int, int]:
    progress = _progress(place, settled=True)
    now = before if progress is None else progress
    if any(now.owners[at].rules != before.owners[at].rules for at in wanted):
        raise Refused(f"Another release took over {place.ordered.name} this moment; start again.")
    return {at: now.token.get(at, 0) for at in wanted}


def _checked(
    place: ReadingPlace,
    stream: StreamIdentity,
    state: KernelState,
    published: dict[int, int],
    delivered: Mapping[int, Released],
) -> LiveStart:
    """The start, if the raw topic has what it needs."""
    ends = _raw_ends(place, stream.raw_topic, stream.partitions)
    for at, start in state.starts.items():
        first, end = ends[at]
        if start < first:
            raise Refused(
                f"Partition {at} of the raw topic {stream.raw_topic} begins at offset {first}, and the state topic "
                f"reaches only to {start}: what lies between is deleted, so live reading is not possible. Read without "
                "live, and keep the raw topic longer."
            )
        if end < published[at]:
            raise Refused(
                f"Partition {at} of the raw topic {stream.raw_topic} ends at offset {end}, but the job has processed "
                f"everything below {published[at]}: its end is lost. Read without live."
            )
        if at in delivered and end < delivered[at].offset:
            raise Refused(
                f"The token has read the raw topic {stream.raw_topic} up to offset {delivered[at].offset} of partition "
                f"{at}, which ends at {end}: the token belongs to another topic, or the end is lost. Start without it."
            )
    return LiveStart(stream, state, published, {at: ends[at][1] for at in state.starts})


def complete_token(
    token: FollowerToken,
    place: ReadingPlace,
    ends: Mapping[int, tuple[int, int]],
    *,
    at_end: bool,
    passes_over_cut: bool,
) -> FollowerToken:
    """The token with an offset for each partition that is read; `ends` are the first and the next of each partition.

    Raises Refused if the token does not belong to this topic, or if the topic has lost what comes next.
    """
    topic, partitions = place.ordered.name, place.ordered.partitions
    token.check_topic(topic, place.ordered.id)
    if unknown := sorted(set(token.offsets) - set(range(partitions))):
        raise Refused(
            f"The token names partition {unknown[0]} of {topic}, which has {partitions}: it belongs to another topic "
            "of that name; start without it."
        )
    released = dict(token.released)
    if at_end and not token.offsets:  # the ends of the ordered topic were read before
        released = {at: Released(end) for at, end in find_raw_ends(place).items()}
    offsets: dict[int, int] = {}
    has_warned = False
    for at in _partitions(place):
        first, end = ends[at]
        offsets[at] = token.offsets.get(at, end if at_end else first)
        if offsets[at] < first and token.group is None:  # elsewhere the positions show what is missing
            why = (
                f"Partition {at} of {topic} begins at offset {first}, and the token stands at {offsets[at]}: its "
                "retention has deleted what lies between."
            )
            if not passes_over_cut:
                raise Refused(f"{why} Start without the token, and pass over what you have.")
            if not has_warned:
                has_warned = True
                warnings.warn(f"{why} Reading goes on behind that.", stacklevel=8)
        offsets[at] = max(offsets[at], first)
    return msgspec.structs.replace(token, topic_id=place.ordered.id, offsets=offsets, released=released)


def _partitions(place: ReadingPlace) -> list[int]:
    """The partitions of the ordered topic in which the groups lie."""
    if place.groups is None:
        return list(range(place.ordered.partitions))
    return sorted({partition_of(key, place.ordered.partitions, MURMUR2) for key in place.groups})
