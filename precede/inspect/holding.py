"""What is held now, which groups there are, and which hold most, wait longest or have most state.

The state topic says of each group how many messages it holds, since when, and how many gaps there are. So only groups
that hold something, or that records behind the state have reached, are decoded. A list of all groups needs only the
beginning of each state.
"""

from collections.abc import Iterator
from heapq import nlargest
from typing import Any, Literal

import msgspec

from precede.inspect.knowledge import StreamKnowledge
from precede.udfs.engine.held import Held
from precede.udfs.engine.inspection import OpenGap
from precede.udfs.engine.interfaces import is_closed
from precede.udfs.engine.snapshot import outline
from precede.udfs.orders import ORDERS
from precede.udfs.peers.catalogue import Listing
from precede.udfs.peers.views import IN, OUT

TopBy = Literal["held", "wait", "bytes"]


class Holding(msgspec.Struct, kw_only=True):
    """What one group holds, as `precede groups --top` shows it."""

    group: str
    partition: int
    held: int
    oldest_ms: int | None
    """When the first of the held messages arrived; None where none is held."""
    gaps: int
    """How many things they wait for that are not there."""
    bytes: int
    """The size of the group's state."""


def held(knowledge: StreamKnowledge) -> Iterator[Held]:
    """The held messages, group by group in order of name."""
    for name in _holding(knowledge):
        yield from knowledge.holdback.held(name)


def gaps(knowledge: StreamKnowledge) -> Iterator[OpenGap]:
    """What is missing, group by group in order of name."""
    for name in _holding(knowledge):
        yield from knowledge.holdback.gaps(name)


def _holding(knowledge: StreamKnowledge) -> list[str]:
    """The groups that may hold something, in order of their keys."""
    keys = {key for key, stored in knowledge.stored.items() if stored.held} | knowledge.touched
    return [key.decode() for key in sorted(keys)]


def top(knowledge: StreamKnowledge, by: TopBy, count: int) -> list[Holding]:
    """The groups that hold most messages, wait longest or have most state; those that hold nothing only by size."""
    found = (holding for holding in _holdings(knowledge) if by == "bytes" or holding.held)
    if by == "wait":
        return nlargest(count, found, key=lambda holding: -(holding.oldest_ms or 0))
    return nlargest(count, found, key=lambda holding: holding.held if by == "held" else holding.bytes)


def _holdings(knowledge: StreamKnowledge) -> Iterator[Holding]:
    touched = knowledge.touched
    for partition, groups in knowledge.by_partition.items():
        for key, stored in groups.items():
            if key not in touched:
                waiting = stored.oldest_ms, stored.gaps, stored.held
                yield _holding_of(key, partition, waiting, len(stored.blob))
    for key in touched:
        blob = knowledge.holdback.state_of(key)
        if blob is not None:
            partition = knowledge.holdback.changed[key][0]
            yield _holding_of(key, partition, knowledge.holdback.waiting_of(key) or (0, 0, 0), len(blob))


def listings(knowledge: StreamKnowledge) -> list[Listing]:
    """All groups in order of their keys, each with its order, options and members."""
    blobs = {key: stored.blob for key, stored in knowledge.stored.items()}
    for key in knowledge.touched:
        blob = knowledge.holdback.state_of(key)
        if blob is not None:
            blobs[key] = blob
    return [listing(key, blobs[key]) for key in sorted(blobs)]


def listing(key: bytes, blob: bytes) -> Listing:
    found = outline(key, blob)
    options: dict[str, Any] = {} if found.options is None else msgspec.to_builtins(found.options)
    listing = Listing(key.decode(), found.order, created=found.options is not None, options=options)
    listing.closed = listing.created and is_closed(options.get("closed"), ORDERS.get(found.order))
    listing.position = found.position
    for name, (epoch, is_in) in found.members.items():
        if not listing.only_signs(name):
            listing.view[name] = (epoch, IN if is_in else OUT)
    return listing


def _holding_of(key: bytes, partition: int, waiting: tuple[int, int, int], size: int) -> Holding:
    oldest_ms, gaps, held = waiting
    return Holding(
        group=key.decode(),
        partition=partition,
        held=held,
        oldest_ms=oldest_ms if held else None,
        gaps=gaps,
        bytes=size,
    )
