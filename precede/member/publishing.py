"""Sends what a member says: stamped by the publisher's half of its group's order, and stored before it is sent.

All that stamps need (own seq, vector, clocks) is in the state file, replaced in the same step as the record that
carries them. After a crash exactly the same bytes are sent again, and the kernel drops them as an exact copy if they
had arrived. Nothing is guessed, no seq is used twice, and no clock runs back.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from msgspec import json

from precede.ingest import sending
from precede.ingest.producer import Publisher
from precede.ingest.sender_state import Sender, SenderState
from precede.ingest.signing import public_text
from precede.udfs.errors import Unconfirmed
from precede.udfs.limits import Limits
from precede.udfs.member.knowledge import Knowledge
from precede.udfs.member.raw_log_trust import read_trusted_clock
from precede.udfs.membership.keyring import SERVICE
from precede.udfs.orders import ORDERS, Order
from precede.udfs.orders.lamport import LamportStamps
from precede.udfs.orders.stamps import Stamps
from precede.udfs.records.messages import Id
from precede.udfs.records.signatures import sign

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

SENT_MAX = 1_000
"""How many of its own records a member keeps, to publish them again if the group requests them."""
SENT_BYTES_MAX = 16 * 1024 * 1024


class MemberPublisher:
    """The sending half of a member. Threads may share it."""

    def __init__(
        self, state: SenderState, known: Sender, publisher: Publisher, key: "Ed25519PrivateKey | None"
    ) -> None:
        self.lock = threading.RLock()
        self.known = known
        self.knowledge = Knowledge()
        if known.knowledge is not None:
            self.knowledge.load(known.knowledge)
        self._state = state
        self._publisher = publisher
        self._key = key
        self.public_key = None if key is None else public_text(key)
        self._order_name: str | None = None
        self.stamps = Stamps(known.sender, known.epoch)
        self.adopt_order(self.knowledge.order or "s_b")
        self._promised_time = 0
        """The log was told that nothing more is sent below this time."""
        self._highest_time = 0
        """The largest time that the group seems to have reached."""
        self._wanted_time = 0
        """The time that this member should reach, by what it read."""
        self._confirmed_time = 0
        """The largest time of its own records that are certainly in the log."""
        self._has_left = False
        self._heartbeats: Publisher | None = None
        self._last_clock_ms = 0
        self._sent: OrderedDict[tuple[int, int], bytes] = OrderedDict()
        self._sent_bytes = 0

    @property
    def order(self) -> type[Order]:
        return ORDERS[self._order_name or "s_b"]

    def adopt_order(self, order: str) -> None:
        """Stamp by this order from now on, with what the stamps so far have kept."""
        if order == self._order_name or order not in ORDERS:
            return
        kept = self.known.stamps if self._order_name is None else self.stamps.dump()
        self._order_name = order
        self.stamps = ORDERS[order].stamps_of(self.known.sender, self.known.epoch)
        if kept is not None:
            self.stamps.load(kept)
        self.stamps.seq = self.known.seq

    def begin_epoch(self, epoch: int) -> None:
        """Begin this epoch; what was observed before still counts."""
        kept = self.stamps.dump()
        self.known.epoch, self.known.seq, self.known.joined, self.known.pending = epoch, 0, False, None
        self.stamps = self.order.stamps_of(self.known.sender, epoch)
        self.stamps.load(kept)
        self.stamps.seq = 0
        if isinstance(self.stamps, LamportStamps):
            # The last records of the old epoch may not have counted, and a time that is too far ahead would be refused.
            most = self.knowledge.time + self.knowledge.window - 1
            self.stamps.time = self.stamps.moved = min(self.stamps.time, most)
        self._confirmed_time = self._wanted_time = 0

    # ── observing ─────────────────────────────────────────────────────────────────────────────────────────────────

    def observe(self, record: dict[str, Any]) -> None:
        """Take note of a record that was delivered here, or at another destination if the stamps need that."""
        with self.lock:
            self.adopt_order(record["order"])
            if record.get("destination") in (None, self.known.sender):
                self.knowledge.deliver(record)
            if record["status"] == "delivered":
                self.stamps.observe(record)

    def observe_raw(self, value: bytes) -> None:
        """Take note of a record of the group in the raw log, which anyone may have written."""
        with self.lock:
            known = min(self._highest_time, max(self._wanted_time, self.time) - 1)
            clock = read_trusted_clock(self.knowledge, self.known.group, value, above=known)
            if clock is not None:
                self.observe_time(clock.time, is_message=clock.is_message)

    def observe_time(self, linear: int, *, is_message: bool = True) -> None:
        """Take note of a linear time that another member used; one beyond the group's window is ignored."""
        with self.lock:
            self._highest_time = max(self._highest_time, self.knowledge.time)
            if linear <= self._highest_time + self.knowledge.window:
                self._highest_time = max(self._highest_time, linear)
                if is_message:
                    self._wanted_time = max(self._wanted_time, linear + 1)
                    self._raise_clock()

    def _raise_clock(self) -> None:
        """Raise the clock to what was observed, but only as far as the group accepts it.

        What was observed in the raw log may be refused, and then it does not count. What was delivered counts, and
        what this member sent.
        """
        if isinstance(self.stamps, LamportStamps) and self.stamps.time < self._wanted_time:
            surely = (
                max(self.knowledge.time, self._confirmed_time) + self.knowledge.window - 1
            )  # a heartbeat may show one more than this
            self.stamps.catch_up(min(self._wanted_time, max(self.stamps.time, surely)) - 1)

    @property
    def time(self) -> int:
        """The linear time of the next record; 0 if the order has no clocks."""
        return self.stamps.time if isinstance(self.stamps, LamportStamps) else 0

    def why_forged(self) -> str | None:
        """Why the group would refuse as forged what this member sends; None if it would not, as far as is known."""
        knowledge, name, group = self.knowledge, self.known.sender, self.known.group
        if not knowledge.has_keys:
            return None
        if self.public_key is None:
            return f"{group} accepts only signed records: open {name} with its private key."
        if name in knowledge.keys:
            if knowledge.key_of(name, self.known.epoch) == self.public_key:
                return None
            return (
                f"The given key is not the one that {group} knows of {name}: open it with that one, or change it"
                " (precede groups join --new-key)."
            )
        if not knowledge.closed:
            return None  # its join carries the key
        if SERVICE not in knowledge.keys:
            return (
                f"{group} is closed and was created without a service, so {name}, which has no key in it, cannot join."
            )
        return (
            f"{group} is closed and has no key of {name}: ask the owner of its service's key to run"
            f" `precede groups admit {group} {name} {self.public_key}`."
        )

    # ── sending ───────────────────────────────────────────────────────────────────────────────────────────────────

    def send(self, data: bytes, parents: list[Id], to: list[str] | None, object_: dict[str, Any] | None) -> Id:
        """Send one message; it is in the log when this returns."""
        with self.lock:
            if self.known.pending is not None:
                self._publish_pending()
            known = self.known
            self.stamps.seq = known.seq
            stamp = self.stamps.stamp(after=parents, to=to or [], clock_ms=self._clock_ms())
            if parents:
                stamp.setdefault("after", parents)  # every order carries what a message answers
            if to is not None:
                stamp["to"] = to
            if object_ is not None:
                stamp["object"] = object_
            record = self._encode(stamp, data)
            if len(record) > Limits().record_bytes_max:
                raise ValueError(
                    f"a message may have {Limits().record_bytes_max} bytes in all, and this one has {len(record)}"
                )
            known.seq, known.pending, known.stamps = self.stamps.seq, record.decode(), self.stamps.dump()
            self._state.save()
            try:
                self._publish_pending()
            except Unconfirmed as unconfirmed:
                unconfirmed.id = known.sender, known.epoch, known.seq
                raise
            self._confirmed_time = max(self._confirmed_time, stamp.get("time", 0))
            return known.sender, known.epoch, known.seq

    def send_control(self, **fields: Any) -> None:
        """Send one record of another kind; it is in the log when this returns."""
        with self.lock:
            self.known.stamps = self.stamps.dump()
            self._state.save()
            self._publisher.publish(self.known.group, self._encode(fields))
            self._publisher.flush()

    def leave(self) -> None:
        """Send the last record of this epoch; the next epoch begins when the member is opened again."""
        with self.lock:
            self._has_left = True
            if self._heartbeats is not None:
                self._heartbeats.flush()  # one on its way would arrive after the leave, and be refused
            self.send_control(kind="leave", sender=self.known.sender, epoch=self.known.epoch, last=self.known.seq)
            self.begin_epoch(self.known.epoch + 1)

    def send_heartbeat(self, publisher: Publisher, *, due: bool) -> None:
        """Send a heartbeat if the clock has passed what the log was told, or if one is due."""
        with self.lock:
            if self._has_left:
                return
            self._raise_clock()
            if due or self.time > self._promised_time or self.time < self._wanted_time:
                self.stamps.seq = self.known.seq
                fields = self.stamps.heartbeat(clock_ms=self._clock_ms())
                self.known.stamps = self.stamps.dump()
                self._state.save()  # before it is sent: its promise must hold after a crash
                self._heartbeats = publisher
                publisher.publish(self.known.group, self._encode(fields))
                self._promised_time = self.time
                if self.time < self._wanted_time:
                    publisher.flush()  # the clock may only go further once the log has it
                    self._confirmed_time = self.time

    def sent_records(self, epoch: int, first: int, last: int) -> Iterator[bytes]:
        """The member's own records with these seqs, byte for byte, as far as they are kept."""
        with self.lock:
            found = [
                self._sent[epoch, seq]
                for seq in range(first, min(last, first + SENT_MAX) + 1)
                if (epoch, seq) in self._sent
            ]
        yield from found

    def save_token(self, token: str) -> None:
        """Store how far was read."""
        with self.lock:
            self.known.token = token
            self.known.stamps, self.known.knowledge = self.stamps.dump(), self.knowledge.dump()
            self._state.save()

    def _publish_pending(self) -> None:
        known = self.known
        record = (known.pending or "").encode()
        sending.publish_pending(self._publisher, self._state, known)
        self._promised_time = max(self._promised_time, self.time)
        self._sent[known.epoch, known.seq] = record
        self._sent_bytes += len(record)
        while len(self._sent) > SENT_MAX or self._sent_bytes > SENT_BYTES_MAX:
            self._sent_bytes -= len(self._sent.popitem(last=False)[1])

    def _encode(self, fields: dict[str, Any], data: bytes | None = None) -> bytes:
        record = json.encode({"group": self.known.group, **fields})
        if data is not None:
            record = record[:-1] + b',"data":' + data + b"}"
        return record if self._key is None else sign(record, self._key)

    def _clock_ms(self) -> int:
        self._last_clock_ms = max(self._last_clock_ms, time.time_ns() // 1_000_000)
        return self._last_clock_ms
