"""What a peer says in one group: its stamps, its seqs and heartbeats, and what it knows of the group.

Own records are made here once and never change. A seq that was used is never used again: the state is taken over by a
later start only if that was the last one; otherwise it comes with a new epoch (segment.py).
"""

from typing import Any, Protocol

import msgspec
from msgspec import UNSET

from precede.udfs.errors import Refused
from precede.udfs.limits import Limits
from precede.udfs.member.knowledge import Knowledge
from precede.udfs.orders import Order
from precede.udfs.orders.order import Stamps
from precede.udfs.peers.events import Delivered
from precede.udfs.peers.ordering import stamps_in
from precede.udfs.records.messages import Heartbeat, Id, Join, Message, Record

RECORD_BYTES_MAX = Limits().record_bytes_max
HEARTBEAT_LAG_MS = 2.0
"""A clock that was moved by others is told to them after this time, once for all that arrives in it."""
HEARTBEAT_MS = 2_000.0
"""Where members wait for each other's clocks, each is told this often while anything is said or held."""


class Signer(Protocol):
    """Signs the records of one member."""

    public_key: str

    def __call__(self, record: bytes) -> bytes:
        """The record with its signature."""


class Speaking:
    """The own half of one group."""

    def __init__(self, group: str, name: str, epoch: int, order: type[Order], signer: Signer | None) -> None:
        self.group = group
        self.name = name
        self.epoch = epoch
        self.order = self._default_order = order
        self.knowledge = Knowledge()
        self.stamps: Stamps = order.stamps_of(name, epoch)
        self.signer = signer
        self._head = self._head_of_messages()
        self.promised = 0
        """The least time of the next own message, as the others know it."""
        self.heartbeat_ms: float | None = None
        """When to tell the others the own clock."""

    @property
    def time(self) -> int:
        """The own linear time; 0 if the order has none."""
        return self.stamps.time

    @property
    def observes(self) -> bool:
        """Whether what is delivered or accepted moves the own stamps."""
        return self.stamps.observes

    def adopt_order(self, order: type[Order]) -> None:
        """The group has another order than it seemed: stamp by that one, with what was kept so far."""
        kept = self.stamps.dump()
        self.order = order
        self.stamps = order.stamps_of(self.name, self.epoch)
        self.stamps.load(kept)

    def begin_epoch(self, epoch: int) -> None:
        """Begin again in a larger epoch; what was observed before still counts."""
        kept = self.stamps.dump()
        self.epoch = epoch
        self.stamps = self.order.stamps_of(self.name, epoch)
        self.stamps.load(kept)
        self.stamps.seq = 0
        self.promised = 0
        self._head = self._head_of_messages()

    # ── records ───────────────────────────────────────────────────────────────────────────────────────────────────

    def message(
        self,
        data: bytes,
        after: list[Id],
        to: list[str] | None,
        object_: dict[str, Any] | None,
        meta: bytes | None,
        clock_ms: int,
    ) -> tuple[Id, bytes]:
        """The next own message. Raises Refused, and then no seq is used, if it would be too large."""
        size = len(data) + 400 * (len(after) + len(to or ())) + 2_000
        kept = self.stamps.dump() if self.observes or size > RECORD_BYTES_MAX else None  # stamps may be large
        stamp = self.stamps.next_fields(after=after, to=to or [], clock_ms=clock_ms)
        if after:
            stamp.setdefault("after", after)
        if to is not None:
            stamp["to"] = to
        if object_ is not None:
            stamp["object"] = object_
        if meta is not None:
            stamp["meta"] = msgspec.Raw(meta)
        stamp_text = b"," + msgspec.json.encode(stamp)[1:-1] if stamp else b""
        value = b'%b%d%b,"data":%b}' % (self._head, self.stamps.seq, stamp_text, data)
        if self.signer is not None:
            value = self.signer(value)
        if len(value) > RECORD_BYTES_MAX:
            if kept is not None:
                self.stamps.load(kept)
            raise Refused(
                f"The record has {len(value):,} bytes, and {RECORD_BYTES_MAX:,} are allowed: send less at once."
            )
        self.promised = max(self.promised, self.time)
        return (self.name, self.epoch, self.stamps.seq), value

    def control(self, fields: dict[str, Any]) -> bytes:
        """A record of these fields, signed if the member has a key."""
        value = msgspec.json.encode({"group": self.group, **fields})
        return value if self.signer is None else self.signer(value)

    def _head_of_messages(self) -> bytes:
        """What all messages of this epoch begin with."""
        fields = {"group": self.group, "sender": self.name, "epoch": self.epoch}
        return msgspec.json.encode(fields)[:-1] + b',"seq":'

    def join(self) -> bytes:
        """The record by which this member enters."""
        fields: dict[str, Any] = {"kind": "join", "sender": self.name, "epoch": self.epoch}
        if self.order.waits_for_members:
            fields["time"] = self.time
        if self.signer is not None:
            fields["key"] = self.signer.public_key
        return self.control(fields)

    def leave(self) -> bytes:
        """The record by which this member leaves; what it said so far counts."""
        return self.control({"kind": "leave", "sender": self.name, "epoch": self.epoch, "last": self.stamps.seq})

    def heartbeat(self, clock_ms: int, now_ms: float) -> bytes:
        """The record that tells the own clock."""
        value = self.control(self.stamps.heartbeat(clock_ms=clock_ms))
        self.promised = self.time
        self.heartbeat_ms = now_ms + HEARTBEAT_MS
        return value

    # ── observing ─────────────────────────────────────────────────────────────────────────────────────────────────

    def delivered(self, one: Delivered) -> None:
        """Take in a message that was delivered here."""
        record = one.record
        if not isinstance(record, Message):
            return
        if not self.observes:
            return
        stamps = self.stamps
        if stamps.time:
            if record.time is not UNSET and record.time > self.knowledge.time:
                self.knowledge.time = record.time
                stamps.catch_up(record.time)
            return
        if self.order.has_destinations:
            self.knowledge.settle((record.sender, record.epoch, record.seq))  # type: ignore[arg-type]
        if not one.is_abandoned:
            stamps.observe(stamps_in(one, self.order.name))

    def learn(self, value: bytes) -> bool:
        """Take in a membership record that took effect; returns whether the view changed."""
        before = dict(self.knowledge.view)
        found = msgspec.json.decode(value)
        order = self.order.name
        if found["kind"] == "create":
            order = found.get("options", {}).get("order", self._default_order.name)
        self.knowledge.learn({**found, "order": order})
        return self.knowledge.view != before

    def accepted(self, record: Record, now_ms: float) -> None:
        """The kernel took a record of somebody: its clock moves the own one."""
        if not self.stamps.time or not isinstance(record, Message | Heartbeat | Join):
            return
        if record.time is UNSET or record.sender == self.name:
            return
        if not isinstance(record, Heartbeat):  # a heartbeat that moved a clock would cause another one, for ever
            self.stamps.catch_up(record.time)
        if self.time > self.promised:
            self.tell_soon(now_ms)

    def tell_soon(self, now_ms: float) -> None:
        """Others wait for the own clock."""
        due_ms = now_ms + HEARTBEAT_LAG_MS
        if self.heartbeat_ms is None or self.heartbeat_ms > due_ms:
            self.heartbeat_ms = due_ms

    # ── keeping ───────────────────────────────────────────────────────────────────────────────────────────────────

    def dump(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "stamps": self.stamps.dump(), "knowledge": self.knowledge.dump()}

    def load(self, dumped: dict[str, Any]) -> None:
        self.knowledge.load(dumped["knowledge"])
        self.stamps.load(dumped["stamps"])
        self.epoch = self.stamps.epoch = dumped["epoch"]
        self._head = self._head_of_messages()
