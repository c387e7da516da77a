"""Records of the log go through the kernel, step by step, and what comes out is collected for publishing.

What comes out of one raw partition is kept together, with the raw offset that released each record, so that the
publisher can leave out what it has published already. Pure: used by every engine, whatever brings the records.
"""

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from operator import itemgetter

import msgspec

from precede.udfs.holdback import Holdback
from precede.udfs.records.published import JobRecord
from precede.udfs.state_log import Waiting

ROWS_MAX = 8192  # records that are kept together
BYTES_MAX = 1024 * 1024  # bytes of records that are kept together; the last record may reach over it

Row = tuple[int, int, bytes | None, bytes | None, int]
"""Partition, offset, key, value, and when the log took it."""

BY_PARTITION = itemgetter(0)

ShardWaiting = tuple[int, int]
"""When the oldest held message of a shard arrived, in milliseconds of the log, and how many gaps there are."""

NOTHING_WAITS: ShardWaiting = (0, 0)


StateRecord = tuple[int, bytes, bytes | None]
"""A record of the state topic: partition, key, value."""


class Records(msgspec.Struct, array_like=True, gc=False):
    """What came out of some raw records of one partition: parallel lists, and what a person wants to know of them."""

    ordered: list[bytes]
    ordered_keys: list[bytes]
    ordered_offsets: list[int]
    dead: list[bytes]
    dead_keys: list[bytes | None]
    dead_offsets: list[int]
    read: int  # raw records behind this row
    duplicates: int
    held: int  # messages the whole shard holds after this row
    waiting: ShardWaiting | None = None  # of the whole shard after the batch; in a shard's last row alone
    state_bytes: int = 0  # what Spark keeps of the shard after the batch; in a shard's last row alone
    own: list[JobRecord] = []  # what the job itself has to say, each with the raw offset that made it
    dead_codes: list[str] = []  # why, for each dead letter
    state: list[StateRecord] = []  # for the state topic: partition, key, value
    uncovered: dict[int, int] | None = None  # see StateLog; of the whole shard, in its last row alone


unpack = msgspec.msgpack.Decoder(Records).decode


def waiting_of_all(waiting: Mapping[bytes, Waiting]) -> ShardWaiting:
    """What the groups of a shard wait for, taken together."""
    if not waiting:
        return NOTHING_WAITS
    oldest, gaps, _ = zip(*waiting.values(), strict=True)
    return min(oldest), sum(gaps)


def steps(holdback: Holdback, rows: list[Row], held: int) -> Iterator[tuple[int, int, Records, bool]]:
    """Step through the rows, which are sorted; give what came out in pieces of one raw partition and bounded size."""
    receive = holdback.receive
    ordered, dead = holdback.ordered, holdback.dead
    ordered_offsets: list[int] = []
    dead_offsets: list[int] = []
    ordered_count = dead_count = first = 0
    duplicates = holdback.duplicates
    last = len(rows) - 1
    end = -1  # the last row of this partition
    for index, (partition, offset, key, value, timestamp_ms) in enumerate(rows):
        if index > end:
            end = bisect_right(rows, partition, index, key=BY_PARTITION) - 1
        receive(value, key, partition, offset, timestamp_ms)
        count = len(ordered)
        if count != ordered_count:
            if count - ordered_count == 1:
                ordered_offsets.append(offset)
            else:
                ordered_offsets += [offset] * (count - ordered_count)
            ordered_count = count
        count = len(dead)
        if count != dead_count:
            dead_offsets += [offset] * (count - dead_count)
            dead_count = count
        if index == end or ordered_count + dead_count >= ROWS_MAX:
            read = _read(holdback, rows[first : index + 1])
            counts = (read, holdback.duplicates - duplicates, held + holdback.held_growth)
            for records, is_last in _pieces(holdback, ordered_offsets, dead_offsets, counts):
                yield partition, offset, records, is_last and index == last
            duplicates = holdback.duplicates
            holdback.clear()
            ordered_offsets, dead_offsets = [], []
            ordered_count = dead_count = 0
            first = index + 1


def whole_steps(holdback: Holdback, rows: list[Row], held: int) -> Iterator[tuple[int, int, Records, bool]]:
    """Like `steps`, where nothing of what comes out is published yet: which record released what is not noted.

    Noting it takes a twentieth of the processor time.
    """
    receive = holdback.receive
    first, last = 0, len(rows)
    while first < last:
        end = bisect_right(rows, rows[first][0], first, min(first + ROWS_MAX, last), key=BY_PARTITION)
        duplicates = holdback.duplicates
        some = rows[first:end]
        for partition, offset, key, value, timestamp_ms in some:
            receive(value, key, partition, offset, timestamp_ms)
        counts = (_read(holdback, some), holdback.duplicates - duplicates, held + holdback.held_growth)
        for records, is_last in _pieces(holdback, [], [], counts):
            yield partition, offset, records, is_last and end == last
        holdback.clear()
        first = end


def _read(holdback: Holdback, rows: list[Row]) -> int:
    """How many records were read; what has no key is seen by every shard, and counts where it may be refused."""
    return len(rows) if holdback.home else len(rows) - [row[2] for row in rows].count(None)


def _pieces(
    holdback: Holdback, ordered_offsets: list[int], dead_offsets: list[int], counts: tuple[int, int, int]
) -> Iterator[tuple[Records, bool]]:
    """What is in the holdback's lists now, in as many rows as its bytes ask for; the last one carries the counts."""
    ordered, ordered_keys, dead, dead_keys = holdback.ordered, holdback.ordered_keys, holdback.dead, holdback.dead_keys
    own, codes = holdback.own, holdback.dead_codes
    if sum(map(len, ordered)) + sum(map(len, dead)) + sum(len(one.value) for one in own) <= BYTES_MAX:
        lists = (ordered, ordered_keys, ordered_offsets, dead, dead_keys, dead_offsets)
        yield Records(*lists, *counts, own=own, dead_codes=codes), True
        return
    nothing = (0, 0, counts[2])
    for cut in cuts(ordered):
        yield Records(ordered[cut], ordered_keys[cut], ordered_offsets[cut], [], [], [], *nothing), False
    for cut in cuts(dead):
        lists = ([], [], [], dead[cut], dead_keys[cut], dead_offsets[cut])
        yield Records(*lists, *nothing, dead_codes=codes[cut]), False
    for cut in cuts([one.value for one in own]):
        yield Records([], [], [], [], [], [], *nothing, own=own[cut]), False
    yield Records([], [], [], [], [], [], *counts), True


def cuts(values: list[bytes]) -> Iterator[slice]:
    """Where to cut a list so that each piece stays within the bound, or is one large record."""
    start = size = 0
    for index, value in enumerate(values):
        if size + len(value) > BYTES_MAX and index > start:
            yield slice(start, index)
            start, size = index, 0
        size += len(value)
    if start < len(values):
        yield slice(start, len(values))


def state_records(states: list[StateRecord], held: int) -> Iterator[Records]:
    """What goes into the state topic, in rows of bounded size."""
    for cut in cuts([value or b"" for _, _, value in states]):
        yield Records([], [], [], [], [], [], 0, 0, held, state=states[cut])
