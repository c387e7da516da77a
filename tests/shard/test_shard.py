"""The function that Spark calls, with a real GroupState and no JVM."""

import random
from collections.abc import Iterator

import msgspec
import pandas as pd
import pytest
from pyspark import cloudpickle
from pyspark.sql.streaming.state import GroupState
from pyspark.sql.types import BinaryType, StructField, StructType

from precede.udfs import shard, steps
from precede.udfs.errors import Refused
from precede.udfs.limits import Limits
from precede.udfs.records.published import JobRecord
from precede.udfs.records.wire import encode_message
from precede.udfs.shard import HOME_SHARD, Shard, ShardState, decode_state, encode_state
from precede.udfs.steps import Records, unpack
from tests.records import Row, by_group, by_kernel, conversation, log

SCHEMA = StructType([StructField("blob", BinaryType())])
COLUMNS = ["key", "value", "partition", "offset", "timestamp_ms"]


def state_of(blob: bytes | None) -> GroupState:
    """A state as a Python worker gets it for one micro-batch."""
    return GroupState(
        optionalValue=None if blob is None else (blob,),  # type: ignore[arg-type]
        batchProcessingTimeMs=0,
        eventTimeWatermarkMs=-1,
        timeoutConf="NoTimeout",
        hasTimedOut=False,
        watermarkPresent=False,
        defined=blob is not None,
        updated=False,
        removed=False,
        timeoutTimestamp=-1,
        keyAsUnsafe=b"",
        valueSchema=SCHEMA,
    )


def chunks(rows: list[Row], size: int) -> Iterator[pd.DataFrame]:
    """The rows as Spark passes them: several frames of one key."""
    for at in range(0, len(rows), size):
        yield pd.DataFrame(rows[at : at + size], columns=COLUMNS)


def call(
    function: Shard, rows: list[Row], blob: bytes | None, *, size: int = 100, shard: int = HOME_SHARD
) -> tuple[list[tuple], bytes | None, bool]:  # type: ignore[type-arg]
    """Run one micro-batch: its packed rows, the state after it, and whether that was written."""
    state = state_of(blob)
    frames = list(function((shard,), chunks(rows, size), state))
    packed = [row for frame in frames for row in frame.itertuples(index=False, name=None)]
    return packed, state.get[0] if state.exists else None, state._updated


def records_of(packed: list[tuple]) -> list[Records]:  # type: ignore[type-arg]
    return [unpack(row[5]) for row in packed]


def ordered_by_group(packed: list[tuple]) -> dict[bytes, list[bytes]]:  # type: ignore[type-arg]
    return by_group(pair for one in records_of(packed) for pair in zip(one.ordered_keys, one.ordered, strict=True))


@pytest.fixture
def function() -> Shard:
    return Shard("s_b", Limits())


def test_unsorted_rows_in_several_chunks_give_what_the_kernel_alone_gives(function: Shard) -> None:
    rows = log(conversation(600))
    shuffled = random.Random(4).sample(rows, len(rows))
    packed, _, _ = call(function, shuffled, None, size=37)
    assert ordered_by_group(packed) == by_kernel(rows)[0]


@pytest.mark.parametrize("batches", [2, 50])
def test_many_batches_give_the_bytes_and_the_state_of_one(function: Shard, batches: int) -> None:
    rows = log(conversation(500), partitions=1)
    whole, state_of_whole, _ = call(function, rows, None)
    blob: bytes | None = None
    cut: list[tuple] = []  # type: ignore[type-arg]
    size = len(rows) // batches + 1
    for at in range(0, len(rows), size):
        packed, blob, _ = call(function, rows[at : at + size], blob)
        cut += packed
    assert ordered_by_group(cut) == ordered_by_group(whole)
    assert blob is not None
    assert state_of_whole is not None
    assert decode_state(blob) == decode_state(state_of_whole)


def test_every_released_record_names_the_offset_that_released_it(function: Shard) -> None:
    rows = log(conversation(300), partitions=1)
    packed, _, _ = call(function, rows, None)
    released = [
        (msgspec.json.decode(value)["released_offset"], offset)
        for one in records_of(packed)
        for value, offset in zip(one.ordered, one.ordered_offsets, strict=True)
    ]
    assert len(released) > 250
    assert all(said == offset for said, offset in released)


def test_a_packed_row_names_its_partition_and_the_last_offset_behind_it(function: Shard) -> None:
    rows = log(conversation(300), partitions=2)
    packed, _, _ = call(function, rows, None)
    last = {partition: max(row[3] for row in rows if row[2] == partition) for partition in (0, 1)}
    assert {(row[2], row[3]) for row in packed} == set(last.items())
    assert {row[0] for row in packed} == {HOME_SHARD}
    assert [row[1] for row in packed] == list(range(len(packed)))


def test_everything_read_is_counted_once(function: Shard) -> None:
    rows = log([*conversation(300, twice=0.2), (b"group-0", b"not json")])
    packed, blob, _ = call(function, rows, None)
    counted = records_of(packed)
    delivered, dead = sum(len(one.ordered) for one in counted), sum(len(one.dead) for one in counted)
    assert sum(one.read for one in counted) == len(rows)
    assert dead == 1
    assert blob is not None
    assert delivered + dead + sum(one.duplicates for one in counted) + decode_state(blob).held == len(rows)


def test_the_number_of_held_messages_is_kept_with_the_state(function: Shard) -> None:
    reply = encode_message("g", "b", 0, 1, after=[("a", 0, 1)])
    packed, blob, _ = call(function, [(b"g", reply, 0, 0, 5)], None)
    assert records_of(packed)[-1].held == 1
    packed, blob, _ = call(function, [(b"g", encode_message("g", "a", 0, 1, after=[]), 0, 1, 6)], blob)
    assert records_of(packed)[-1].held == 0
    assert len(records_of(packed)[0].ordered) == 2


def test_the_last_row_of_a_batch_says_since_when_a_message_waits_and_how_many_gaps_there_are(function: Shard) -> None:
    waits: list[Row] = [
        (b"g", encode_message("g", "b", 0, 1, after=[("a", 0, 1)]), 0, 0, 5),
        (b"g", encode_message("g", "c", 0, 1, after=[("a", 0, 1)]), 0, 1, 6),
        (b"g", encode_message("g", "d", 0, 1, after=[("c", 0, 1)]), 0, 2, 7),
        (b"h", encode_message("h", "b", 0, 1, after=[("a", 0, 9)]), 0, 3, 8),
    ]
    packed, blob, _ = call(function, waits, None)
    assert [one.waiting for one in records_of(packed)] == [(5, 2)]
    packed, blob, _ = call(function, [(b"g", encode_message("g", "a", 0, 1, after=[]), 0, 4, 9)], blob)
    assert [one.waiting for one in records_of(packed)] == [(8, 1)], "groups without new records still count"
    packed, blob, _ = call(function, [(b"h", encode_message("h", "a", 0, 9, after=[]), 0, 5, 10)], blob)
    assert [one.waiting for one in records_of(packed)] == [(0, 0)]


def test_a_state_that_did_not_change_is_not_written_again(function: Shard) -> None:
    first = encode_message("g", "a", 0, 1, after=[])
    _, blob, written = call(function, [(b"g", first, 0, 0, 5)], None)
    assert written
    _, again, written = call(function, [(b"g", b"junk", 0, 1, 6)], blob)
    assert not written
    assert again == blob


def test_bad_records_become_dead_letters_and_leave_the_good_ones_alone(function: Shard) -> None:
    good = conversation(200)
    chance = random.Random(9)
    bad: list[tuple[bytes | None, bytes | None]] = [
        (None, b"{}"), (b"group-1", None), (b"group-1", b"\xff\xfe"), (b"group-1", b"[1]"), (b"", b""),
        (b"group-9", good[0][1]), (b"group-1", b"x" * 600_000),
    ]  # fmt: skip
    mixed: list[tuple[bytes | None, bytes | None]] = list(good)
    for pair in bad:
        mixed.insert(chance.randrange(len(mixed)), pair)
    rows: list[Row] = [(key, value, 0, at, 1000 + at) for at, (key, value) in enumerate(mixed)]
    packed, _, _ = call(function, rows, None)
    clean = log(good, partitions=1)

    def ids(groups: dict[bytes, list[bytes]]) -> dict[bytes, list[tuple[str, int, int]]]:
        read = {key: [msgspec.json.decode(value) for value in values] for key, values in groups.items()}
        return {key: [(one["sender"], one["seq"], one["position"]) for one in values] for key, values in read.items()}

    assert ids(ordered_by_group(packed)) == ids(by_kernel(clean)[0])
    dead = [letter for one in records_of(packed) for letter in one.dead]
    assert len(dead) == len(bad)
    codes = [code for one in records_of(packed) for code in one.dead_codes]
    assert codes == [msgspec.json.decode(letter)["code"] for letter in dead]


def test_a_record_without_a_key_is_refused_by_the_home_shard_alone(function: Shard) -> None:
    rows: list[Row] = [(None, b"{}", 0, 0, 1000), (None, None, 0, 1, 1001), (None, b'{"kind":"tick"}', 0, 2, 1002)]
    dead = {
        shard: [letter for one in records_of(call(function, rows, None, shard=shard)[0]) for letter in one.dead]
        for shard in (HOME_SHARD, HOME_SHARD + 1)
    }
    assert len(dead[HOME_SHARD]) == 2
    assert dead[HOME_SHARD + 1] == []


def test_a_flood_from_one_record_leaves_in_rows_of_bounded_size(
    function: Shard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "BYTES_MAX", 10_000)
    monkeypatch.setattr(shard, "FRAME_BYTES_MAX", 30_000)
    text = "x" * 900
    held = [encode_message("g", "a", 0, seq, after=[("a", 0, seq - 1)], data=text) for seq in range(2, 101)]
    first = encode_message("g", "a", 0, 1, after=[], data=text)
    rows: list[Row] = [(b"g", value, 0, at, 7) for at, value in enumerate([*held, first])]
    state = state_of(None)
    frames = list(function((3,), chunks(rows, 1000), state))
    packed = [row for frame in frames for row in frame.itertuples(index=False, name=None)]
    assert len(frames) > 2
    assert max(row[4] for row in packed) < 15_000
    positions = [msgspec.json.decode(value)["position"] for one in records_of(packed) for value in one.ordered]
    assert positions == list(range(1, 101))
    assert [row[1] for row in packed] == list(range(len(packed)))


def test_the_function_travels_by_cloudpickle(function: Shard) -> None:
    rows = log(conversation(50))
    there = cloudpickle.loads(cloudpickle.dumps(function))  # type: ignore[no-untyped-call]
    assert call(there, rows, None) == call(function, rows, None)


@pytest.mark.parametrize("step", [-1, 1])
def test_a_state_of_another_precede_is_refused_in_a_sentence(function: Shard, step: int) -> None:
    version = shard.STATE_VERSION + step
    other = bytes((version,)) + encode_state(ShardState())[1:]
    with pytest.raises(Refused, match=f"state has version {version}, and this precede reads version {version - step}"):
        call(function, log(conversation(5)), other)


def test_a_batch_without_rows_does_nothing(function: Shard) -> None:
    assert call(function, [], None) == ([], None, False)


def test_what_the_job_itself_says_names_the_tick_behind_it_however_the_log_is_cut(function: Shard) -> None:
    waits = [encode_message(f"g{number}", "bob", 0, 1, after=[("ann", 0, 1)]) for number in range(20)]
    rows: list[Row] = [(f"g{at}".encode(), value, 0, at, 1_000) for at, value in enumerate(waits)]
    rows += [(None, b'{"kind":"tick"}', 0, 20 + second, 1_000 * (second + 2)) for second in range(8)]
    whole, state, _ = call(function, rows, None)
    own = [one for records in records_of(whole) for one in records.own]
    assert {one.offset for one in own} == {21, 23, 27}, "requested after 2 s, 2 s later, 4 s later"
    cut: list[JobRecord] = []
    blob: bytes | None = None
    for at in range(0, len(rows), 3):
        packed, blob, _ = call(function, rows[at : at + 3], blob)
        cut += [one for records in records_of(packed) for one in records.own]
    assert sorted(map(msgspec.json.encode, cut)) == sorted(map(msgspec.json.encode, own))
    assert blob == state


def test_a_tick_where_nothing_is_due_writes_no_state(function: Shard) -> None:
    rows = log(conversation(300), partitions=1)
    _, blob, _ = call(function, rows, None)
    _, after, written = call(function, [(None, b'{"kind":"tick"}', 0, 10_000, rows[-1][4] + 1)], blob)
    assert not written
    assert after == blob
