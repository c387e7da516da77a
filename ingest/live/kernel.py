"""The kernel in a reader: makes the ordered records again, and knows which of them are delivered already.

No I/O. The caller hands over raw records of each partition in offset order, from the offsets in `starts` on, and takes
the outputs one by one or all at once. `OutputLedger` compares what was made with the ordered topic, as that comes: of
each output only a hash is kept until the ordered topic has the same bytes. Only so many are kept: a job that is down
for hours leaves what was made meanwhile without comparison.
"""

from collections import Counter, deque
from collections.abc import Collection, Mapping, Sequence
from enum import Enum
from typing import NamedTuple

import msgspec

from precede.ingest.follower_token import Released
from precede.ingest.gc_paused import gc_paused
from precede.udfs.engine.outbox import Outbox
from precede.udfs.errors import Refused
from precede.udfs.holdback import Holdback
from precede.udfs.limits import Limits, Patience
from precede.udfs.records.published import OrderedRecord, lenient_reader

REST_RECORDS = 20_000
"""After so many records, the groups that none of them reached are put away."""

NEVER_MS = 10**15
QUIET = Patience(ask_after_ms=NEVER_MS, give_up_ms=0, loss="hold", silent_ms=0)
"""What the job writes by its patience is in the log when it counts; a reader writes nothing."""

Output = tuple[bytes, bytes, int, int]
"""Key and value of an ordered record, and the raw partition and offset that released it."""

RawRow = tuple[bytes | None, bytes | None, int, int, int]
"""The arguments of `Holdback.receive`; a `LogRecord` is one."""

read_place = lenient_reader(OrderedRecord)


class StreamIdentity(msgspec.Struct, frozen=True):
    """What the bytes of an ordered topic depend on, beside the raw records."""

    ordered_topic_id: str
    raw_topic: str
    raw_topic_id: str
    partitions: int
    order: str
    limits: Limits
    partitioner: str
    rules: int


class KernelState(NamedTuple):
    """What the kernel begins with."""

    starts: dict[int, int]
    """The raw partitions to read, and the offset from which each is read."""
    groups: dict[bytes, bytes]
    covered: dict[bytes, int]
    """Of groups whose state reaches further than `starts`: up to which offset."""


class Mismatch(NamedTuple):
    """An output that is not what the ordered topic has there."""

    key: bytes
    partition: int
    offset: int


def open_kernel(stream: StreamIdentity, state: KernelState, outbox: Outbox | None = None) -> Holdback:
    """A kernel that goes on from this state, as a reader runs it."""
    kernel = Holdback(
        order=stream.order,
        limits=stream.limits,
        patience=QUIET,
        partitions=stream.partitions,
        partitioner=stream.partitioner,
        outbox=outbox,
    )
    kernel.load(state.groups, state.covered)
    return kernel


class LiveKernel:
    """Makes outputs from raw records; those released below the places in `delivered` are not handed over."""

    def __init__(
        self,
        stream: StreamIdentity,
        state: KernelState,
        *,
        published: Mapping[int, int],
        delivered: Mapping[int, Released],
        groups: Collection[bytes] | None = None,
    ) -> None:
        """`published` is the token of the job: what it released below is in the ordered topic, and delivered."""
        self._holdback = open_kernel(stream, state)
        self._groups = groups
        self.reached = dict(state.starts)
        """Per raw partition, the next offset."""
        self._delivered = {
            at: max(delivered.get(at, Released(0)), Released(published.get(at, 0)), key=_place) for at in state.starts
        }
        self.comparison = OutputLedger({at: max(start, published.get(at, 0)) for at, start in state.starts.items()})
        self._whole_from = {
            at: max(self.comparison.begin[at], place.offset if place.key is None else place.offset + 1)
            for at, place in self._delivered.items()
        }
        """From these offsets on, all outputs are compared and handed over."""
        self._not_whole = True
        self._seen: dict[bytes, deque[int]] = {}
        """Outputs that the ordered topic showed before the kernel made them, as hashes, by group."""
        self.apart: set[bytes] = set()
        """Groups whose outputs are not wanted."""
        self.mismatches: list[Mismatch] = []
        self._outputs: list[Output] = []
        self._at = 0
        self._left = dict.fromkeys(state.starts, 0)
        self._since_rest = 0
        self._is_torn = False

    # ── what comes in ─────────────────────────────────────────────────────────────────────────────────────────────

    def note_seen(self, key: bytes, value: bytes) -> None:
        """The ordered topic has shown this record already; the output that equals it is not handed over."""
        self._seen.setdefault(key, deque()).append(hash(value))

    def feed(self, records: Sequence[RawRow]) -> None:
        """Take raw records; what was made before must be taken first.

        Raises Refused where a call before this one was interrupted, for then part of its records was taken.
        """
        if self._is_torn:
            raise Refused(
                "Live reading was interrupted in the middle of a step: go on from the token with a new reader."
            )
        self._is_torn = True
        if self._at == len(self._outputs):
            self._settle()
        with gc_paused():  # the kernel leaves no garbage in cycles
            self._feed(records)
        holdback = self._holdback
        holdback.clear()
        holdback.forget_changes()
        if self._since_rest >= REST_RECORDS:
            holdback.rest()
            self._since_rest = 0
        self.comparison.keep_bounded(self.reached)
        self._is_torn = False

    def _feed(self, records: Sequence[RawRow]) -> None:
        receive, ordered, groups = self._holdback.receive, self._holdback.ordered, self._groups
        partitions: list[int] = []
        offsets: list[int] = []
        made = 0
        for value, key, partition, offset, timestamp_ms in records:
            if groups is not None and key is not None and key not in groups:
                continue
            receive(value, key, partition, offset, timestamp_ms)
            count = len(ordered)
            if count != made:
                if count == made + 1:
                    partitions.append(partition)
                    offsets.append(offset)
                else:
                    partitions += [partition] * (count - made)
                    offsets += [offset] * (count - made)
                made = count
        is_whole = not (self._not_whole or self._seen or self.apart)
        self.reached.update({row[2]: row[3] + 1 for row in records})
        self._since_rest += len(records)
        if made:
            self._release(partitions, offsets, is_whole=is_whole)

    def _release(self, partitions: list[int], offsets: list[int], *, is_whole: bool) -> None:
        """Hand over what the kernel made, and note it for the comparison."""
        keys, values = self._holdback.ordered_keys.copy(), self._holdback.ordered.copy()
        if is_whole:
            self.comparison.note(keys, values)
            self._outputs += zip(keys, values, partitions, offsets, strict=True)
            for partition, count in Counter(partitions).items():
                self._left[partition] += count
            return
        self._not_whole = any(self.reached[at] <= offset for at, offset in self._whole_from.items())
        for output in zip(keys, values, partitions, offsets, strict=True):
            self._sort_out(output)

    def _sort_out(self, output: Output) -> None:
        """Hand it over, unless it is delivered already."""
        key, value, partition, offset = output
        delivered = self._delivered[partition]
        is_compared = offset >= self.comparison.begin[partition]
        if key in self.apart or (is_compared and self._was_seen(key, value, partition, offset)):
            return
        if is_compared:
            self.comparison.note([key], [value])
        if offset > delivered.offset or (offset == delivered.offset and not _is_covered(delivered, value)):
            self._outputs.append(output)
            self._left[partition] += 1

    def _was_seen(self, key: bytes, value: bytes, partition: int, offset: int) -> bool:
        """Whether the ordered topic has shown this output; if it has shown another one, the group is set apart."""
        seen = self._seen.get(key)
        if seen is None:
            return False
        if seen.popleft() != hash(value):
            self.set_apart(key)
            self.mismatches.append(Mismatch(key, partition, offset))
        elif not seen:
            del self._seen[key]
        return True

    def set_apart(self, key: bytes) -> None:
        """The outputs of this group are not wanted any more."""
        self.apart.add(key)
        self._seen.pop(key, None)

    def compared_from(self, partition: int) -> int:
        """What this raw partition released below this offset is not compared."""
        return self.comparison.begin.get(partition, 0)

    def reach(self, partition: int, offset: int) -> None:
        """There is no record below this offset that was not fed."""
        self.reached[partition] = max(offset, self.reached[partition])

    # ── what goes out ─────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def has_outputs(self) -> bool:
        """Whether outputs wait to be taken."""
        return self._at < len(self._outputs)

    def next(self) -> Output:
        """Take one output."""
        output = self._outputs[self._at]
        self._at += 1
        self._left[output[2]] -= 1
        return output

    def take(self) -> list[Output]:
        """Take all outputs."""
        taken = self._outputs[self._at :] if self._at else self._outputs
        self._outputs, self._at = [], 0
        self._left = dict.fromkeys(self._left, 0)
        return taken

    @property
    def delivered(self) -> dict[int, Released]:
        """Per raw partition, what of its outputs is taken."""
        return {partition: self._place(partition) for partition in self.reached}

    def _place(self, partition: int) -> Released:
        if self._left[partition] == 0:
            return max(self._delivered[partition], Released(self.reached[partition]), key=_place)
        last = next((at for at in range(self._at - 1, -1, -1) if self._outputs[at][2] == partition), None)
        if last is None:
            return self._delivered[partition]
        offset = self._outputs[last][3]
        if not self._is_of(last + 1, partition, offset):
            return Released(offset + 1)
        first = last
        while first > 0 and self._is_of(first - 1, partition, offset):
            first -= 1
        place = self._delivered[partition] if self._delivered[partition].offset == offset else Released(offset)
        for _, value, *_ in self._outputs[first : last + 1]:
            one = read_place(value)
            place = place.with_record(offset, one.group, one.destination, one.position)
        return place

    def _is_of(self, at: int, partition: int, offset: int) -> bool:
        """Whether the output at this index was released by this record."""
        return at < len(self._outputs) and self._outputs[at][2:] == (partition, offset)

    def _settle(self) -> None:
        """All outputs are taken: forget them."""
        self._delivered = self.delivered
        self._outputs = []
        self._at = 0

    # ── what it holds ─────────────────────────────────────────────────────────────────────────────────────────────

    def state(self) -> KernelState | None:
        """What another kernel needs to go on from here; None if a step was interrupted."""
        if self._is_torn:
            return None
        return KernelState(dict(self.reached), self._holdback.dump(), self._holdback.covered())

    def close(self) -> None:
        """Let go of all groups."""
        self._holdback.close()


def _place(released: Released) -> tuple[int, str]:
    return released.offset, released.key or ""


def _is_covered(delivered: Released, value: bytes) -> bool:
    one = read_place(value)
    return delivered.covers(one.released_offset, one.group, one.destination, one.position)


OUTPUTS_MAX = 500_000


class Match(Enum):
    """What a record of the ordered topic is to the outputs that were noted."""

    EQUAL = 0
    UNKNOWN = 1
    """No output has these bytes."""
    TOO_EARLY = 2
    """An output has these bytes, but the one before it in its group has not come."""


class OutputLedger:
    """The outputs that the ordered topic has not shown yet."""

    def __init__(self, begin: dict[int, int], *, outputs_max: int = OUTPUTS_MAX) -> None:
        self.begin = dict(begin)
        """Per raw partition: what was released below this offset is not compared."""
        self._outputs_max = outputs_max
        self._noted: dict[int, int] = {}
        """The hash of each output, and that of the one before it in its group; 0 if none was left."""
        self._last: dict[bytes, int] = {}
        """The newest output of each group that has any."""
        self._fresh: list[tuple[list[bytes], list[int]]] = []
        """Keys and hashes that are not in the two dicts yet: a reader that catches up has no time for that."""
        self._fresh_count = 0

    def __len__(self) -> int:
        return len(self._noted) + self._fresh_count

    def note(self, keys: list[bytes], values: list[bytes]) -> None:
        """The kernel made these outputs; those of a group come in their order. The lists must not change any more."""
        self._fresh.append((keys, list(map(hash, values))))
        self._fresh_count += len(keys)

    def find(self, key: bytes, value: bytes) -> Match:
        """Look for a record of the ordered topic; an output that was found is forgotten."""
        if self._fresh:
            self._sort_in()
        mark = hash(value)
        before = self._noted.get(mark)
        if before is None:
            return Match.UNKNOWN
        if before in self._noted:
            return Match.TOO_EARLY
        del self._noted[mark]
        if self._last.get(key) == mark:
            del self._last[key]
        return Match.EQUAL

    def _sort_in(self) -> None:
        noted, last = self._noted, self._last
        for keys, marks in self._fresh:
            for key, mark in zip(keys, marks, strict=True):
                noted[mark] = last.get(key, 0)
                last[key] = mark
        self._fresh.clear()
        self._fresh_count = 0

    def keep_bounded(self, reached: dict[int, int]) -> None:
        """With too many outputs noted, forget them all, and compare only what is released from here on."""
        if len(self) > self._outputs_max:
            self._noted.clear()
            self._last.clear()
            self._fresh.clear()
            self._fresh_count = 0
            self.begin = dict(reached)
