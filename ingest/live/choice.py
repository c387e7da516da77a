"""Decides what is delivered, from the ordered topic and from the kernel: each record once, in the order of its group.

No I/O. At first everything comes from the ordered topic. `begin` hands over what a kernel needs, and the job's token:
what the job released below is in the ordered topic. When the caller has read that topic at least up to the end that it
had then, it calls `go_live`: from there on, outputs come from the kernel, and the ordered topic is only compared.

A group for which the two differ is read from the ordered topic only.
"""

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import Enum

import msgspec

from precede.ingest.follower_token import VERSION, FollowerToken, Released
from precede.ingest.live.kernel import KernelState, LiveKernel, Match, Output, RawRow, StreamIdentity, read_place
from precede.udfs.errors import Difference, Refused
from precede.udfs.partitioner import partition_of
from precede.udfs.records.messages import LogRecord
from precede.udfs.records.published import OrderedRecord

DIFFERING_MAX = 100
"""With more groups than this, all are read from the ordered topic: something is wrong with the whole."""
WAITING_MAX = 10_000
"""So many records of one ordered partition may wait to be compared."""


class _Verdict(Enum):
    DELIVER = 0
    PASS = 1
    WAIT = 2


class LiveChoice:
    """What a reader has delivered, and what comes next."""

    def __init__(
        self, token: FollowerToken, *, groups: Collection[bytes] | None = None, waiting_max: int = WAITING_MAX
    ) -> None:
        self._token = token
        self._groups = groups
        self._waiting_max = waiting_max
        self.offsets: dict[int, int] = dict(token.offsets)
        self._differing: dict[str, int] = dict(token.differing)
        """Groups that come from the ordered topic: of each, what was released below this offset is delivered."""
        self._waiting: dict[int, deque[LogRecord]] = {}
        self._kernel: LiveKernel | None = None
        self._stream: StreamIdentity | None = None
        self._published: dict[int, int] = {}
        self._errors: deque[Difference] = deque()
        self.is_ending = False
        """Whether live reading ends when the outputs that were made are taken."""
        self.is_live = False
        """Whether outputs come from the kernel."""

    # ── the way to live reading and back ──────────────────────────────────────────────────────────────────────────

    def begin(self, stream: StreamIdentity, state: KernelState, published: Mapping[int, int]) -> None:
        """Take what the kernel begins with; `published` is the job's token, read after all of it."""
        delivered = self._token.released
        for partition, start in state.starts.items():
            covered = delivered[partition].offset if partition in delivered else 0
            if start > max(covered, published.get(partition, 0)):
                raise Refused(
                    f"The state begins at offset {start} of raw partition {partition}, but what was released before it "
                    "is neither delivered nor published."
                )
        self._published = dict(published)
        self._kernel = LiveKernel(stream, state, published=published, delivered=delivered, groups=self._groups)
        self._stream = stream

    def go_live(self) -> None:
        """All that was in the ordered topic when `begin` was called, or later, has been handed over."""
        assert self._kernel is not None
        assert self._stream is not None
        assert not any(self._waiting.values())
        self.is_live = True
        for group, key in [(group, group.encode()) for group in self._differing]:
            partition = partition_of(key, self._stream.partitions, self._stream.partitioner)
            delivered = self._token.released.get(partition, Released(0))
            if (delivered.offset, delivered.key is not None) <= (self._published.get(partition, 0), False):
                del self._differing[group]  # the job has caught up, so nothing of it is delivered by halves
            else:
                self._kernel.set_apart(key)

    def end_live(self) -> None:
        """When the outputs that were made are taken, everything comes from the ordered topic again."""
        self.is_ending = True

    def _end(self) -> None:
        self._token = self.token
        if self._kernel is not None:
            self._kernel.close()
        self._kernel = None
        self.is_live = self.is_ending = False

    @property
    def token(self) -> FollowerToken:
        """How far it was delivered."""
        released = self._token.released
        if self.is_live and self._kernel is not None:
            released = released | self._kernel.delivered
        return msgspec.structs.replace(
            self._token,
            v=VERSION,
            offsets=dict(self.offsets),
            released=released,
            differing=dict(self._differing),
        )

    # ── what comes in ─────────────────────────────────────────────────────────────────────────────────────────────

    def take_raw(self, records: Sequence[RawRow]) -> None:
        """Take raw records; all outputs of the earlier ones should have been taken."""
        assert self._kernel is not None
        self._kernel.feed(records)
        for key, partition, offset in self._kernel.mismatches:
            self._set_apart(key, offset, f"released at offset {offset} of raw partition {partition}")
        self._kernel.mismatches.clear()

    def reach(self, partition: int, offset: int) -> None:
        """The raw partition has no record below this offset that was not handed over."""
        if self._kernel is not None:
            self._kernel.reach(partition, offset)

    def take_ordered(self, records: Iterable[LogRecord]) -> None:
        """Take records of the ordered topic."""
        for record in records:
            self._waiting.setdefault(record.partition, deque()).append(record)

    def wants_ordered(self, partition: int) -> bool:
        """Whether to read on in this partition of the ordered topic."""
        return len(self._waiting.get(partition, ())) < self._waiting_max

    # ── what goes out ─────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def has_outputs(self) -> bool:
        """Whether outputs of the kernel wait to be taken; then no raw records should be handed over."""
        return self.is_live and self._kernel is not None and self._kernel.has_outputs

    def next(self) -> Output | None:
        """Deliver the next record, if there is one. Raises Difference once for each group that differs."""
        if self.has_outputs:
            assert self._kernel is not None
            return self._kernel.next()
        output = self._next_ordered()
        if output is None and self._errors:
            raise self._errors.popleft()
        return output

    def take(self) -> list[Output]:
        """Deliver all that can be delivered now. Raises Difference as `next` does."""
        if self.has_outputs:
            assert self._kernel is not None
            return self._kernel.take()
        taken = list(iter(self._next_ordered, None))
        if not taken and self._errors:
            raise self._errors.popleft()
        return taken

    def _next_ordered(self) -> Output | None:
        """The next record that comes from the ordered topic; None also if an error is to be raised first."""
        if self.is_ending:
            self._end()
        for partition, waiting in self._waiting.items():
            while waiting and not self._errors:
                record = waiting[0]
                place, verdict = self._judge(record)
                if verdict is _Verdict.WAIT:
                    break
                waiting.popleft()
                self.offsets[partition] = record.offset + 1
                if verdict is _Verdict.DELIVER:
                    return (record.key or b"", record.value or b"", *place)
        return None

    def _judge(self, record: LogRecord) -> tuple[tuple[int, int], _Verdict]:
        """Where a record of the ordered topic was released, and what to do with it."""
        key, value, kernel = record.key, record.value, self._kernel
        if key is None or value is None or (self._groups is not None and key not in self._groups):
            return (0, 0), _Verdict.PASS
        found = Match.UNKNOWN
        if self.is_live and kernel is not None and key not in kernel.apart:
            found = kernel.comparison.find(key, value)
            if found is Match.EQUAL:
                return (0, 0), _Verdict.PASS
        one = _read(record)
        place = one.partition, one.released_offset
        if not self.is_live and kernel is not None and one.released_offset >= kernel.compared_from(one.partition):
            kernel.note_seen(key, value)
        if one.group in self._differing:
            return place, _deliver(one.released_offset >= self._differing[one.group])
        if not self.is_live or kernel is None:
            covered = self._token.covers(one.partition, one.released_offset, one.group, one.destination, one.position)
            return place, _deliver(not covered)
        if one.released_offset < kernel.compared_from(one.partition):
            return place, _Verdict.PASS
        reached = kernel.reached.get(one.partition, 0)
        if found is Match.UNKNOWN and one.released_offset >= reached:
            return place, _Verdict.WAIT
        self._set_apart(key, reached, f"position {one.position}, at offset {record.offset} of the ordered topic")
        return place, _Verdict.WAIT  # until the error has been raised

    def _set_apart(self, key: bytes, offset: int, where: str) -> None:
        """From here on, a group comes from the ordered topic; what was released below `offset` is delivered."""
        group = key.decode()
        self._differing[group] = offset
        self._errors.append(Difference(group, where))
        assert self._kernel is not None
        self._kernel.set_apart(key)
        if len(self._differing) > DIFFERING_MAX:
            self.end_live()

    # ── looking ───────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def is_compared(self) -> bool:
        """Whether the ordered topic has shown every output that is to be compared."""
        return self._kernel is None or (len(self._kernel.comparison) == 0 and not any(self._waiting.values()))

    def state(self) -> KernelState | None:
        """What another kernel needs to go on from here; None while there is no kernel."""
        return self._kernel.state() if self.is_live and self._kernel is not None else None

    @property
    def ordered_offsets(self) -> dict[int, int]:
        """Per partition of the ordered topic, the next offset to hand over."""
        behind = {at: waiting[-1].offset + 1 for at, waiting in self._waiting.items() if waiting}
        return self.offsets | behind

    @property
    def raw_offsets(self) -> dict[int, int]:
        """Per raw partition, the next offset to hand over."""
        return {} if self._kernel is None else dict(self._kernel.reached)


def _deliver(is_new: bool) -> _Verdict:
    return _Verdict.DELIVER if is_new else _Verdict.PASS


def _read(record: LogRecord) -> OrderedRecord:
    try:
        return read_place(record.value or b"")
    except msgspec.DecodeError as error:
        raise Refused(
            f"Offset {record.offset} of partition {record.partition} of the ordered topic holds a record that precede "
            f"did not write: {error}."
        ) from error
