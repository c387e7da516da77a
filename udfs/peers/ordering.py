"""Puts the records of one group into order: the kernel, fed by a peer instead of a log.

A peer's offsets count what arrived here, so positions mean nothing to others and are left out. The log's time does not
pass here: no peer releases by time.
"""

from collections.abc import Iterable
from itertools import islice
from typing import Any, TypeAlias

import msgspec
from msgspec import UNSET

from precede.udfs.engine.held import Held as HeldMessage
from precede.udfs.engine.runs import Runs
from precede.udfs.limits import ANY_SIZE, Limits
from precede.udfs.orders import ORDERS, Order
from precede.udfs.peers.events import Delivered, RecordRefused
from precede.udfs.peers.fit_for_segment import DEFAULT_ORDER
from precede.udfs.peers.peer_kernel import PeerKernel
from precede.udfs.records.messages import Id, Message, Record, Who
from precede.udfs.records.wire import read

POSITION = b',"position":'
ABANDONED = b'"status":"abandoned"'
STAMPS = ("seen", "sent", "to", "time")


Outcome: TypeAlias = tuple[list[Delivered], list[RecordRefused]]
"""What one record made the kernel deliver and refuse."""


class _Letter(msgspec.Struct):
    """The fields of a dead letter that matter here."""

    code: str
    reason: str
    sender: str | None = None
    epoch: int | None = None
    seq: int | None = None

    @property
    def id(self) -> Id | None:
        if self.sender is None or self.epoch is None or self.seq is None:
            return None
        return self.sender, self.epoch, self.seq


class _Tail(msgspec.Struct):
    destination: str | None = None


_letters = msgspec.json.Decoder(_Letter)
_tails = msgspec.json.Decoder(_Tail)


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
        self.kernel.receive(value, self._key, 0, self._offset, 0)
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
        """Take records by these limits from now on."""
        self.kernel.take_limits(limits)

    def is_settled(self, id_: Id) -> bool:
        """Whether a message was delivered or abandoned."""
        return self.kernel.is_settled(self.group, id_)

    def is_over(self, name: str, epoch: int) -> bool:
        """Whether everything is here that still counts of a member's epoch that has ended."""
        return self.kernel.is_over(self.group, name, epoch)

    @property
    def has_begun(self) -> bool:
        """Whether anything of the group was accepted."""
        return next(iter(self.kernel.homes()), None) is not None

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

    def held(self) -> list[HeldMessage]:
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
        kernel = self.kernel
        delivered: list[Delivered] = []
        for entry in kernel.ordered:
            cut = entry.rfind(POSITION)
            tail = entry[cut + 1 :]
            if b'"destination":' in tail and _tails.decode(b"{" + tail).destination != self.name:
                continue
            raw = entry[:cut] + b"}"
            one = record if raw == value and record is not None else read(raw, ANY_SIZE)
            waited_ms = 0.0
            if isinstance(one, Message):
                arrived_ms = self._arrived_ms.pop((one.sender, one.epoch, one.seq), None)  # type: ignore[arg-type]
                waited_ms = 0.0 if arrived_ms is None else now_ms - arrived_ms
            delivered.append(Delivered(self.group, raw, one, ABANDONED in tail, waited_ms))
        refused: list[RecordRefused] = []
        for letter in map(_letters.decode, kernel.dead):
            refused.append(RecordRefused(self.group, letter.id, letter.code, letter.reason))
            if letter.id is not None:
                self._arrived_ms.pop(letter.id, None)
        kernel.clear()
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
    return not kernel.dead


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
