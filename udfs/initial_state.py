"""The state that a shard begins with where the state of a stream is restored into a fresh checkpoint.

The state of every group goes to the shard of its key, whatever the number of shards was before. A shard's initial state
is kept as a file of its own: a checksum, then the state as Spark keeps it.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import NamedTuple
from zlib import crc32

from precede.udfs.errors import Refused
from precede.udfs.shard import ShardState, decode_state, encode_state
from precede.udfs.state_log import DumpedStateLog

SEED = 42
"""Spark's own seed of `xxhash64`."""
CHECKSUM_BYTES = 4


class RestoredGroup(NamedTuple):
    """The state of one group, as the state topic has it."""

    key: bytes
    blob: bytes
    covered: int
    """The raw offset below which the group passes over what comes; 0 where nothing comes that is in its state."""
    pieces: int
    held: int
    oldest_ms: int
    gaps: int


def shard_number(key: bytes, shards: int) -> int:
    """The shard of a key, as Spark computes it in `order_query.shard_of`."""
    from xxhash import xxh64_intdigest

    unsigned = xxh64_intdigest(key, SEED)
    signed = unsigned - (1 << 64) if unsigned >> 63 else unsigned
    return signed % shards


def initial_states(groups: Iterable[RestoredGroup], shards: int, topic: str) -> Iterator[tuple[int, ShardState]]:
    """The state of each shard that has groups; `topic` is the id of the state topic, which has all of it."""
    parts: defaultdict[int, list[RestoredGroup]] = defaultdict(list)
    for group in groups:
        parts[shard_number(group.key, shards)].append(group)
    for shard in sorted(parts):
        yield shard, _state(parts.pop(shard), topic)


def _state(groups: list[RestoredGroup], topic: str) -> ShardState:
    return ShardState(
        held=sum(group.held for group in groups),
        groups={group.key: group.blob for group in groups},
        waiting={group.key: (group.oldest_ms, group.gaps, group.held) for group in groups if group.held},
        log=DumpedStateLog({}, {group.key: group.pieces for group in groups if group.pieces > 1}, topic),
        covered={group.key: group.covered for group in groups if group.covered},
    )


def encode_file(state: ShardState) -> bytes:
    """The content of a shard's file."""
    blob = encode_state(state)
    return crc32(blob).to_bytes(CHECKSUM_BYTES, "big") + blob


def decode_file(content: bytes, name: str) -> ShardState:
    """The state in a shard's file; `name` is what the refusal of a damaged one calls it."""
    blob = content[CHECKSUM_BYTES:]
    if crc32(blob) != int.from_bytes(content[:CHECKSUM_BYTES], "big"):
        raise Refused(
            f"The restored state {name} is damaged: take a new checkpoint folder, and the state is restored again."
        )
    return decode_state(blob)
