"""Groups with records in several partitions: each lives in the partition of its first accepted record."""

import random

import pytest

from precede.udfs.holdback import Holdback
from precede.udfs.limits import Limits
from precede.udfs.records.wire import encode_message
from precede.udfs.shard import Shard
from tests.records import Row, by_group
from tests.shard.test_shard import call, ordered_by_group, records_of


def stray_log(seed: int, *, count: int = 120, partitions: int = 4) -> list[Row]:
    """Messages of a few groups in any partitions, in log order; some cannot be accepted."""
    chance = random.Random(seed)
    following = [0] * partitions
    seqs: dict[tuple[str, str], int] = {}
    rows: list[Row] = []
    for at in range(count):
        group, sender, partition = f"group-{chance.randrange(12)}", chance.choice("ab"), chance.randrange(partitions)
        seq = seqs[group, sender] = seqs.get((group, sender), 0) + 1
        value = encode_message(group, sender, 0, seq, after=[] if chance.random() < 0.7 else [("z", 0, 1), ("z", 0, 2)])
        key: bytes | None = group.encode()
        if chance.random() < 0.1:
            key, value = chance.choice([(None, b'{"kind":"tick"}'), (b"\xff", value), (key, b"nonsense")])
        rows.append((key, value, partition, following[partition], 1_000 + at // 2))
        following[partition] += 1
    return sorted(rows, key=lambda row: (row[4], row[2], row[3]))


def in_batches(rows: list[Row], cuts: list[int]) -> tuple[dict[bytes, list[bytes]], list[bytes]]:
    """Ordered records by group, and the dead letters, of the rows cut into batches at these places."""
    function = Shard("s_b", Limits())
    blob: bytes | None = None
    packed: list[tuple] = []  # type: ignore[type-arg]
    for first, last in zip([0, *cuts], [*cuts, len(rows)], strict=True):
        if first < last:
            now, blob, _ = call(function, rows[first:last], blob)
            packed += now
    return ordered_by_group(packed), sorted(letter for one in records_of(packed) for letter in one.dead)


def test_a_stray_record_in_a_lower_partition_does_not_take_over_a_group_that_began_before_it() -> None:
    rows: list[Row] = [
        (b"g", encode_message("g", "ann", 0, 1, after=[]), 3, 0, 1_000),
        (b"g", encode_message("g", "mallory", 0, 1, after=[]), 0, 0, 2_000),
        (b"g", encode_message("g", "ann", 0, 2, after=[]), 3, 1, 3_000),
    ]
    ordered, dead = in_batches(rows, [])
    assert [b'"ann"' in value for value in ordered[b"g"]] == [True, True]
    assert len(dead) == 1
    assert b'"code":"wrong_partition"' in dead[0]
    assert b"The group lives in partition 3." in dead[0]
    assert in_batches(rows, [1]) == in_batches(rows, [2]) == (ordered, dead)


def test_what_is_refused_settles_nothing() -> None:
    rows: list[Row] = [
        (b"g", b"nonsense", 0, 0, 1_000),
        (b"g", encode_message("g", "ann", 0, 1, after=[("a", 0, 1), ("a", 0, 2)]), 0, 1, 1_000),
        (b"g", encode_message("g", "ann", 0, 1, after=[]), 3, 0, 2_000),
        (b"g", encode_message("g", "bob", 0, 1, after=[]), 0, 2, 3_000),
    ]
    ordered, dead = in_batches(rows, [])
    assert [b'"ann"' in value for value in ordered[b"g"]] == [True]
    assert sum(b'"code":"wrong_partition"' in letter for letter in dead) == 1


@pytest.mark.parametrize("seed", range(30))
def test_batches_that_end_at_any_moment_of_the_log_give_what_one_batch_gives(seed: int) -> None:
    rows = stray_log(seed)
    chance = random.Random(seed)
    ends = [at for at in range(1, len(rows)) if rows[at][4] != rows[at - 1][4]]
    whole = in_batches(rows, [])
    assert sum(b'"code":"wrong_partition"' in letter for letter in whole[1]) > 20
    for size in (1, 5, len(ends)):
        assert in_batches(rows, sorted(chance.sample(ends, size))) == whole


def test_a_batch_with_strays_gives_what_the_kernel_gives_record_by_record() -> None:
    for seed in range(10):
        rows = stray_log(seed)
        kernel = Holdback(order="s_b", limits=Limits())
        for key, value, partition, offset, timestamp_ms in rows:
            kernel.receive(value, key, partition, offset, timestamp_ms)
        by_record = by_group(zip(kernel.ordered_keys, kernel.ordered, strict=True)), sorted(kernel.dead)
        assert in_batches(rows, []) == by_record
