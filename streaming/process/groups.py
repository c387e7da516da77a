"""All groups of the log in one kernel, and what the state topic lacks of them.

Groups that no record reached lately are put away. Only a group whose state is written is: then the cache, which is a
copy of the state topic, has it as it is. So memory is bounded by the groups that are active, and by those whose state
is not written yet; where these are too many, they are written before they are due.
"""

import time
from collections.abc import Iterator, Mapping

from precede.ingest.state_topic import NewState
from precede.streaming.order.counts import JobCounts
from precede.streaming.order.packed_rows import PackedRow
from precede.streaming.process.cache import Cache
from precede.udfs.engine.inspection import oldest_and_gaps
from precede.udfs.holdback import Holdback
from precede.udfs.limits import Limits, Patience
from precede.udfs.records.state_pieces import StoredState
from precede.udfs.rules import RULES
from precede.udfs.state_log import NO_WAITING, StateLog, StateSettings
from precede.udfs.steps import Records, Row, StateRecord, state_records, steps, waiting_of_all, whole_steps

ONLY_SHARD = 0
"""What is counted by shard is counted under this one."""

DECODED_MAX = 105_000
"""So many groups may be decoded before those that no record reached lately are put away."""
REST_S = 30.0
"""How often they are put away where they are fewer."""
LOOK_S = 1.0
LOOK_SHARE = 0.02
"""How often it is counted what is waited for: once a second, or seldom enough to take no more than this of the time."""
READ_AGAIN_MAX = 250_000
RECORDS_A_STATE = 10
"""States are written before they are due where a start would have to read more records again than this, but at most
one for so many records: reading 250,000 again takes about two seconds."""
AT_ONCE_MS = 2**62
"""A time of the log at which every state is due."""


class ProcessGroups:
    """The kernel as it stands after the last record, and what of it is not in the state topic."""

    def __init__(
        self,
        cache: Cache,
        state: StateSettings,
        horizon: Mapping[int, int],
        token: Mapping[int, int],
        *,
        order: str,
        limits: Limits,
        patience: Patience,
        partitions: int,
        partitioner: str,
        decoded_max: int = DECODED_MAX,
        read_again_max: int = READ_AGAIN_MAX,
    ) -> None:
        """The log goes on at `horizon`; the cache has all that the state topic has; below `token` all is published."""
        self._cache = cache
        self._decoded_max = decoded_max
        self._read_again_max = read_again_max
        self._holdback = Holdback(
            order=order,
            limits=limits,
            patience=patience,
            partitions=partitions,
            partitioner=partitioner,
            blobs=cache,
        )
        self._holdback.load({}, cache.covered(horizon), cache.deadlines())
        self._log = StateLog(state)
        self._log.take_over(cache.piece_counts())
        self._waiting = cache.waiting()
        self._held = sum(held for _, _, held in self._waiting.values())
        self._reached: dict[int, tuple[int, int]] = {}
        """Per partition, the offset after the last record, and the time of the log there."""
        self._published = {at: after for at, after in token.items() if horizon.get(at, 0) < after}
        """Up to where what comes out is published already, for the partitions that are not there yet."""
        self._written: dict[bytes, int] = {}
        """Of decoded groups, a hash of the state that was written last."""
        self._new: list[NewState] = []
        """States that are in the transaction which is open."""
        self._unwritten_records = 0
        """How many records came since all states were written last."""
        self._rest_at = time.monotonic() + REST_S
        self._look_at = 0.0

    def step(self, rows: list[Row]) -> Iterator[PackedRow]:
        """Take records of the log, by partition and offset; gives what came out."""
        self._unwritten_records += len(rows)
        walk = steps if self._published else whole_steps
        for partition, offset, records, _ in walk(self._holdback, rows, self._held):
            yield PackedRow(ONLY_SHARD, partition, offset, records)
        for partition, offset, _, _, now_ms in {row[0]: row for row in rows}.values():
            self._reached[partition] = offset + 1, now_ms
            if offset + 1 >= self._published.get(partition, 0):
                self._published.pop(partition, None)
        for key, (partition, offset, now_ms) in self._holdback.take_changes().items():
            self._log.changed(key, partition, (offset, now_ms))

    def finish(self, *, writes_all: bool = False) -> Iterator[PackedRow]:
        """The states that are due, before a transaction is committed; or all that changed."""
        held = self._held + self._holdback.held_growth
        writes_all = writes_all or self._is_crowded or self._is_far_ahead
        records = _nothing(held)
        for partition, (next_offset, now_ms) in self._reached.items():
            due_ms = AT_ONCE_MS if writes_all else now_ms
            states = self._take_due(partition, next_offset, due_ms)
            for piece in state_records(states, held):
                yield PackedRow(ONLY_SHARD, partition, next_offset - 1, piece)
        records.uncovered = self._log.uncovered()
        if not records.uncovered:
            self._unwritten_records = 0
        now = time.monotonic()
        if now >= self._look_at:
            self._look()
            self._look_at = now + max(LOOK_S, (time.monotonic() - now) / LOOK_SHARE)
            records.waiting, records.state_bytes = waiting_of_all(self._waiting), self._cache.states_bytes()
        for partition, (next_offset, _) in self._reached.items():
            yield PackedRow(ONLY_SHARD, partition, next_offset - 1, records)
            records = _nothing(held)  # the horizon moves in all partitions, and the report counts once

    def show_in(self, counts: JobCounts) -> None:
        """Count what is held before the first record is read."""
        counts.held[ONLY_SHARD] = self._held
        counts.waiting[ONLY_SHARD] = waiting_of_all(self._waiting)
        counts.state_bytes[ONLY_SHARD] = self._cache.states_bytes()

    @property
    def unwritten(self) -> int:
        """How many groups changed since their state was written."""
        return sum(self._log.unwritten().values())

    @property
    def _is_crowded(self) -> bool:
        """Whether so many groups are decoded that their states are written before they are due."""
        return self._holdback.decoded > self._decoded_max

    @property
    def _is_far_ahead(self) -> bool:
        """Whether a start would have to read too many records again."""
        return self._unwritten_records >= max(self._read_again_max, RECORDS_A_STATE * self.unwritten)

    def committed(self) -> None:
        """What `step` and `finish` gave is in the topics; groups that rest may be put away now."""
        for one in self._new:
            self._cache.put(one)
        self._new = []
        now = time.monotonic()
        if self._is_crowded or now >= self._rest_at:
            self._rest_at = now + REST_S
            self._look()
            self._holdback.rest(self._log)
            is_decoded = self._holdback.decoded_group
            self._written = {key: mark for key, mark in self._written.items() if is_decoded(key) is not None}

    def close(self) -> None:
        """Let go of all groups."""
        self._holdback.close()

    def _take_due(self, partition: int, next_offset: int, now_ms: int) -> list[StateRecord]:
        blobs: dict[bytes, bytes] = {}

        def state_of(key: bytes) -> bytes | None:
            blob = self._holdback.state_of(key) or b""
            self._holdback.note_written(key)
            mark = hash(blob)
            if self._written.get(key) == mark:  # only copies came, or what was refused
                return None
            self._written[key] = mark
            self._note_waiting(key)
            blobs[key] = blob
            return blob

        records = self._log.take_due(partition, next_offset, now_ms, state_of, self._waiting)
        for key, blob in blobs.items():
            oldest_ms, gaps, held = self._waiting.get(key, NO_WAITING)
            pieces = self._log.pieces_of(key)
            stored = StoredState(RULES, next_offset, pieces, held, oldest_ms, gaps, blob)
            self._new.append(NewState(partition, key, stored))
        return [(partition, key, value) for key, value in records]

    def _note_waiting(self, key: bytes) -> None:
        group = self._holdback.decoded_group(key)
        if group is None:
            return
        if group.held:
            self._waiting[key] = (*oldest_and_gaps(group), len(group.held))
        else:
            self._waiting.pop(key, None)

    def _look(self) -> None:
        """Update what the groups wait for that are decoded; what the others wait for has not changed."""
        holding = [group.key for group in self._holdback.shared.holding]
        for key in {*holding, *self._waiting}:
            self._note_waiting(key)


def _nothing(held: int) -> Records:
    """A row without records; it says how many messages are held."""
    return Records([], [], [], [], [], [], 0, 0, held)
