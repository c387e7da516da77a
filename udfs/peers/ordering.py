"""Puts the records of one group into order: the kernel, fed by a peer instead of a log.

A peer's offsets count what arrived here, so positions mean nothing to others and are left out. The log's time does not
pass here: no peer releases by time.
"""

from collections.abc import Iterable
from itertools import islice
from typing import Any, TypeAlias

from msgspec import UNSET

from precede.udfs.engine.abandon import pass_over
from precede.udfs.engine.held import Held
from precede.udfs.engine.outbox import TypedOutbox
from precede.udfs.engine.runs import Runs
from precede.udfs.engine.senders import sender_key
from precede.udfs.errors import Refused
from precede.udfs.holdback import Holdback
from precede.udfs.limits import ANY_SIZE, Limits
from precede.udfs.orders import ORDERS, Order
from precede.udfs.orders.two_clock import TwoClock
from precede.udfs.peers.directory import DEFAULT_ORDER
from precede.udfs.peers.events import Delivered, RecordRefused
from precede.udfs.records.messages import Create, Id, Message, Record, Who
from precede.udfs.records.strict import Malformed
from precede.udfs.records.wire import read
from precede.udfs.release.by_both_clocks import ByBothClocks

STAMPS = ("seen", "sent", "to", "time")

Outcome: TypeAlias = tuple[list[Delivered], list[RecordRefused]]
"""What one record made the kernel deliver and refuse."""


class _ByBothClocks(ByBothClocks):
    """At a peer a newcomer need not be above all that was delivered: unrelated messages differ from place to place."""

    __slots__ = ()

    def least_of_joiner(self) -> int:
        return 1


class _TwoClock(TwoClock):
    __slots__ = ()

    release_type = _ByBothClocks


class PeerKernel(Holdback):
    """Takes messages that were read before, and passes over what others have settled and forgotten."""

    def __init__(self, order: str) -> None:
        self.told = TypedOutbox()
        super().__init__(order=order, outbox=self.told, orders={**ORDERS, TwoClock.name: _TwoClock})
        self.told.limits = ANY_SIZE  # what was held is read again, and the limits may have changed since

    def take_limits(self, limits: Limits) -> None:
        self.limits = self.shared.limits = limits
        self._record_bytes_max = limits.record_bytes_max
        for group in (*self._groups.values(), *self._resting.values()):
            group.limits = limits

    def takes_read(self, group: str) -> bool:
        """Whether messages of this group may be taken as they were read: it is there, and nothing is verified."""
        known = self.look(group)
        return known is not None and known.plain_partition == 0

    def receive_read(self, values: list[bytes], records: list[Message], offset: int) -> int:
        """Take messages of one sender that follow each other, from this offset on, as long as each is delivered at
        once; returns how many. The one after these was taken too, and had another end: `told` has what it let go.

        A peer must read a record, and trim it, before it knows whether to take it. Partition and time are 0.
        """
        group = self.open(records[0].group)
        usual = group.deliver_next(values, records)
        receive, placed, refused = group.receive_message, self.told.placed, self.told.refused
        for at in range(usual, len(values)):
            record = records[at]
            receive(record, values[at], offset + at, 0)
            held = group.held
            if len(placed) != at - usual + 1 or refused or (held and (record.sender, record.epoch, record.seq) in held):
                del placed[: at - usual]
                return at
        self.clear()
        return len(values)

    def is_settled(self, group: str, id_: Id) -> bool:
        sender = self.open(group).senders.get(sender_key(id_[0], id_[1]))
        return sender is not None and id_[2] in sender

    def is_over(self, group: str, name: str, epoch: int) -> bool:
        """Whether nothing is waited for any more of a member's epoch that has ended."""
        known = self.open(group)
        sender = known.senders.get(sender_key(name, epoch))
        return sender is None or known.release.is_over(sender)

    def settled(self, group: str) -> dict[Who, Runs]:
        """What is delivered or abandoned at all its destinations, of each sender and epoch."""
        return {(one.name, one.epoch): one for one in self.open(group).senders.values()}

    def pass_over(
        self, group: str, settled: Iterable[tuple[Who, Runs]], *, time: int = 0, offset: int = 0
    ) -> list[tuple[Who, int, int]]:
        """Wait no longer for messages that are settled elsewhere and kept by no one; what waited for them goes on.

        For a peer that comes late: the log itself has no such messages. `time` is the linear time that the
        group has reached. Returns what is passed over, as (who, first, last).
        """
        known = self.open(group)
        known.release.catch_up(time)
        return [(who, first, last) for who, runs in settled for first, last in pass_over(known, *who, runs, offset, 0)]


def check_group(create: bytes | None, order: str) -> None:
    """Raise Refused if a group with this `create` record, or without one, needs the log.

    `order` is the one it has where the record names none.
    """
    try:
        record = None if create is None else read(create, ANY_SIZE)
    except Malformed as error:
        raise Refused(f"Its `create` record cannot be read: {error.reason}") from error
    if isinstance(record, Create):
        check_order(order if record.options.order is UNSET else record.options.order, record.options.conflicts)
        return
    check_order(order, None)
    if ORDERS[order].waits_for_members:
        raise Refused(f"A group by clocks ({order}) has members only by a `create` record, and this one has none.")


def check_order(order: Any, conflicts: Any) -> None:
    """Raise Refused if a group with this order and these conflicts needs the log."""
    if order not in ORDERS:
        raise Refused(f"There is no order {order!r}: choose one of {', '.join(ORDERS)}.")
    if ORDERS[order].needs_log:
        raise Refused(f"The order {order} is the log's own, so it needs the log: choose lamport for one sequence here.")
    if ORDERS[order].uses_conflicts and conflicts not in (None, UNSET) and conflicts:
        raise Refused(f"In the order {order}, declared conflicts need the log: leave them out, or use Kafka.")


class Ordering:
    """The kernel of one group, at one peer."""

    def __init__(self, group: str, name: str, order: str) -> None:
        self.group = group
        self.name = name
        self.kernel = PeerKernel(order=order)
        self._key = group.encode()
        self._offset = 0
        self._arrived_ms: dict[Id, float] = {}
        """When each held message came."""
        self.order: type[Order] = ORDERS[order]
        self._reads_once = False
        """Whether the kernel may have the very message that this peer has read; some orders change its stamps."""
        self._held_before = 0
        """How much the kernel held before the last record."""

    def feed(self, value: bytes, record: Record, now_ms: float) -> Outcome:
        """Take in a record; returns what is delivered here, and what is refused."""
        self._offset += 1
        self._held_before = self.kernel.held_growth
        if self.order.takes_apart and isinstance(record, Message):
            self.kernel.receive(value, self._key, 0, self._offset, 0)  # the others here need it as it came
        else:
            self.kernel.receive_record(record, value, self._key, 0, self._offset, 0)
        return self._take(now_ms, value, record)

    def feed_messages(
        self, values: list[bytes], records: list[Message], now_ms: float
    ) -> tuple[list[Delivered], Outcome | None]:
        """Take in messages, up to the first one that is not delivered at once.

        Returns those that were, and what became of the one after them, where there is one.
        """
        kernel = self.kernel
        if not self._reads_once or not kernel.takes_read(self.group):
            return [], self.feed(values[0], records[0], now_ms)
        self._held_before = kernel.held_growth
        count = kernel.receive_read(values, records, self._offset + 1)
        self._offset += min(count + 1, len(values))
        group = self.group
        pairs = islice(zip(values, records, strict=True), count)
        delivered = [Delivered(group, value, record, False, 0.0) for value, record in pairs]
        return delivered, None if count == len(values) else self._take(now_ms, values[count], records[count])

    def pass_over(
        self, settled: Iterable[tuple[Who, Runs]], time: int, now_ms: float
    ) -> tuple[list[tuple[Who, int, int]], list[Delivered]]:
        """Wait no longer for what others have settled and forgotten; returns that, and what is delivered now."""
        self._offset += 1
        passed = self.kernel.pass_over(self.group, settled, time=time, offset=self._offset)
        delivered, _ = self._take(now_ms)
        passed_ids = {(who, first, last) for who, first, last in passed}
        return passed, [
            one
            for one in delivered
            if not (one.is_abandoned and isinstance(one.record, Message) and _is_in(one.record, passed_ids))
        ]

    def adopt_order(self, order: type[Order]) -> None:
        """The group's `create` record has named its order."""
        self.order = order
        self._reads_once = not order.has_destinations

    def take_limits(self, limits: Limits) -> None:
        self.kernel.take_limits(limits)

    def is_settled(self, id_: Id) -> bool:
        return self.kernel.is_settled(self.group, id_)

    def is_over(self, name: str, epoch: int) -> bool:
        """Whether everything is here that still counts of a member's epoch that has ended."""
        return self.kernel.is_over(self.group, name, epoch)

    @property
    def has_begun(self) -> bool:
        return self.kernel.has_begun(self.group)

    def took_to_hold(self, record: Record) -> bool:
        """Whether the record that was fed last is held, and is for this peer."""
        if self.kernel.held_growth <= self._held_before or not isinstance(record, Message):
            return False
        return not self.order.has_destinations or (record.to is not UNSET and self.name in record.to)

    def is_held(self, id_: Id) -> bool:
        """Whether a message waits for its turn."""
        return id_ in self._arrived_ms

    def note_held(self, id_: Id, now_ms: float) -> None:
        """A message was taken in and not delivered."""
        self._arrived_ms[id_] = now_ms

    def held(self) -> list[Held]:
        """What waits here, and for what."""
        return [one for one in self.kernel.held(self.group) if one.destination in (None, self.name)]

    def waited_for(self) -> dict[Who, int]:
        """Of each sender the largest seq that is missing here."""
        found: dict[Who, int] = {}
        for one in self.held():
            for name, epoch, seq in one.missing:
                found[name, epoch] = max(seq, found.get((name, epoch), 0))
        return found

    @property
    def held_count(self) -> int:
        return len(self._arrived_ms)

    def _take(self, now_ms: float, value: bytes = b"", record: Record | None = None) -> Outcome:
        told = self.kernel.told
        delivered: list[Delivered] = []
        for one in told.placed:
            if one.labels.destination not in (None, self.name):
                continue
            arrived_ms = None if one.id is None else self._arrived_ms.pop(one.id, None)
            waited_ms = 0.0 if arrived_ms is None else now_ms - arrived_ms
            found = one.record if record is None or one.value != value else record
            delivered.append(Delivered(self.group, one.value, found, one.is_abandoned, waited_ms))
        refused: list[RecordRefused] = []
        for letter in told.refused:
            refused.append(RecordRefused(self.group, letter.id, letter.code, letter.reason))
            if letter.id is not None:
                self._arrived_ms.pop(letter.id, None)
        told.clear()
        return delivered, refused

    def dump(self) -> dict[str, Any]:
        """Everything that is kept, as plain data."""
        blob = self.kernel.dump().get(self._key)
        return {"offset": self._offset, "blob": blob, "order": self.order.name, "held": list(self._arrived_ms)}

    def load(self, dumped: dict[str, Any], now_ms: float) -> None:
        """Take what `dump` returned."""
        self._offset = dumped["offset"]
        self.adopt_order(ORDERS[dumped["order"]])
        if dumped["blob"] is not None:
            self.kernel.load({self._key: dumped["blob"]})
        self._arrived_ms = dict.fromkeys(dumped["held"], now_ms)


def begins(group: str, create: bytes) -> bool:
    """Whether the kernel takes this `create` record of a group."""
    kernel = PeerKernel(order=DEFAULT_ORDER)
    kernel.receive(create, group.encode(), 0, 1, 0)
    return not kernel.told.refused


def stamps_in(one: Delivered, order: str) -> dict[str, Any]:
    """What the stamps of a member observe of a delivered message."""
    record = one.record
    assert isinstance(record, Message)
    status = "abandoned" if one.is_abandoned else "delivered"
    fields = {"order": order, "status": status, "sender": record.sender, "epoch": record.epoch, "seq": record.seq}
    for name in STAMPS:
        found = getattr(record, name)
        if found is not UNSET:
            fields[name] = found
    return fields


def _is_in(record: Message, passed: set[tuple[Who, int, int]]) -> bool:
    who = record.sender, record.epoch
    return any(who == other and first <= record.seq <= last for other, first, last in passed)
