"""Finds what the kernel of a live reader begins with: horizon, states and token, in this order.

The horizon is read first: each state read after it covers what lies below. The token is read last: whatever the states
cover is published by then. What all readers of a stream begin with is in `ingest/stream_start.py`.
"""

import warnings
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from precede.ingest.follower_token import FollowerToken, Released
from precede.ingest.kafka.access import Address
from precede.ingest.kafka.topics import Topic
from precede.ingest.live import kept_state
from precede.ingest.live.kernel import KernelState, StreamIdentity
from precede.ingest.progress import NewerFormat, Progress
from precede.ingest.stream_start import StreamStart, kernel_state, raw_partitions_of
from precede.udfs.errors import Refused
from precede.udfs.partitioner import MURMUR2, partition_of
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

    def stream(self) -> StreamStart:
        """What there is of the stream."""
        return StreamStart(self.bootstrap, self.ordered.name, self.progress_topic, remedy="read without live")


def find_raw_ends(place: ReadingPlace) -> dict[int, int]:
    """The end of each raw partition that is read; none if no job has named the raw topic, or only a newer one has."""
    stream = place.stream()
    try:
        progress = stream.progress(settled=False)
    except NewerFormat:  # then what is committed is read, and that needs no such ends
        return {}
    owner = None if progress is None else progress.any_owner
    if owner is None:
        return {}
    stream.same_topic(owner.raw_topic, owner.raw_topic_id)
    ends = stream.raw_ends(owner)
    return {at: ends[at][1] for at in raw_partitions_of(place.groups, owner)}


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
    stream = place.stream()
    before = stream.progress(settled=False)
    owner = None if before is None else before.any_owner
    if before is None or owner is None:
        return NotYet("no job has started yet")
    if any(one.rules != RULES for one in before.owners.values()):
        written = next(one.rules for one in before.owners.values() if one.rules != RULES)
        return OtherRules(
            f"The job writes {place.ordered.name} by version {written} of the rules, and this release knows version "
            f"{RULES}, so live reading could give other bytes: what is committed is read instead. Run the same release "
            "in both places."
        )
    if owner.ordered_topic_id != place.ordered.id:
        raise Refused(
            f"The topic {place.ordered.name} is not the one that the job writes: it was deleted and made again. Live "
            "reading begins when a job has started with the new one."
        )
    raw = stream.check_owner(owner)
    identity = StreamIdentity(
        place.ordered.id, raw.name, raw.id, raw.partitions, owner.order, owner.limits, owner.partitioner, owner.rules
    )
    wanted = raw_partitions_of(place.groups, owner)
    for partition in wanted:
        one = before.owners.get(partition)
        if one is None or before.horizon.get(partition, 0) < one.rules_from:
            return NotYet(f"the state of raw partition {partition} is not written under these rules yet")
    state = None if kept_file is None else kept_state.read_state(kept_file, identity, place.groups)
    if state is None or not _is_fresh(state, before.horizon, wanted):
        state = None
    published = None if state is None else _published(stream, before, wanted)
    if state is None or published is None or not _reaches(state, published, delivered):
        starts = {at: before.horizon.get(at, 0) for at in wanted}
        state = kernel_state(stream.states(owner, wanted, place.groups), starts, place.groups)
        published = _published(stream, before, wanted)
    ends = stream.raw_ends(owner)
    stream.check_reaches_back(owner, state.starts, dict(enumerate(ends)))
    _check_ends(identity.raw_topic, ends, published, delivered)
    return LiveStart(identity, state, published, {at: ends[at][1] for at in state.starts})


def _is_fresh(kept: KernelState, horizon: Mapping[int, int], wanted: list[int]) -> bool:
    """Whether beginning with it is no more work than beginning with the state topic."""
    return kept.starts.keys() == set(wanted) and all(kept.starts[at] >= horizon.get(at, 0) for at in wanted)


def _reaches(kept: KernelState, published: Mapping[int, int], delivered: Mapping[int, Released]) -> bool:
    """Whether all that was released before it is delivered, or can be read in the ordered topic."""
    return all(
        start <= max(published.get(at, 0), delivered.get(at, Released(0)).offset) for at, start in kept.starts.items()
    )


def _published(stream: StreamStart, before: Progress, wanted: list[int]) -> dict[int, int]:
    progress = stream.progress(settled=True)
    now = before if progress is None else progress
    if any(now.owners[at].rules != before.owners[at].rules for at in wanted):
        raise Refused(f"Another release took over {stream.ordered_topic} this moment; start again.")
    return {at: now.token.get(at, 0) for at in wanted}


def _check_ends(
    raw_topic: str, ends: list[tuple[int, int]], published: Mapping[int, int], delivered: Mapping[int, Released]
) -> None:
    """Refuse a raw topic that has lost its end."""
    for at, processed in published.items():
        end = ends[at][1]
        if end < processed:
            raise Refused(
                f"Partition {at} of the raw topic {raw_topic} ends at offset {end}, but the job has processed "
                f"everything below {processed}: its end is lost. Read without live."
            )
        if at in delivered and end < delivered[at].offset:
            raise Refused(
                f"The token has read the raw topic {raw_topic} up to offset {delivered[at].offset} of partition {at}, "
                f"which ends at {end}: the token belongs to another topic, or the end is lost. Start without it."
            )


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
