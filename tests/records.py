"""Raw records for the tests of the stream: messages out of order, and the kernel's own output for them."""

import random
from collections.abc import Iterable

from precede.udfs.holdback import Holdback
from precede.udfs.limits import Limits
from precede.udfs.partitioner import partition_of
from precede.udfs.records.wire import encode_message

Row = tuple[bytes | None, bytes | None, int, int, int]
"""key, value, partition, offset, timestamp_ms"""


def conversation(
    count: int, *, groups: int = 5, seed: int = 1, late: float = 0.3, twice: float = 0.05
) -> list[tuple[bytes, bytes]]:
    """(key, value) of messages of several groups, each answering the one before; some arrive late, some twice.

    Each also has a linear time, for groups whose order needs one.
    """
    chance = random.Random(seed)
    seqs: dict[tuple[str, str], int] = {}
    last: dict[str, tuple[str, int, int]] = {}
    sent: list[tuple[float, bytes, bytes]] = []
    for number in range(count):
        group, sender = f"group-{chance.randrange(groups)}", chance.choice("abc")
        seq = seqs[group, sender] = seqs.get((group, sender), 0) + 1
        after = [last[group]] if group in last else []
        last[group] = (sender, 0, seq)
        data = {"number": number, "text": "grüß dich"}
        value = encode_message(group, sender, 0, seq, after=after, time=number + 1, data=data)
        for _ in range(2 if chance.random() < twice else 1):
            arrival = number + (chance.randrange(1, 15) if chance.random() < late else 0)
            sent.append((arrival, group.encode(), value))
    return [(key, value) for _, key, value in sorted(sent, key=lambda one: one[0])]


def log(pairs: list[tuple[bytes, bytes]], *, partitions: int = 2, start_ms: int = 1_700_000_000_000) -> list[Row]:
    """The pairs as rows of a log with partitions; each group stays in one partition."""
    following = [0] * partitions
    rows: list[Row] = []
    for at, (key, value) in enumerate(pairs):
        partition = partition_of(key, partitions)
        rows.append((key, value, partition, following[partition], start_ms + at))
        following[partition] += 1
    return rows


def by_kernel(
    rows: list[Row], order: str = "s_b", partitions: int | None = None
) -> tuple[dict[bytes, list[bytes]], list[bytes]]:
    """The kernel's output for a log: ordered records by group, and the dead letters, sorted."""
    holdback = Holdback(order=order, limits=Limits(), partitions=partitions)
    for key, value, partition, offset, timestamp_ms in sorted(rows, key=lambda row: row[2:4]):
        holdback.receive(value, key, partition, offset, timestamp_ms)
    return by_group(zip(holdback.ordered_keys, holdback.ordered, strict=True)), sorted(holdback.dead)


def by_group(pairs: Iterable[tuple[bytes, bytes]]) -> dict[bytes, list[bytes]]:
    """Values by key, in order of arrival."""
    groups: dict[bytes, list[bytes]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups
