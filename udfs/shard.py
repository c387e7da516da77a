"""The one function Spark calls: a shard's new records and its state go in, packed rows and the next state come out.

A shard holds many groups. Its state is one binary blob with a version in front, and Spark never sees what is inside:
group key -> snapshot, each snapshot decoded only when its group is touched and encoded again only then.

Rows leave packed, up to about a mebibyte of records in one: between here and the driver a row costs more than a record.
A packed row names the raw partition and the last raw offset behind it, and for each record the offset that released it,
so that the publisher can leave out what it has published already. The states that are due for the state topic leave in
packed rows too; they are published whatever was published before.

Where the state of a stream is restored into a fresh checkpoint, the state of every group goes to the shard of its key,
whatever the number of shards was before. A shard's initial state is kept as a file of its own: a checksum, then the
state as Spark keeps it.
"""

import gc
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple
from zlib import crc32

import msgspec
import numpy as np
import pandas as pd

from precede.udfs.errors import Refused
from precede.udfs.holdback import Holdback
from precede.udfs.limits import Limits, Patience
from precede.udfs.partitioner import DEFAULT_PARTITIONER, partition_of
from precede.udfs.state_log import NO_WAITING, DumpedStateLog, StateLog, StateSettings, Waiting
from precede.udfs.steps import Records, Row, StateRecord, state_records, steps, waiting_of_all

if TYPE_CHECKING:
    from pyspark.sql.streaming.state import GroupState

HOME_SHARD = 0
"""Where records without a key are refused."""

STATE_VERSION = 3

STATE_TYPE = "blob binary"
ROW_TYPE = "shard int, part int, partition int, offset long, bytes int, records binary"

FRAME_BYTES_MAX = 16 * 1024 * 1024  # bytes of packed rows handed to Spark in one frame


class ShardState(msgspec.Struct, array_like=True):
    """What Spark keeps of a shard."""

    held: int = 0
    groups: dict[bytes, bytes] = {}
    waiting: dict[bytes, Waiting] = {}
    log: DumpedStateLog | None = None
    """What the state topic lacks; None where nothing was ever written there."""
    covered: dict[bytes, int] = {}
    """Of groups whose state was restored, the raw offset up to which they pass over what comes."""


_encode = msgspec.msgpack.encode
_decode_state = msgspec.msgpack.Decoder(ShardState).decode


class Shard:
    """Orders one shard's records; picklable, and the same in every batch."""

    def __init__(
        self,
        order: str,
        limits: Limits,
        patience: Patience | None = None,
        *,
        partitions: int | None = None,
        partitioner: str = DEFAULT_PARTITIONER,
        state: StateSettings | None = None,
        initial: Callable[[int], ShardState | None] | None = None,
    ) -> None:
        """`partitions` is how many the raw topic has; without `state` none is written to the state topic.

        `initial` gives the state that a shard begins with where it was restored.
        """
        self.order = order
        self.limits = limits
        self.patience = Patience() if patience is None else patience
        self.partitions = partitions
        self.partitioner = partitioner
        self.state = state
        self.initial = initial

    def __call__(
        self, key: tuple[Any, ...], frames: Iterable[pd.DataFrame], state: "GroupState"
    ) -> Iterator[pd.DataFrame]:
        gc.disable()  # nothing below makes cycles that outlive it; looking for them cost a third with 100,000 groups
        try:
            yield from self._step(int(key[0]), frames, state)
        finally:
            gc.enable()

    def _step(self, shard: int, frames: Iterable[pd.DataFrame], state: "GroupState") -> Iterator[pd.DataFrame]:
        kept = state.get[0] if state.exists else None
        restored = self.initial(shard) if kept is None and self.initial is not None else None
        before = (restored or ShardState()) if kept is None else decode_state(kept)
        holdback = self._holdback(shard, before)
        arrived = in_log_order(frames)
        packer = _Packer(shard)
        state_after: bytes | None = None  # None where it stays as it is
        for partition, offset, records, is_last in steps(holdback, arrived, before.held):
            if is_last:
                blob, states = self._finish(holdback, before, arrived, records, is_new=restored is not None)
                for piece in state_records(states, records.held):
                    yield from packer.add(partition, offset, piece)
                records.state_bytes = len(blob or kept or b"")
                state_after = blob
            yield from packer.add(partition, offset, records)
        yield from packer.rest()
        holdback.close()
        if state_after is not None:
            state.update((state_after,))

    def _holdback(self, shard: int, before: ShardState) -> Holdback:
        holdback = Holdback(
            order=self.order,
            limits=self.limits,
            patience=self.patience,
            partitions=self.partitions,
            partitioner=self.partitioner,
            home=shard == HOME_SHARD,
        )
        holdback.load(before.groups, before.covered)
        return holdback

    def _finish(
        self, holdback: Holdback, before: ShardState, arrived: list[Row], records: Records, *, is_new: bool
    ) -> tuple[bytes | None, list[StateRecord]]:
        """What Spark is to keep, or None if that stays as it is, and what goes into the state topic.

        What a person wants to know of the shard is noted in its last records. With `is_new` Spark does not have the
        state yet with which the batch began.
        """
        groups, waiting = holdback.dump(), before.waiting
        covered = self._still_covered(holdback.covered(), arrived)
        changed = {key: change for key, change in holdback.changed.items() if groups.get(key) != before.groups.get(key)}
        if changed:
            holdback.note_waiting(waiting)
        states: list[StateRecord] = []
        log = None if self.state is None else state_log(self.state, holdback, before)
        if log is not None:
            for key, (partition, offset, now_ms) in changed.items():
                log.changed(key, partition, (offset, now_ms))
            states = _take_due(log, groups, waiting, arrived)
            records.uncovered = log.uncovered()
        records.waiting = waiting_of_all(waiting)
        if not (is_new or changed) and covered == before.covered and (log is None or not log.has_changed):
            return None, states
        dumped = before.log if log is None else log.dump()
        return encode_state(ShardState(records.held, groups, waiting, dumped, covered)), states

    def _still_covered(self, covered: dict[bytes, int], arrived: list[Row]) -> dict[bytes, int]:
        """Those that may still pass over something, after the offsets that the batch has reached."""
        if not covered or self.partitions is None:
            return covered
        reached = {row[0]: row[1] for row in arrived}
        most = max(reached.values())
        return {
            key: upto
            for key, upto in covered.items()
            if upto > most + 1 or upto > reached.get(partition_of(key, self.partitions, self.partitioner), -1) + 1
        }


def state_log(settings: StateSettings, holdback: Holdback, before: ShardState) -> StateLog:
    """What the state topic lacks of a shard; the kernel has the shard's groups loaded."""
    if before.log is not None and before.log.topic == settings.topic:
        return StateLog(settings, before.log)
    if not before.groups:
        return StateLog(settings)
    log = StateLog(settings, _nothing_written(holdback, before))
    log.has_changed = True
    return log


def _nothing_written(holdback: Holdback, before: ShardState) -> DumpedStateLog:
    """Nothing of the shard is in this topic yet: all of it is due."""
    unwritten: dict[int, dict[bytes, tuple[int, int]]] = {}
    for key in before.groups:
        partition = partition_of(key, holdback.partitions or 1, holdback.partitioner)
        unwritten.setdefault(partition, {})[key] = (0, 0)
        if key in before.waiting:
            before.waiting[key] = holdback.waiting_of(key) or NO_WAITING
    return DumpedStateLog(unwritten)


def _take_due(
    log: StateLog, groups: dict[bytes, bytes], waiting: dict[bytes, Waiting], arrived: list[Row]
) -> list[StateRecord]:
    """The state that is due in each partition which the batch has reached."""
    last = {row[0]: row for row in arrived}
    return [
        (partition, key, value)
        for partition, (_, offset, _, _, now_ms) in last.items()
        for key, value in log.take_due(partition, offset + 1, now_ms, groups.__getitem__, waiting)
    ]


def in_log_order(frames: Iterable[pd.DataFrame]) -> list[Row]:
    """All rows of a batch by (partition, offset): Spark hands them over in several chunks and in any order."""
    rows: list[Row] = []
    for frame in frames:
        columns = (frame[name].tolist() for name in ("partition", "offset", "key", "value", "timestamp_ms"))
        rows.extend(zip(*columns, strict=True))
    rows.sort()  # no two rows share (partition, offset), so keys and values are never compared
    return rows


class _Packer:
    """Packs the rows of one shard into frames of bounded size."""

    def __init__(self, shard: int) -> None:
        self._shard = shard
        self._part = 0
        self._size = 0
        self._rows: list[tuple[int, int, int, int, int, bytes]] = []

    def add(self, partition: int, offset: int, records: Records) -> Iterator[pd.DataFrame]:
        """Add a row; a frame that is full is yielded."""
        packed = _encode(records)
        self._rows.append((self._shard, self._part, partition, offset, len(packed), packed))
        self._part += 1
        self._size += len(packed)
        if self._size >= FRAME_BYTES_MAX:
            yield from self.rest()

    def rest(self) -> Iterator[pd.DataFrame]:
        """The last frame, if there are rows left."""
        if self._rows:
            yield _frame(self._rows)
            self._rows, self._size = [], 0


def _frame(rows: list[tuple[int, int, int, int, int, bytes]]) -> pd.DataFrame:
    shard, part, partition, offset, size, records = zip(*rows, strict=True)
    return pd.DataFrame(
        {
            "shard": np.array(shard, np.int32),
            "part": np.array(part, np.int32),
            "partition": np.array(partition, np.int32),
            "offset": np.array(offset, np.int64),
            "bytes": np.array(size, np.int32),
            "records": list(records),
        }
    )


def encode_state(state: ShardState) -> bytes:
    """The state of a shard as the one blob that Spark keeps."""
    return bytes((STATE_VERSION,)) + _encode(state)


def decode_state(blob: bytes) -> ShardState:
    """The state of a shard."""
    if blob[0] != STATE_VERSION:
        raise Refused(
            f"The checkpoint's state has version {blob[0]}, and this precede reads version {STATE_VERSION}: run the "
            "version that wrote it, or a newer one."
        )
    return _decode_state(memoryview(blob)[1:])


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
        yield shard, _state_of(parts.pop(shard), topic)


def _state_of(groups: list[RestoredGroup], topic: str) -> ShardState:
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
