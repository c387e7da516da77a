"""Where the real clients put keys: partitions.jsonl, one record a line, made by tests/system/test_partitioners.py."""

from pathlib import Path

import msgspec

FILE = Path(__file__).with_name("partitions.jsonl")


class Place(msgspec.Struct, frozen=True):
    """In a topic of so many partitions, the one that Kafka's Java client and the one that librdkafka took by itself."""

    key: str
    partitions: int
    murmur2: int
    crc32: int


def read_places() -> list[Place]:
    """All that is stored."""
    return [msgspec.json.decode(line, type=Place) for line in FILE.read_bytes().splitlines()]


def write_places(places: list[Place]) -> None:
    """Store them, one a line."""
    FILE.write_bytes(b"".join(msgspec.json.encode(place) + b"\n" for place in places))
