"""What goes up from the segments, and when. No I/O: records and time come in, records to publish go out.

A record is kept here from when it is heard until the log has it, or has refused it. Of several gateways that heard it,
one publishes it at once; the others wait, and mostly see it in the log meanwhile. Which one is first is drawn from the
names, for each sender. The others go on waiting while the log takes, one after the other, what this sender said before:
then somebody carries it, and is only late.

What has to wait besides:

    everything of a group                 until the log has its `create`
    what a sender says in a larger epoch  until the log has all that is kept here of the older ones
    a message of an epoch                 until the `join` of that epoch, if one is kept here, has been published
    a `leave`                             until the log has all messages up to its last one; those that no one has
                                          within LEAVE_MS do not count

What was published and does not appear in the log is published again: the kernel drops copies.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from itertools import count
from typing import Final

from precede.gateway.log_kernel import LogKernel, id_of, rank_of
from precede.udfs.records.messages import Create, Heartbeat, Join, Leave, Message, Record

LATER_MS: Final = 250.0
"""How long a gateway waits for each one that comes before it, or for three times the way to the log if that is more."""
WAY_MS_MAX: Final = 1_000.0
"""A record that took longer was on no slow way: Kafka was away, and that is not waited for again."""
LEAVE_MS: Final = 10_000.0
HEARTBEAT_MS: Final = 25.0
"""The heartbeats of one sender go up this often at most: the last one says it all."""
AGAIN_MS: Final = 45_000.0
"""What was published and is not in the log after this time, longer than the client tries, is published again."""
FLYING_MAX: Final = 10_000
FLYING_BYTES_MAX: Final = 16 * 1024 * 1024
"""So much may be published and not seen in the log yet."""
COST: Final = 300
"""What a record takes in memory beside its bytes."""

Key = tuple[str, str, int, int]
"""group, sender, epoch, seq; JOIN, LEAVE, BEAT and CREATE stand for the seq of other records."""
JOIN, LEAVE, BEAT, CREATE = 0, -1, -2, -3


class HeardRecord:
    """A record that the log is not known to have."""

    __slots__ = ("due_ms", "gone", "heard_ms", "key", "published_ms", "record", "row", "value")

    def __init__(self, key: Key, value: bytes, record: Record, heard_ms: float, due_ms: float) -> None:
        self.key = key
        self.value = value
        self.record = record
        self.heard_ms = heard_ms
        self.due_ms = due_ms
        self.published_ms: float | None = None
        self.gone = False
        """Whether the log has it by now."""
        self.row: int | None = None
        """Where it is in the spool."""

    @property
    def size(self) -> int:
        return len(self.value) + COST


class SenderQueue:
    """What is kept of one sender in one group."""

    __slots__ = ("beat_ms", "carried", "carried_ms", "epochs", "joins", "leaves")

    def __init__(self) -> None:
        self.epochs: dict[int, int] = {}
        """How many messages of each epoch are kept."""
        self.joins: dict[int, HeardRecord] = {}
        self.leaves: dict[int, HeardRecord] = {}
        self.beat_ms = 0.0
        """When a heartbeat went up last."""
        self.carried = (0, 0)
        """Epoch and seq of the latest message that another gateway brought into the log."""
        self.carried_ms: float | None = None
        """When that was seen there."""

    @property
    def is_empty(self) -> bool:
        return not (self.epochs or self.joins or self.leaves)

    def has_older(self, epoch: int) -> bool:
        """Whether anything of an older epoch is kept."""
        if not self.joins and not self.leaves and len(self.epochs) <= 1:  # the usual case
            return bool(self.epochs) and next(iter(self.epochs)) < epoch
        return any(one < epoch for of in (self.epochs, self.joins, self.leaves) for one in of)


class PublishQueue:
    """The records that the log lacks."""

    def __init__(self, log: LogKernel, on_gone: Callable[[HeardRecord], object]) -> None:
        """`on_gone` is told of each record that is kept no longer."""
        self.log = log
        self.records: dict[Key, HeardRecord] = {}
        """All that is kept, in the order in which it was heard."""
        self.size = 0
        """What they take in memory."""
        self.way_ms = 0.0
        """How long a record is on its way into the log and back, as of late."""
        self.published = 0
        """How many records were published, those that were published again included."""
        self._on_gone = on_gone
        self._senders: dict[tuple[str, str], SenderQueue] = {}
        self._due: deque[HeardRecord] = deque()
        self._later: list[tuple[float, int, HeardRecord]] = []
        self._ties = count()
        self._waiting: dict[str, list[HeardRecord]] = {}
        """What has to wait for something else of its group."""
        self._flying: OrderedDict[Key, HeardRecord] = OrderedDict()
        self._flying_bytes = 0
        self._unspooled: deque[HeardRecord] = deque()

    # ── heard ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def hear(self, group: str, value: bytes, record: Record, rank: int, now_ms: float) -> bool:
        """A record of a segment; before this gateway come `rank` others. Returns whether it is new and to go up."""
        key = self._key_of(group, record)
        if key is None or self._is_in_log(key, record):
            return False
        known = self.records.get(key)
        if known is not None:
            if key[3] != BEAT or rank_of(record) <= rank_of(known.record):  # type: ignore[arg-type]
                return False
            self._drop(known)  # the later heartbeat says more
        entry = HeardRecord(key, value, record, now_ms, now_ms + rank * self._patience_ms)
        self.records[key] = entry
        self.size += entry.size
        self._note(entry)
        self._unspooled.append(entry)
        self._plan(entry, now_ms)
        return True

    @property
    def _patience_ms(self) -> float:
        """How long to wait for each gateway that comes before this one."""
        return max(LATER_MS, 3 * self.way_ms)

    def _plan(self, entry: HeardRecord, now_ms: float) -> None:
        if entry.due_ms <= now_ms:
            self._due.append(entry)
        else:
            heappush(self._later, (entry.due_ms, next(self._ties), entry))

    def _key_of(self, group: str, record: Record) -> Key | None:
        match record:
            case Message():
                return (group, *id_of(record))
            case Heartbeat():
                return group, record.sender, 0, BEAT
            case Join():
                return group, record.sender, record.epoch, JOIN
            case Leave():
                return group, record.sender, record.epoch, LEAVE
            case Create():
                return group, "", 0, CREATE
        return None  # the log alone abandons, evicts and lets time pass

    def _is_in_log(self, key: Key, record: Record) -> bool:
        group, sender, epoch, seq = key
        if seq > 0:
            return self.log.has(group, (sender, epoch, seq))
        if seq == BEAT:
            assert isinstance(record, Heartbeat)
            return self.log.has_heartbeat(record) or self.log.has_ended(group, sender, record.epoch)
        if seq == CREATE:
            return self.log.has_begun(group)
        if seq == LEAVE:
            return self.log.has_ended(group, sender, epoch)
        return self.log.has_join(group, sender, epoch)

    def _note(self, entry: HeardRecord) -> None:
        group, sender, epoch, seq = entry.key
        queue = self._senders.setdefault((group, sender), SenderQueue())
        if seq > 0:
            queue.epochs[epoch] = queue.epochs.get(epoch, 0) + 1
        elif seq == JOIN:
            queue.joins[epoch] = entry
        elif seq == LEAVE:
            queue.leaves[epoch] = entry

    # ── published ─────────────────────────────────────────────────────────────────────────────────────────────────

    def take(self, now_ms: float) -> list[HeardRecord]:
        """What to publish now, in this order."""
        later = self._later
        while later and later[0][0] <= now_ms:
            entry = heappop(later)[2]
            if not entry.gone and self._is_carried(entry, now_ms):
                heappush(later, (now_ms + LATER_MS, next(self._ties), entry))
            elif not entry.gone:
                self._due.append(entry)
        taken: list[HeardRecord] = []
        due = self._due
        while due and len(self._flying) < FLYING_MAX and self._flying_bytes < FLYING_BYTES_MAX:
            entry = due.popleft()
            if entry.gone or entry.key in self._flying:
                continue
            wait_ms = self._must_wait(entry, now_ms)
            if wait_ms is None:
                self._fly(entry, now_ms)
                taken.append(entry)
            elif wait_ms:
                heappush(later, (now_ms + wait_ms, next(self._ties), entry))
            else:
                self._waiting.setdefault(entry.key[0], []).append(entry)
        return taken

    def _is_carried(self, entry: HeardRecord, now_ms: float) -> bool:
        """Whether another gateway brings what this sender says into the log, and has not come to this message yet."""
        group, sender, epoch, seq = entry.key
        queue = self._senders.get((group, sender))
        if seq <= 0 or queue is None or queue.carried_ms is None or queue.carried_ms + self._patience_ms <= now_ms:
            return False
        return queue.carried < (epoch, seq)

    def _fly(self, entry: HeardRecord, now_ms: float) -> None:
        entry.published_ms = now_ms
        self.published += 1
        self._flying[entry.key] = entry
        self._flying_bytes += len(entry.value)
        if entry.key[3] == BEAT:
            self._senders[entry.key[:2]].beat_ms = now_ms
        elif entry.key[3] == JOIN:
            self._wake(entry.key[0])

    def _must_wait(self, entry: HeardRecord, now_ms: float) -> float | None:
        """For how long to wait, 0 for something of the group; None: it may go."""
        group, sender, epoch, seq = entry.key
        if seq == CREATE:
            return None
        if (group, "", 0, CREATE) in self.records:
            return 0.0
        queue = self._senders[group, sender]
        if seq == BEAT:
            assert isinstance(entry.record, Heartbeat)
            epoch = entry.record.epoch
            if queue.beat_ms + HEARTBEAT_MS > now_ms:
                return queue.beat_ms + HEARTBEAT_MS - now_ms
        if queue.has_older(epoch):
            return 0.0
        if seq == LEAVE:
            return self._leave_waits(entry, queue, now_ms)
        join = queue.joins.get(epoch)
        return 0.0 if join is not None and seq != JOIN and join.published_ms is None else None

    def _leave_waits(self, entry: HeardRecord, queue: SenderQueue, now_ms: float) -> float | None:
        group, sender, epoch, _ = entry.key
        assert isinstance(entry.record, Leave)
        if epoch in queue.epochs or epoch in queue.joins:
            return 0.0
        if self.log.has_all(group, sender, epoch, entry.record.last):
            return None
        left_ms = entry.heard_ms + LEAVE_MS - now_ms
        return min(left_ms, 200.0) if left_ms > 0 else None

    def renew(self, now_ms: float) -> None:
        """What was published may never have arrived: it is due again."""
        for entry in reversed(self._flying.values()):
            self._due.appendleft(entry)
            entry.due_ms = now_ms
        self._flying.clear()
        self._flying_bytes = 0

    def look_back(self, now_ms: float) -> None:
        """Publish again what has not appeared in the log for long, though the log is read to its end."""
        entry = next(iter(self._flying.values()), None)
        if entry is not None and (entry.published_ms or 0.0) + AGAIN_MS <= now_ms:
            self.renew(now_ms)

    def hurry(self, group: str, sender: str, epoch: int, first: int, last: int, now_ms: float) -> None:
        """The log waits for these messages: do not leave them to others."""
        keys = ((group, sender, epoch, seq) for seq in range(first, last + 1))
        for entry in [self.records[key] for key in keys if key in self.records]:
            if entry.published_ms is None:
                entry.due_ms = now_ms
                self._due.append(entry)

    # ── in the log ────────────────────────────────────────────────────────────────────────────────────────────────

    def took(self, group: str, record: Record, now_ms: float) -> HeardRecord | None:
        """The log has this record; returns what was kept under its id."""
        key = self._key_of(group, record)
        if key is None:
            return None
        entry = self.records.get(key)
        if entry is not None and key[3] > 0 and entry.published_ms is None:
            queue = self._senders[key[:2]]
            queue.carried = max(queue.carried, key[2:])
            queue.carried_ms = now_ms
        if key[3] == BEAT and entry is not None and rank_of(entry.record) > rank_of(record):  # type: ignore[arg-type]
            return None
        if entry is not None:
            if entry.published_ms is not None:
                self.way_ms += (min(now_ms - entry.published_ms, WAY_MS_MAX) - self.way_ms) / 16
            self._drop(entry)
        return entry

    def refused(self, group: str, record: Record, value: bytes) -> HeardRecord | None:
        """The log refused these bytes; returns what was kept, if it was the same."""
        key = self._key_of(group, record)
        entry = None if key is None else self.records.get(key)
        if entry is None or entry.value != value:
            return None
        self._drop(entry)
        return entry

    def ended(self, group: str) -> None:
        """Somebody's epoch ended, or began, in the log: look again at what waits in this group."""
        for entry in [one for one in self._waiting.get(group, []) if self._is_in_log(one.key, one.record)]:
            self._drop(entry)
        self._wake(group)

    def _drop(self, entry: HeardRecord) -> None:
        entry.gone = True
        key = entry.key
        group, sender, epoch, seq = key
        if self.records.get(key) is entry:
            del self.records[key]
            self.size -= entry.size
        if self._flying.get(key) is entry:
            del self._flying[key]
            self._flying_bytes -= len(entry.value)
        queue = self._senders.get((group, sender))
        if queue is not None:
            if seq > 0:
                queue.epochs[epoch] -= 1
                if not queue.epochs[epoch]:
                    del queue.epochs[epoch]
            elif seq == JOIN:
                queue.joins.pop(epoch, None)
            elif seq == LEAVE:
                queue.leaves.pop(epoch, None)
            if queue.is_empty and (group, sender, 0, BEAT) not in self.records and seq != BEAT:
                del self._senders[group, sender]
        self._on_gone(entry)
        if group in self._waiting:
            self._wake(group)

    def _wake(self, group: str) -> None:
        self._due += self._waiting.pop(group, ())

    # ── the spool, and looking ────────────────────────────────────────────────────────────────────────────────────

    def unspooled(self, older_ms: float) -> Iterator[HeardRecord]:
        """What was heard before this time and is not on the disk."""
        waiting = self._unspooled
        while waiting and (waiting[0].gone or waiting[0].heard_ms <= older_ms):
            entry = waiting.popleft()
            if not entry.gone:
                yield entry

    @property
    def oldest_heard_ms(self) -> float | None:
        """When the oldest record that is kept was heard; any thread may ask."""
        kept = list(self.records.values())  # a copy, because the thread that reads the log goes on meanwhile
        return kept[0].heard_ms if kept else None

    @property
    def flying(self) -> int:
        """How many records are on their way into the log."""
        return len(self._flying)

    def deadline_ms(self) -> float | None:
        """When `take` may have something, as far as known now."""
        return self._later[0][0] if self._later else None
