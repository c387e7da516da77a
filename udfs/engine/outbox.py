"""What the kernel has decided: ordered records, refusals and the job's own records, in order.

An `Outbox` is where the kernel puts it. There are two. `BytesOutbox` forms the bytes of the topics, for those who
publish. `TypedOutbox` lists objects, for those who want to know what happened: no one has to read the bytes again that
the kernel has just formed.
"""

from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial

from msgspec import UNSET, UnsetType

from precede.udfs.codes import Refusal
from precede.udfs.engine.held import HeldMessage
from precede.udfs.limits import Limits
from precede.udfs.records.messages import Id, Identity, LogRecord, Message, Record
from precede.udfs.records.published import EXCERPT_BYTES_MAX, DeadLetter, JobRecord, Topic, encode_dead_letter
from precede.udfs.records.strict import Malformed
from precede.udfs.records.wire import SPACE, encode_name, read


class Labels:
    """What all ordered records of one sequence have in common; a group has one sequence, or one per destination."""

    __slots__ = ("abandoned", "delivered", "destination", "group", "key", "order", "partition", "takes_apart")

    def __init__(
        self,
        key: bytes,
        group: str,
        order: str,
        partition: int,
        destination: str | None = None,
        *,
        takes_apart: bool = False,
    ) -> None:
        self.key = key
        self.group = group
        self.order = order
        self.takes_apart = takes_apart
        """Whether the kernel changes what it read of a message while it waits: `Order.takes_apart`."""
        self.partition = partition
        self.destination = destination
        form: Callable[[str, str, int], bytes] = ordered_form
        if destination is not None:
            form = partial(destination_form, destination=destination)
        self.delivered = form(order, "delivered", partition)
        self.abandoned = form(order, "abandoned", partition)


class Outbox:
    """Takes what the kernel decides; the caller of the kernel takes it from here, and clears."""

    __slots__ = ("duplicates", "held_growth", "limits", "own")

    def __init__(self) -> None:
        self.limits = Limits()
        """Those of the kernel, which sets them."""
        self.own: list[JobRecord] = []
        """What the job itself has to say: requests for repair, and records for the raw log."""
        self.duplicates = 0
        """How many exact copies were dropped."""
        self.held_growth = 0
        """By how much the number of held messages has grown since this was created; below 0 where it shrank."""

    def place(self, labels: Labels, one: HeldMessage, position: int, offset: int, now_ms: int) -> None:
        """A message, a stand-in (without a value) or a membership record gets a position in a sequence.

        `offset` and `now_ms` are those of the record that let it go.
        """
        raise NotImplementedError

    def refuse(
        self,
        refusal: Refusal,
        identity: Identity,
        came: LogRecord,
        destination: str | UnsetType = UNSET,
        record: Record | None = None,
    ) -> None:
        """A record is refused, or one destination of it; `record` is what was read of it, where that is at hand."""
        raise NotImplementedError

    def say(self, topic: Topic, key: bytes, value: bytes, offset: int) -> None:
        """Add one record of the job's own."""
        self.own.append(JobRecord(topic, key, value, offset))

    def clear(self) -> None:
        """Forget what the caller has taken."""
        raise NotImplementedError


class BytesOutbox(Outbox):
    """Parallel lists of keys and values, as they are published."""

    __slots__ = ("dead", "dead_codes", "dead_keys", "ordered", "ordered_keys")

    def __init__(self) -> None:
        super().__init__()
        self.ordered: list[bytes] = []
        self.ordered_keys: list[bytes] = []
        self.dead: list[bytes] = []
        self.dead_keys: list[bytes | None] = []
        self.dead_codes: list[str] = []

    def place(self, labels: Labels, one: HeldMessage, position: int, offset: int, now_ms: int) -> None:
        if one.value is None:
            head, form = stand_in_head(labels.group, one.id), labels.abandoned
        else:
            head, form = one.value[:-1], labels.delivered
        self.ordered.append(form % (head, position, one.offset, one.arrived_ms, offset, now_ms))
        self.ordered_keys.append(labels.key)

    def refuse(
        self,
        refusal: Refusal,
        identity: Identity,
        came: LogRecord,
        destination: str | UnsetType = UNSET,
        record: Record | None = None,  # noqa: ARG002  # a dead letter has the bytes
    ) -> None:
        """Write the dead letter."""
        letter = DeadLetter(
            code=refusal.code,
            reason=refusal.reason,
            group=identity.group,
            sender=identity.sender,
            epoch=identity.epoch,
            seq=identity.seq,
            destination=destination,
            partition=came.partition,
            offset=came.offset,
            arrived_ms=came.timestamp_ms,
        )
        self.dead.append(encode_dead_letter(letter, came.value))
        self.dead_codes.append(refusal.code)
        # A compressed record may have a key larger than Kafka accepts back, and the stream would be stuck at it.
        self.dead_keys.append(None if came.key is None else came.key[:EXCERPT_BYTES_MAX])

    def clear(self) -> None:
        self.own.clear()
        self.ordered.clear()
        self.ordered_keys.clear()
        self.dead.clear()
        self.dead_keys.clear()
        self.dead_codes.clear()


class TypedOutbox(Outbox):
    """What was placed and what was refused, as objects."""

    __slots__ = ("placed", "refused")

    def __init__(self) -> None:
        super().__init__()
        self.placed: list[PlacedRecord] = []
        self.refused: list[RefusedRecord] = []

    def place(self, labels: Labels, one: HeldMessage, position: int, offset: int, now_ms: int) -> None:
        self.placed.append(PlacedRecord(labels, one, position, offset, now_ms, self.limits))

    def refuse(
        self,
        refusal: Refusal,
        identity: Identity,
        came: LogRecord,
        destination: str | UnsetType = UNSET,
        record: Record | None = None,
    ) -> None:
        self.refused.append(RefusedRecord(refusal, identity, came, destination, record, self.limits))

    def clear(self) -> None:
        self.own.clear()
        self.placed.clear()
        self.refused.clear()


class PlacedRecord:
    """A record that got a position: what an ordered record says, in types."""

    __slots__ = (
        "_limits",
        "_record",
        "_value",
        "arrived_ms",
        "id",
        "is_abandoned",
        "labels",
        "offset",
        "position",
        "released_ms",
        "released_offset",
    )

    def __init__(
        self, labels: Labels, one: HeldMessage, position: int, offset: int, now_ms: int, limits: Limits
    ) -> None:
        self.labels = labels
        """Its group, order, partition and destination."""
        self.id: Id | None = one.id if one.id[2] else None
        """None for a membership record."""
        self.is_abandoned = one.value is None
        """Whether it stands for a message that the group gave up."""
        self.position = position
        self.offset = one.offset
        self.arrived_ms = one.arrived_ms
        self.released_offset = offset
        self.released_ms = now_ms
        self._value = one.value
        self._record: Record | None = None if labels.takes_apart else one.message
        self._limits = limits

    @property
    def value(self) -> bytes:
        """The raw record, byte for byte; of a stand-in one without data and stamps."""
        if self._value is None:
            assert self.id is not None
            self._value = stand_in_head(self.labels.group, self.id) + b"}"
        return self._value

    @property
    def record(self) -> Record:
        """What was read of it. It is read again where the kernel did not keep that, as of most held messages."""
        if self._record is None:
            self._record = read(self.value, self._limits)
        return self._record


class RefusedRecord:
    """A record that will never be delivered, or not at one destination: what a dead letter says, in types."""

    __slots__ = ("_limits", "_record", "came", "code", "destination", "identity", "reason")

    def __init__(
        self,
        refusal: Refusal,
        identity: Identity,
        came: LogRecord,
        destination: str | UnsetType,
        record: Record | None,
        limits: Limits,
    ) -> None:
        self.code = refusal.code
        self.reason = refusal.reason
        self.identity = identity
        """Group, sender, epoch and seq, as far as they can be read."""
        self.came = came
        """The record as the log had it; a message that was held before is as it was read, without space around it."""
        self.destination = None if isinstance(destination, UnsetType) else destination
        self._record = record
        self._limits = limits

    @property
    def id(self) -> Id | None:
        """The id, where it can be read; of a heartbeat it has the seq that its sender will use next."""
        one = self.identity
        return None if one.sender is None or one.epoch is None or one.seq is None else (one.sender, one.epoch, one.seq)

    @property
    def record(self) -> Record | None:
        """What was read of it; None where it cannot be read."""
        value = self.came.value
        if self._record is None and value is not None and len(value) <= self._limits.record_bytes_max:
            with suppress(Malformed):
                self._record = read(value.strip(SPACE), self._limits)
        return self._record

    @property
    def is_message(self) -> bool:
        """Whether it is a message, and can be read."""
        return isinstance(self.record, Message)


@cache
def ordered_form(order: str, status: str, partition: int) -> bytes:
    """An ordered record without its numbers; all groups share it, because every message needs it."""
    return _form(f'"order":"{order}","status":"{status}","partition":{partition}')


def destination_form(order: str, status: str, partition: int, destination: str) -> bytes:
    """The same for one destination of one group."""
    name = encode_name(destination).replace("%", "%%")
    return _form(f'"order":"{order}","status":"{status}","destination":{name},"partition":{partition}')


def _form(fixed: str) -> bytes:
    end = '"offset":%d,"arrived_ms":%d,"released_offset":%d,"released_ms":%d}'
    return f'%b,"position":%d,{fixed},{end}'.encode()


def stand_in_head(group: str, id_: Id) -> bytes:
    """The beginning of the record that stands for an abandoned message."""
    name, epoch, seq = id_
    return f'{{"group":{encode_name(group)},"sender":{encode_name(name)},"epoch":{epoch},"seq":{seq}'.encode()
