"""The kernel as one object: takes the records of a log, of any groups, and says what is delivered and what is not.

It does no I/O: the caller owns the network, the disk and the clock. The caller's duties: hand over the records of each
partition in offset order, each once, with the time the log took it. Bad input is data and becomes a dead letter; it
never raises.
"""

from collections.abc import Iterator, Mapping, MutableMapping
from operator import attrgetter

from msgspec import UNSET

from precede.udfs import codes
from precede.udfs.analysis.inspection import OpenGap, held_messages, open_gaps
from precede.udfs.codes import Refusal
from precede.udfs.engine.group import Group
from precede.udfs.engine.held import Held
from precede.udfs.engine.outbox import BytesOutbox, Outbox
from precede.udfs.engine.snapshot import deadline_ms
from precede.udfs.kept_groups import KeptGroups
from precede.udfs.limits import Limits
from precede.udfs.membership import copies
from precede.udfs.membership.abandon import receive_abandon
from precede.udfs.membership.heartbeats import receive_heartbeat
from precede.udfs.membership.keyring import judge
from precede.udfs.membership.members import create, evict, join, leave
from precede.udfs.orders import ORDERS, Order
from precede.udfs.partitioner import DEFAULT_PARTITIONER, where_it_belongs
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
from precede.udfs.ticks import tick as passing_time
from precede.udfs.ticks.patience import Patience

OPENING, CLOSING = b"{}"
NOBODY = Identity()
KEYED_TICK = Refusal(codes.WRONG_KEY, "A tick is for all groups of its partition and has no key.")


class OwnKey:
    """Stands for a key that is not known: the record's own group is used instead."""


OWN_KEY = OwnKey()


class Holdback(KeptGroups):
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
        super().__init__(
            order,
            Limits() if limits is None else limits,
            Patience() if patience is None else patience,
            partitions,
            partitioner,
            {} if blobs is None else blobs,
            orders,
            BytesOutbox() if outbox is None else outbox,
        )
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
        if copies.is_copy(group, record, value):
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
            copies.note(group, record, value)
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
