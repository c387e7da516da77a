"""The partition of a group, as a function of its key: each reader of one partition can compute it by itself.

Two functions are in use among Kafka's clients. `murmur2` is the one of Kafka's Java client and of kafka-python, and
`murmur2_random` in librdkafka. `crc32` is librdkafka's own default, `consistent_random`. Both clients choose at random
where there is no key, but a group has at least one byte.
"""

from collections.abc import Callable
from struct import iter_unpack
from typing import Final
from zlib import crc32

MURMUR2: Final = "murmur2"
CRC32: Final = "crc32"
DEFAULT_PARTITIONER: Final = MURMUR2

SEED = 0x9747B28C
MULTIPLIER = 0x5BD1E995
MASK = 0xFFFFFFFF
POSITIVE = 0x7FFFFFFF


def murmur2(key: bytes) -> int:
    """The hash of Kafka's Java client: 32-bit MurmurHash2 with the client's seed, without its sign bit."""
    length = len(key)
    hash_ = SEED ^ length
    whole = length & ~3
    for (block,) in iter_unpack("<I", key[:whole]):
        block = block * MULTIPLIER & MASK
        block = (block ^ block >> 24) * MULTIPLIER & MASK
        hash_ = hash_ * MULTIPLIER & MASK ^ block
    if whole != length:
        hash_ = (hash_ ^ int.from_bytes(key[whole:], "little")) * MULTIPLIER & MASK
    hash_ = (hash_ ^ hash_ >> 13) * MULTIPLIER & MASK
    return (hash_ ^ hash_ >> 15) & POSITIVE


PARTITIONERS: Final[dict[str, Callable[[bytes], int]]] = {MURMUR2: murmur2, CRC32: crc32}

LIBRDKAFKA: Final = {MURMUR2: "murmur2_random", CRC32: "consistent_random"}
"""What a librdkafka producer calls each of them, in its setting `partitioner`."""

_AT_THE_PRODUCER = {
    MURMUR2: "set partitioner=murmur2_random in librdkafka; Kafka's Java client and kafka-python need no setting",
    CRC32: "librdkafka does so by default (partitioner=consistent_random); another client must name the partition",
}


def check_partitioner(name: str) -> str:
    """The name itself; raises ValueError where there is no such partitioner."""
    if name not in PARTITIONERS:
        raise ValueError(f"there is no partitioner {name!r}: choose one of {', '.join(PARTITIONERS)}")
    return name


def partition_of(key: bytes, partitions: int, partitioner: str = DEFAULT_PARTITIONER) -> int:
    """Where the records of the group with this key belong, in a topic with this number of partitions."""
    return PARTITIONERS[partitioner](key) % partitions


def where_it_belongs(partition: int, partitions: int, partitioner: str) -> str:
    """For a record found elsewhere: the partition of its group, and what to set at the producer."""
    return (
        f"The group belongs in partition {partition} of {partitions}, by {partitioner} of the key: "
        f"{_AT_THE_PRODUCER[partitioner]}."
    )
