"""The kernel as one object: takes the records of a log, of any groups, and says what is delivered and what is not.

It does no I/O: the caller owns the network, the disk and the clock. The caller's duties: hand over the records of each
partition in offset order, each once, with the time the log took it. Bad input is data and becomes a dead letter; it
never raises.

A group that records reach is decoded; all others are kept as blobs, and each is decoded when it is first touched. For a
caller that writes the states of groups, the kernel remembers which ones changed since they were written.
"""

from collections.abc import Container, Iterator, Mapping, MutableMapping
from operator import attrgetter

from msgspec import UNSET

from precede.udfs import codes, passing_time
from precede.udfs.codes import Refusal
from precede.udfs.engine.abandon import receive_abandon
from precede.udfs.engine.group import Group, Shared
from precede.udfs.engine.held import Held
from precede.udfs.engine.inspection import OpenGap, held_messages, oldest_and_gaps, open_gaps
from precede.udfs.engine.members import create, evict, is_copy, join, leave, note_effect, receive_heartbeat
from precede.udfs.engine.outbox import BytesOutbox, Outbox, TypedOutbox
from precede.udfs.engine.signers import judge
from precede.udfs.engine.snapshot import deadline_ms, outline, restore, snapshot
from precede.udfs.engine.state import NO_OPTIONS
from precede.udfs.limits import Limits, Patience
from precede.udfs.orders import ORDERS, Order
from precede.udfs.partitioner import DEFAULT_PARTITIONER, check_partitioner, partition_of, where_it_belongs
from precede.udfs.records.messages import (
    Abandon,
    Create,
    Evict,
    Heartbeat,
    Identity,
    Join,
    Leave,
    LogRecord,
    Message,
    Record,
    Tick,
    identity_of,
    own_key,
)
from precede.udfs.records.strict import Malformed
from precede.udfs.records.wire import SPACE, read

OPENING, CLOSING = b"{}"
NOBODY = Identity()
KEYED_TICK = Refusal(codes.WRONG_KEY, "A tick is for all groups of its partition and has no key.")


class OwnKey:
    """Stands for a key that is not known: the record's own group is used instead."""


OWN_KEY = OwnKey()


class Holdback:
    """The ordering state of many groups; a group without a `create` record has the default order and is open.

    `partitions` is how many the log has: then a group lives where its key says by `partitioner`, and records in other
    partitions are refused. With None, it lives in the partition of its first accepted record.
    """

    def __init__(
        self,
        *,
        order: str = "s_b",
        limits: Limits | None = None,
        patience: Patience | None = None,
        partitions: int | None = None,
        partitioner: str = DEFAULT_PARTITIONER,
        home: bool = True,
        blobs: MutableMapping[bytes, bytes] | None = None,
        outbox: Outbox | None = None,
        orders: Mapping[str, type[Order]] = ORDERS,
    ) -> None:
        """`blobs` is where groups that are not decoded are kept; by default in memory.

        `outbox` takes what is decided. By default that is bytes to be published, in `ordered`, `dead` and so on. Who
        wants to know rather than to publish gives a `TypedOutbox` and looks into it; these names are missing then.
        """
        if order not in orders:
            raise ValueError(f"there is no order {order!r}: choose one of {', '.join(orders)}")
        if partitions is not None and partitions < 1:
            raise ValueError(f"a log has at least one partition, not {partitions}")
        self.order = order
        self.limits = Limits() if limits is None else limits
        self.patience = Patience() if patience is None else patience
        self.partitions = partitions
        self.partitioner = check_partitioner(partitioner)
        self.outbox: Outbox = BytesOutbox() if outbox is None else outbox
        self.shared = Shared(self.limits, orders, self.outbox)
        self._groups: dict[str, Group] = {}
        """The groups that were touched, by name, because a record brings the name."""
        self._resting: dict[str, Group] = {}
        """Decoded groups that were not touched since the last `rest`."""
        self._blobs = {} if blobs is None else blobs
        """What was loaded; of a group that was touched since, the one in `_groups` counts."""
        self._covered: dict[bytes, int] = {}
        """Groups whose state reaches further than the records that come: those below this offset are passed over."""
        self.changed: dict[bytes, tuple[int, int, int]] = {}
        """The groups reached since `note_written`: partition, offset and time of the first record that reached it."""
        self._deadlines: dict[bytes, int] | None = None
        """When time may matter to the groups that are not decoded; looked up when the first tick comes."""
        self.home = home
        """Whether records without a key are refused here: every shard sees them, because they may be ticks."""
        if isinstance(self.outbox, BytesOutbox):
            self.ordered = self.outbox.ordered
            self.ordered_keys = self.outbox.ordered_keys
            self.dead = self.outbox.dead
            self.dead_keys = self.outbox.dead_keys
            self.dead_codes = self.outbox.dead_codes
        self.own = self.outbox.own
        """What the job itself has to say: requests for repair, and records for the raw log."""
        self.clear = self.outbox.clear
        self._record_bytes_max = self.limits.record_bytes_max

    @property
    def duplicates(self) -> int:
        """How many exact copies were dropped."""
        return self.outbox.duplicates

    @property
    def held_growth(self) -> int:
        """By how much the number of held messages has grown since created."""
        return self.outbox.held_growth

    def receive(
        self,
        value: bytes | None,
        key: bytes | OwnKey | None = OWN_KEY,
        partition: int = 0,
        offset: int = 0,
        timestamp_ms: int = 0,
    ) -> None:
        """Take one log record; what it lets go is appended to `ordered` and `dead`. Offsets must grow."""
        if value is None or len(value) > self._record_bytes_max:
            came = LogRecord(value, None if isinstance(key, OwnKey) else key, partition, offset, timestamp_ms)
            return self._refuse_unread(came)
        trimmed = value
        if not value or value[0] != OPENING or value[-1] != CLOSING:
            if not isinstance(value, bytes):
                raise TypeError(f"a record's value must be bytes, not {type(value).__name__}: encode it as UTF-8")
            trimmed = value.strip(SPACE)
        try:
            record = read(trimmed, self.limits)
        except Malformed as error:
            refusal = Refusal(codes.MALFORMED, error.reason)
            if isinstance(key, OwnKey):
                key = own_key(error.identity.group)
            return self._refuse(refusal, error.identity, LogRecord(value, key, partition, offset, timestamp_ms))
        group = self._groups.get(record.group)  # type: ignore[arg-type]
        if group is None or (key is not OWN_KEY and key != group.key) or partition != group.plain_partition:
            if isinstance(key, OwnKey):
                key = own_key(record.group)
            found = self._find_group(record, LogRecord(value, key, partition, offset, timestamp_ms))
            if found is None:
                return None
            group = found
        if record.__class__ is Message:
            group.receive_message(record, trimmed, offset, timestamp_ms)
        elif record.__class__ is Tick:  # with a key, as where its group was not touched before
            came = LogRecord(value, group.key, partition, offset, timestamp_ms)
            self._refuse(KEYED_TICK, identity_of(record), came, record)
        else:
            self._receive_control(group, record, trimmed, offset, timestamp_ms)
        return None

    def receive_record(
        self,
        record: Record,
        value: bytes,
        key: bytes | OwnKey | None = OWN_KEY,
        partition: int = 0,
        offset: int = 0,
        timestamp_ms: int = 0,
    ) -> None:
        """Like `receive`, for a caller that has read the record already, by the same limits; `value` is trimmed.

        Some orders take the stamps of what they hold apart: who needs the record as it came reads another one.
        """
        if isinstance(key, OwnKey):
            key = own_key(record.group)
        came = LogRecord(value, key, partition, offset, timestamp_ms)
        group = self._groups.get(record.group)  # type: ignore[arg-type]
        if group is None or key != group.key or partition != group.plain_partition:
            group = self._find_group(record, came)
        if group is None:
            return
        if record.__class__ is Message:
            group.receive_message(record, value, offset, timestamp_ms)
        elif record.__class__ is Tick:
            self._refuse(KEYED_TICK, identity_of(record), came, record)
        else:
            self._receive_control(group, record, value, offset, timestamp_ms)

    def refuse(self, value: bytes, reason: str, offset: int) -> None:
        """Make a dead letter of what the caller could not even read as a record of the log."""
        self.outbox.refuse(Refusal(codes.MALFORMED, reason), NOBODY, LogRecord(value, None, 0, offset, 0))

    def _refuse_unread(self, came: LogRecord) -> None:
        """Refuse a record without reading it."""
        if came.value is None:
            refusal = Refusal(codes.MALFORMED, "The record has no value.")
        else:
            most = self.limits.record_bytes_max
            refusal = Refusal(codes.OVERSIZE, f"The record has {len(came.value)} bytes, and {most} are allowed.")
        self._refuse(refusal, NOBODY, came)

    def _find_group(self, record: Record, came: LogRecord) -> Group | None:
        """The group of a record that is not in its usual place, or must be signed; None where the record ends here."""
        group = None
        refusal = None
        if record.__class__ is Tick:
            if came.key is None:
                self._tick(came.partition, came.offset, came.timestamp_ms)
                return None
            refusal = KEYED_TICK
        elif came.key is None:
            refusal = Refusal(codes.WRONG_KEY, "The record has no Kafka key; it must be the group in UTF-8.")
        elif record.group.encode() != came.key:  # type: ignore[union-attr]
            refusal = Refusal(codes.WRONG_KEY, "The Kafka key is not the record's group.")
        else:
            group = self._group(came.key, came.partition)
            if came.partition != group.partition:
                refusal = Refusal(codes.WRONG_PARTITION, self._where_it_lives(group))
            elif self._is_covered(came.key, came.offset):
                return None
            elif group.keyring is not None:
                refusal = judge(group, group.keyring, record, came.value.strip(SPACE))  # type: ignore[union-attr]  # it was read
        if refusal is None:
            assert group is not None
            self._note_change(group, came.offset, came.timestamp_ms)
            return group
        self._refuse(refusal, identity_of(record), came, record)
        return None

    def _refuse(self, refusal: Refusal, identity: Identity, came: LogRecord, record: Record | None = None) -> None:
        if came.key is not None or self.home:
            self.outbox.refuse(refusal, identity, came, UNSET, record)

    def _tick(self, partition: int, offset: int, timestamp_ms: int) -> None:
        """Time passes for every group of a partition; a group where nothing is due is neither decoded nor changed."""
        if self._deadlines is None:
            deadlines = ((key, deadline_ms(blob)) for key, blob in self._blobs.items())
            self._deadlines = {key: due_ms for key, due_ms in deadlines if due_ms is not None}
        for key in [key for key, due_ms in self._deadlines.items() if due_ms <= timestamp_ms]:
            del self._deadlines[key]
            self._group(key, partition)
        holding = self.shared.holding
        for group in sorted(holding, key=attrgetter("key")):
            due_ms = passing_time.deadline_ms(group, self.patience)
            if due_ms is None:
                if not group.held:
                    holding.discard(group)
            elif due_ms <= timestamp_ms and group.partition == partition and not self._is_covered(group.key, offset):
                self._note_change(group, offset, timestamp_ms)
                passing_time.pass_time(group, self.patience, offset, timestamp_ms)

    def _where_it_lives(self, group: Group) -> str:
        """For a record of this group in another partition."""
        if self.partitions is None:
            return f"The group lives in partition {group.partition}."
        return where_it_belongs(group.partition, self.partitions, self.partitioner)

    def _receive_control(self, group: Group, record: Record, value: bytes, offset: int, now_ms: int) -> None:
        """Membership, abandoning, signs of life."""
        if is_copy(group, record, value):
            self.outbox.duplicates += 1
            return
        refusal: Refusal | None
        match record:
            case Heartbeat():
                refusal = receive_heartbeat(group, record, offset, now_ms)
            case Abandon():
                refusal = receive_abandon(group, record, offset, now_ms)
            case Create():
                refusal = create(group, record)
            case Join():
                refusal = join(group, record)
            case Leave():
                refusal = leave(group, record)
            case Evict():
                refusal = evict(group, record)
        if refusal is not None:
            group.refuse(refusal, record, value, offset, now_ms)
            return
        group.deadline = None
        if not isinstance(record, Abandon | Heartbeat):
            note_effect(group, record, value)
            group.begun = True
            group.release.deliver_control(value, offset, now_ms)
            if isinstance(record, Join):
                group.release.joined(record, offset, now_ms)
            else:
                group.release.advance(offset, now_ms)

    # ── looking and keeping ───────────────────────────────────────────────────────────────────────────────────────

    def held(self, group: str | None = None) -> Iterator[Held]:
        """What is held now, group by group in order of name, and what each message waits for."""
        for known in self._look(group):
            yield from held_messages(known)

    def gaps(self, group: str | None = None) -> Iterator[OpenGap]:
        """What is missing now, group by group in order of name, and the messages that wait for it."""
        for known in self._look(group):
            yield from open_gaps(known)

    def load(
        self,
        blobs: Mapping[bytes, bytes],
        covered: Mapping[bytes, int] | None = None,
        deadlines: Mapping[bytes, int] | None = None,
    ) -> None:
        """Take the state of groups, by key, as `dump` returned it; each is decoded when it is first touched.

        `covered` says, for groups whose state reaches further than the records that come next, up to which offset:
        what comes for them below it, ticks too, is passed over. `deadlines` says, where it is known, when time may
        matter to which groups; without it the first tick looks at the states of all.
        """
        self._blobs.update(blobs)
        self._covered.update(covered or {})
        self._deadlines = None if deadlines is None else dict(deadlines)

    def dump(self) -> dict[bytes, bytes]:
        """The state of all groups, by key; only those that were touched are encoded again. The dict is the caller's."""
        blobs = dict(self._blobs)
        for group in self._decoded():
            if group.begun:
                blobs[group.key] = self._snapshot(group)
        return blobs

    def close(self) -> None:
        """Let go of all groups at once; without this, only looking for cycles would free them."""
        for group in self._decoded():
            group.close()
        self._groups.clear()
        self._resting.clear()
        self.shared.holding.clear()

    # ── one group ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _group(self, key: bytes, partition: int) -> Group:
        """The group of this key: known, to be decoded, or new."""
        name = key.decode()
        group = self._groups.get(name)
        if group is not None and not group.begun and self.partitions is None:
            del self._groups[name]  # nothing of it was accepted, so it does not live anywhere yet
            group = None
        if group is None and name in self._resting:
            group = self._groups[name] = self._resting.pop(name)
        if group is None:
            blob = self._blobs.get(key)
            if blob is not None:
                group = restore(key, blob, self.shared)
            else:
                if self.partitions is not None:
                    partition = partition_of(key, self.partitions, self.partitioner)
                group = Group(key, order=self.order, partition=partition, shared=self.shared)
                group.plain_partition = None  # this record may be refused, and the first accepted one is a change
            self._groups[name] = group
        return group

    def decoded_group(self, key: bytes) -> Group | None:
        """The group, to be looked at; None where it is put away, or new."""
        name = key.decode()
        return self._groups.get(name) or self._resting.get(name)

    def _is_covered(self, key: bytes, offset: int) -> bool:
        """Whether the group's state has everything up to this offset of its partition already."""
        covered = self._covered.get(key)
        if covered is None:
            return False
        if offset < covered:
            return True
        del self._covered[key]
        return False

    # ── looking ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def group(self, name: str) -> Group | None:
        """One group, to be looked at and not touched; None where nothing of it was accepted.

        One that is put away stays so: this decodes a copy. Who looks often calls `look`.
        """
        return next((group for group in self._look(name) if group.begun), None)

    def look(self, name: str) -> Group | None:
        """One group, to be looked at often: it is decoded from here on; None where nothing of it has come."""
        found = self._groups.get(name) or self._resting.get(name)
        if found is not None:
            return found
        key = name.encode()
        return self._group(key, 0) if key in self._blobs else None

    def open(self, name: str) -> Group:
        """One group, new where nothing of it has come; for a caller without a log, which also changes groups itself."""
        return self._group(name.encode(), 0)

    def names(self) -> list[str]:
        """The groups of which anything was accepted, in order."""
        return [name for name in [key.decode() for key in self._keys()] if self.has_begun(name)]

    def has_begun(self, name: str) -> bool:
        """Whether anything of a group was accepted; it is not decoded for that."""
        found = self._groups.get(name) or self._resting.get(name)
        return name.encode() in self._blobs if found is None else found.begun

    def is_created(self, name: str) -> bool:
        """Whether a `create` record began a group; it is not decoded for that."""
        found = self._groups.get(name) or self._resting.get(name)
        if found is not None:
            return found.options is not NO_OPTIONS
        key = name.encode()
        return key in self._blobs and outline(key, self._blobs[key]).options is not None

    def is_covered(self, key: bytes, offset: int) -> bool:
        """Whether the state that was loaded has this record already."""
        return bool(self._covered) and offset < self._covered.get(key, 0)

    def _keys(self) -> list[bytes]:
        """The keys of all groups, in order."""
        return sorted({group.key for group in self._decoded()} | self._blobs.keys())

    def _decoded(self) -> Iterator[Group]:
        yield from self._groups.values()
        yield from self._resting.values()

    def _look(self, group: str | None) -> Iterator[Group]:
        """One group or all, to be looked at and not touched."""
        for key in self._keys() if group is None else [group.encode()]:
            known = self.decoded_group(key)
            if known is None and key in self._blobs:
                known = restore(key, self._blobs[key], Shared(self.limits, self.shared.orders, TypedOutbox()))
            if known is not None:
                yield known

    def waiting_of(self, key: bytes) -> tuple[int, int, int] | None:
        """When the oldest held message arrived, how many gaps there are, and how many are held; None if none is."""
        for group in self._look(key.decode()):
            if group.held:
                return (*oldest_and_gaps(group), len(group.held))
        return None

    def note_waiting(self, waiting: dict[bytes, tuple[int, int, int]]) -> None:
        """Update, for the groups that were touched, what they wait for: see `waiting_of`."""
        for group in self._decoded():
            if group.held:
                waiting[group.key] = (*oldest_and_gaps(group), len(group.held))
            else:
                waiting.pop(group.key, None)

    # ── what changed ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _note_change(self, group: Group, offset: int, now_ms: int) -> None:
        """The first change since the state was written; what follows in this group is not looked at any more."""
        self.changed.setdefault(group.key, (group.partition, offset, now_ms))
        group.take_at_once()

    def note_written(self, key: bytes) -> None:
        """The state of this group is kept elsewhere as it is now: its next record counts as a change again."""
        self.changed.pop(key, None)
        group = self.decoded_group(key)
        if group is not None:
            group.plain_partition = None

    def forget_changes(self) -> None:
        """For callers that do not write state: do not remember more of what changed."""
        self.changed.clear()

    def take_changes(self) -> dict[bytes, tuple[int, int, int]]:
        """What `changed` has of groups with a state; of the others, the next record is a change again."""
        changed, self.changed = self.changed, {}
        for key in list(changed):
            group = self.decoded_group(key)
            if group is not None and not group.begun:
                del changed[key]
                group.plain_partition = None
        return changed

    def state_of(self, key: bytes) -> bytes | None:
        """The state of one group; None where nothing of it was accepted."""
        group = self.decoded_group(key)
        if group is None:
            return self._blobs.get(key)
        return self._snapshot(group) if group.begun else None

    def _snapshot(self, group: Group) -> bytes:
        return snapshot(group, passing_time.deadline_ms(group, self.patience))

    def covered(self) -> dict[bytes, int]:
        """The groups that still pass over records, and up to which offset."""
        return self._covered.copy()

    # ── putting away ──────────────────────────────────────────────────────────────────────────────────────────────────

    def rest(self, unwritten: Container[bytes] | None = None) -> int:
        """Put away, as blobs, the groups that no record reached since the last call but one; how many they are.

        Called now and then, this bounds how many groups are decoded at the same time. With `unwritten` only the groups
        that are not in it are put away, and `blobs` has their states as they are now.
        """
        put_away = 0
        stay: dict[str, Group] = {}
        for name, group in self._resting.items():
            if unwritten is not None and group.key in unwritten:
                stay[name] = group
                continue
            self.shared.holding.discard(group)
            if group.begun:
                due_ms = passing_time.deadline_ms(group, self.patience)
                if unwritten is None:
                    self._blobs[group.key] = snapshot(group, due_ms)
                if due_ms is not None and self._deadlines is not None:
                    self._deadlines[group.key] = due_ms
                put_away += 1
            group.close()
        self._resting, self._groups = stay | self._groups, {}
        return put_away

    @property
    def decoded(self) -> int:
        """How many groups are decoded now."""
        return len(self._groups) + len(self._resting)
