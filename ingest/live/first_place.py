"""Where a live reader begins to read what is committed."""

import warnings
from collections.abc import Mapping

import msgspec

from precede.ingest.follower_token import FollowerToken, Released
from precede.ingest.live.live_start import Place, find_raw_ends
from precede.udfs.errors import Refused
from precede.udfs.partitioner import MURMUR2, partition_of


def complete_token(
    token: FollowerToken, place: Place, ends: Mapping[int, tuple[int, int]], *, at_end: bool, passes_over_cut: bool
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
        if offsets[at] < first and not token.counts_positions:  # elsewhere the positions show what is missing
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


def _partitions(place: Place) -> list[int]:
    """The partitions of the ordered topic in which the groups lie."""
    if place.groups is None:
        return list(range(place.ordered.partitions))
    return sorted({partition_of(key, place.ordered.partitions, MURMUR2) for key in place.groups})
