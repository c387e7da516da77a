"""Records in another partition than their key says: refused, however far the partitions are read by each batch."""

import random

import pytest

from precede.udfs.limits import Limits
from precede.udfs.partitioner import partition_of
from precede.udfs.records.wire import encode_message
from precede.udfs.shard import Shard
from tests.records import Row, by_kernel
from tests.shard.test_shard import call, ordered_by_group, records_of

PARTITIONS = 4


def stray_log(seed: int, *, count: int = 120) -> list[Row]:
    """Messages of a few groups in any partitions, half of them where they belong; some cannot be accepted."""
    chance = random.Random(seed)
    following = [0] * PARTITIONS
    seqs: dict[tuple[str, str], int] = {}
    rows: list[Row] = []
    for at in range(count):
        group, sender = f"group-{chance.randrange(12)}", chance.choice("ab")
        key: bytes | None = group.encode()
        partition = chance.choice([chance.randrange(PARTITIONS), partition_of(group.encode(), PARTITIONS)])
        seq = seqs[group, sender] = seqs.get((group, sender), 0) + 1
        value = encode_message(group, sender, 0, seq, after=[] if chance.random() < 0.7 else [("z", 0, 1), ("z", 0, 2)])
        if chance.random() < 0.1:
            key, value = chance.choice([(None, b'{"kind":"tick"}'), (b"\xff", value), (key, b"nonsense")])
        rows.append((key, value, partition, following[partition], 1_000 + at // 2))
        following[partition] += 1
    return rows


def in_batches(batches: list[list[Row]]) -> tuple[dict[bytes, list[bytes]], list[bytes]]:
    """Ordered records by group, and the dead letters."""
    function = Shard("s_b", Limits(), partitions=PARTITIONS)
    blob: bytes | None = None
    packed: list[tuple] = []  # type: ignore[type-arg]
    for batch in batches:
        now, blob, _ = call(function, batch, blob)
        packed += now
    return ordered_by_group(packed), sorted(letter for one in records_of(packed) for letter in one.dead)


def unevenly(rows: list[Row], chance: random.Random) -> list[list[Row]]:
    """Batches as a backlog gives them: each reads some partitions further, and others not at all."""
    left = {partition: [row for row in rows if row[2] == partition] for partition in range(PARTITIONS)}
    batches: list[list[Row]] = []
    while any(left.values()):
        batch: list[Row] = []
        for partition, waiting in left.items():
            taken = chance.choice([0, 0, 1, 5, len(waiting)])
            batch += waiting[:taken]
            left[partition] = waiting[taken:]
        if batch:
            batches.append(batch)
    return batches


def test_a_stray_record_that_comes_first_does_not_take_over_the_group() -> None:
    home = partition_of(b"g", PARTITIONS)
    stray: Row = (b"g", encode_message("g", "mallory", 0, 1, after=[]), (home + 1) % PARTITIONS, 0, 1_000)
    good: Row = (b"g", encode_message("g", "ann", 0, 1, after=[]), home, 0, 2_000)
    for batches in ([[stray, good]], [[good, stray]], [[stray], [good]], [[good], [stray]]):
        ordered, dead = in_batches(batches)
        assert [b'"ann"' in value for value in ordered[b"g"]] == [True]
        assert len(dead) == 1
        assert b'"code":"wrong_partition"' in dead[0]
        assert b"The group belongs in partition %d of %d" % (home, PARTITIONS) in dead[0]


@pytest.mark.parametrize("seed", range(30))
def test_an_uneven_backlog_gives_what_one_batch_and_the_kernel_alone_give(seed: int) -> None:
    rows = stray_log(seed)
    chance = random.Random(seed)
    whole = by_kernel(rows, partitions=PARTITIONS)
    assert sum(b'"code":"wrong_partition"' in letter for letter in whole[1]) > 20
    assert whole[0]
    assert in_batches([rows]) == whole
    for _ in range(5):
        assert in_batches(unevenly(rows, chance)) == whole
