"""The kernel over the raw topic, for a gateway: what of each group the log has, what it took just now, and refused.

No I/O. The caller hands over raw records of each partition in offset order, as to `Holdback`.
"""

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple, TypeAlias

from precede.ingest.gc_paused import gc_paused
from precede.ingest.live.kernel import KernelState, RawRow, StreamIdentity, open_kernel
from precede.udfs.engine.outbox import RefusedRecord, TypedOutbox
from precede.udfs.engine.runs import Runs
from precede.udfs.limits import ANY_SIZE, Limits
from precede.udfs.peers.notes import Have
from precede.udfs.records.messages import Create, Heartbeat, Id, Message, Record, Tick, Who
from precede.udfs.records.strict import Malformed
from precede.udfs.records.wire import SPACE, read

REST_RECORDS = 20_000
"""After so many records, the groups that none of them reached are put away."""


class Took(NamedTuple):
    """The log has this record, and the kernel did not refuse it."""

    group: str
    value: bytes
    record: Record
    is_copy: bool


class LogRefusal(NamedTuple):
    """The kernel refused a record of the log, or a held one that it had taken before."""

    group: str
    id: Id | None
    code: str
    reason: str
    value: bytes | None
    """The record, where it is the one that has just come."""
    record: Record | None


Verdict: TypeAlias = Took | LogRefusal


class LogKernel:
    """What the log has of each group."""

    def __init__(self, stream: StreamIdentity, state: KernelState) -> None:
        self._told = TypedOutbox()
        self._holdback = open_kernel(stream, state, outbox=self._told)
        self.default_order = stream.order
        self.time_ms = 0
        """The time of the log at the last record."""
        self.limits = stream.limits
        self.reached = dict(state.starts)
        """Per raw partition, the next offset."""
        self.creates: dict[str, bytes] = {}
        """The `create` records of the log, as far as they are known."""
        self._heartbeats: dict[str, dict[str, tuple[int, int, int]]] = {}
        """Of each group and sender the epoch, seq and time of the last heartbeat in the log."""
        self._since_rest = 0

    # ── what comes ────────────────────────────────────────────────────────────────────────────────────────────────

    def feed(self, rows: Sequence[RawRow]) -> list[Verdict]:
        """Take raw records; returns what became of each, and of those that were held before."""
        found: list[Verdict] = []
        with gc_paused():  # the kernel leaves no garbage in cycles
            for row in rows:
                found += self._take(row)
        self._since_rest += len(rows)
        if self._since_rest >= REST_RECORDS:
            self.rest()
        self._holdback.forget_changes()
        return found

    def rest(self) -> None:
        """Put away the groups that no record reached since the last call but one."""
        self._since_rest = 0
        self._holdback.rest()

    @property
    def decoded(self) -> int:
        """How many groups are decoded now; the others are kept as bytes."""
        return self._holdback.decoded

    def _take(self, row: RawRow) -> Iterator[Verdict]:
        value, key, partition, offset, self.time_ms = row
        holdback, told = self._holdback, self._told
        copies = told.duplicates
        covered = key is not None and holdback.is_covered(key, offset)
        record = None if value is None or len(value) > self.limits.record_bytes_max else _read(value, self.limits)
        if value is None or record is None:
            holdback.receive(*row)
        else:
            holdback.receive_record(record, value.strip(SPACE), *row[1:])
        self.reached[partition] = offset + 1
        refused = [self._refused(one, offset, value) for one in told.refused]
        is_copy = told.duplicates != copies
        told.clear()
        if record is not None and not any(one.value is not None for one in refused):
            took = self._took(value or b"", record, is_copy=is_copy, is_covered=covered)
            if took is not None:
                yield took
        yield from refused

    def _took(self, value: bytes, record: Record, *, is_copy: bool, is_covered: bool) -> Took | None:
        if isinstance(record, Tick):
            return None
        group: str = record.group
        if isinstance(record, Create) and not is_copy and not is_covered:
            self.creates[group] = value.strip(SPACE)
        elif isinstance(record, Heartbeat):
            if is_covered:
                return None
            self._heartbeats.setdefault(group, {})[record.sender] = rank_of(record)
        elif isinstance(record, Message) and is_covered and not self.has(group, id_of(record)):
            return None
        return Took(group, value.strip(SPACE), record, is_copy or is_covered)

    def _refused(self, one: RefusedRecord, offset: int, value: bytes | None) -> LogRefusal:
        group = one.identity.group or ""
        if one.came.offset != offset or value is None:
            return LogRefusal(group, one.id, one.code, one.reason, None, None)
        # Where the log refused it for its size, a peer could read it all the same.
        return LogRefusal(group, one.id, one.code, one.reason, value.strip(SPACE), one.record or _read(value, ANY_SIZE))

    # ── what the log has ──────────────────────────────────────────────────────────────────────────────────────────

    def has(self, group: str, id_: Id) -> bool:
        """Whether the log has a message under this id, or has given it up, or refused it for ever."""
        found = self._holdback.look(group)
        if found is None:
            return False
        name, epoch, seq = id_
        sender = found.senders.get((name, epoch) if epoch else name)
        if sender is None:
            return False
        if seq in sender or (found.held and id_ in found.held):
            return True
        return sender.refused is not None and seq in sender.refused

    def has_heartbeat(self, record: Heartbeat) -> bool:
        """Whether the log has this heartbeat, or a later one of its sender."""
        known = self._heartbeats.get(record.group, {}).get(record.sender)
        return known is not None and known >= rank_of(record)

    def has_begun(self, group: str) -> bool:
        """Whether anything of the group was accepted; from then on no `create` counts any more."""
        return self._holdback.has_begun(group)

    def is_created(self, group: str) -> bool:
        """Whether the group has a `create` record in the log, known here or not."""
        return self._holdback.is_created(group)

    def has_join(self, group: str, name: str, epoch: int) -> bool:
        """Whether this member joined with this epoch, or a larger one."""
        found = self._holdback.look(group)
        known = None if found is None else found.members.get(name)
        return known is not None and known[0] >= epoch

    def has_ended(self, group: str, name: str, epoch: int) -> bool:
        """Whether this epoch of a member has ended: it left, was evicted, or came back with a larger one."""
        found = self._holdback.look(group)
        known = None if found is None else found.members.get(name)
        return known is not None and (known[0] > epoch or (known[0] == epoch and not known[1]))

    def has_all(self, group: str, name: str, epoch: int, last: int) -> bool:
        """Whether the log has all messages of this sender up to this seq."""
        found = self._holdback.look(group)
        missing = range(1, last + 1) if found is None else found.missing_of(name, epoch, 1, last)
        return all(self.has(group, (name, epoch, seq)) for seq in missing)

    def members(self, group: str) -> list[str]:
        """Who is in."""
        found = self._holdback.look(group)
        return [] if found is None else [name for name, (_, is_in) in found.members.items() if is_in]

    def waits_for_members(self, group: str) -> bool:
        """Whether the group is ordered by clocks."""
        found = self._holdback.look(group)
        return found is not None and found.order.waits_for_members

    def time(self, group: str) -> int:
        """The linear time above which a member that joins now may speak."""
        found = self._holdback.look(group)
        return 0 if found is None else found.release.reached_time

    def groups(self) -> list[str]:
        """All groups of which anything was accepted."""
        return self._holdback.names()

    def held_values(self, group: str) -> list[bytes]:
        """The held messages of a group, in the order in which they came."""
        found = self._holdback.look(group)
        return [] if found is None else [one.value for one in found.held.values() if one.value is not None]

    def settled(self, group: str) -> dict[Who, Runs]:
        """What is delivered or given up, of each sender and epoch."""
        found = self._holdback.look(group)
        return {} if found is None else {(one.name, one.epoch): one for one in found.senders.values()}

    def have(self, group: str, whom: Collection[Who] | None = None) -> list[Have]:
        """What the log has of these senders, or of all, as runs of seqs."""
        found = self._holdback.look(group)
        if found is None:
            return []
        runs: dict[Who, Runs] = {}
        for sender in found.senders.values():
            who = sender.name, sender.epoch
            if whom is None or who in whom:
                runs[who] = Runs()
                runs[who].fill(sender.dump())
                for low, high in sender.refused.runs() if sender.refused is not None else ():
                    runs[who].add_range(low, high)
        for name, epoch, seq in found.held:
            if (name, epoch) in runs:
                runs[name, epoch].add(seq)
        return [(name, epoch, one.dump()) for (name, epoch), one in runs.items()]

    def close(self) -> None:
        """Let go of all groups."""
        self._holdback.close()


def _read(value: bytes, limits: Limits) -> Record | None:
    try:
        return read(value.strip(SPACE), limits)
    except Malformed:
        return None


def id_of(message: Message) -> Id:
    """The id of a message that was read; the reader has set its epoch."""
    return message.sender, message.epoch, message.seq  # type: ignore[return-value]


def rank_of(record: Heartbeat) -> tuple[int, int, int]:
    """The later of two heartbeats of a sender has the larger one."""
    return record.epoch, record.seq, record.time if isinstance(record.time, int) else 0
