"""What a member says: stamped by the publisher's half of its group's order, and written down before it is sent.

All that stamps need (own seq, vector, clocks) stands in the state file in the same step as the record that carries
them. After a crash the very same bytes go out again, which the kernel drops as an exact copy where they had arrived;
nothing is guessed, no seq is used twice, no clock runs back.
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
"""How many of its own records a member keeps, to publish them again where the group asks."""
SENT_BYTES_MAX = 16 * 1024 * 1024


class Voice:
    """The sending half of a member; every method may be called by any thread."""

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
        self._adopted: str | None = None
        self.stamps = Stamps(known.sender, known.epoch)
        self.adopt(self.knowledge.order or "s_b")
        self._promised = 0
        """Below which time nothing more is said, as far as the log was told."""
        self._highest = 0
        """The largest time that the group seems to have."""
        self._wanted = 0
        """The time that this member should have, by what it heard."""
        self._said = 0
        """The largest time of its own records that the log has for certain."""
        self._is_mute = False
        self._heartbeats: Publisher | None = None
        self._shown_ms = 0
        self._sent: OrderedDict[tuple[int, int], bytes] = OrderedDict()
        self._sent_bytes = 0

    @property
    def order(self) -> type[Order]:
        return ORDERS[self._adopted or "s_b"]

    def adopt(self, order: str) -> None:
        """Stamp by this order from now on; what is kept already goes over to it."""
        if order == self._adopted or order not in ORDERS:
            return
        kept = self.known.stamps if self._adopted is None else self.stamps.dump()
        self._adopted = order
        self.stamps = ORDERS[order].stamps_of(self.known.sender, self.known.epoch)
        if kept is not None:
            self.stamps.load(kept)
        self.stamps.seq = self.known.seq

    def begin(self, epoch: int) -> None:
        """Start anew with this epoch; what was heard still counts."""
        kept = self.stamps.dump()
        self.known.epoch, self.known.seq, self.known.joined, self.known.pending = epoch, 0, False, None
        self.stamps = self.order.stamps_of(self.known.sender, epoch)
        self.stamps.load(kept)
        self.stamps.seq = 0
        if isinstance(self.stamps, LamportStamps):
            # What the old epoch said last may never have counted, and a time that is too far would be refused.
            most = self.knowledge.time + self.knowledge.window - 1
            self.stamps.time = self.stamps.moved = min(self.stamps.time, most)
        self._said = self._wanted = 0

    # ── hearing ───────────────────────────────────────────────────────────────────────────────────────────────────

    def observe(self, record: dict[str, Any]) -> None:
        """A record was delivered here, or, as far as stamps mind that, at another destination."""
        with self.lock:
            self.adopt(record["order"])
            if record.get("destination") in (None, self.known.sender):
                self.knowledge.deliver(record)
            if record["status"] == "delivered":
                self.stamps.observe(record)

    def hear(self, value: bytes) -> None:
        """A record of the group stands in the raw log, where anybody may have written it."""
        with self.lock:
            known = min(self._highest, max(self._wanted, self.time) - 1)
            said = read_trusted_clock(self.knowledge, self.known.group, value, above=known)
            if said is not None:
                self.hear_time(said.time, is_message=said.is_message)

    def hear_time(self, linear: int, *, is_message: bool = True) -> None:
        """Somebody said something at this linear time; nobody takes a clock that runs away (contract: windows)."""
        with self.lock:
            self._highest = max(self._highest, self.knowledge.time)
            if linear <= self._highest + self.knowledge.window:
                self._highest = max(self._highest, linear)
                if is_message:
                    self._wanted = max(self._wanted, linear + 1)
                    self._follow()

    def _follow(self) -> None:
        """Let the clock follow what was heard, but never further than the group takes it: what was heard may be
        refused, and counts for nothing then; what was delivered, and what this member said itself, counts."""
        if isinstance(self.stamps, LamportStamps) and self.stamps.time < self._wanted:
            surely = max(self.knowledge.time, self._said) + self.knowledge.window - 1  # a heartbeat may show one more
            self.stamps.catch_up(min(self._wanted, max(self.stamps.time, surely)) - 1)

    @property
    def time(self) -> int:
        """The linear time of what is said next; 0 where the order has no clocks."""
        return self.stamps.time if isinstance(self.stamps, LamportStamps) else 0

    def why_forged(self) -> str | None:
        """Why the group takes nothing that this member says, None where it takes it, as far as is known here."""
        knowledge, name, group = self.knowledge, self.known.sender, self.known.group
        if not knowledge.has_keys:
            return None
        if self.public_key is None:
            return f"{group} takes nothing unsigned: open {name} with its private key."
        if name in knowledge.keys:
            if knowledge.key_of(name, self.known.epoch) == self.public_key:
                return None
            return (
                f"The key given is not the one that {group} knows of {name}: open it with that one, or change it"
                " (precede groups join --new-key)."
            )
        if not knowledge.closed:
            return None  # its join brings the key
        if SERVICE not in knowledge.keys:
            return f"{group} is closed and was created without a service, so {name}, who has no key in it, cannot join."
        return (
            f"{group} is closed and has no key of {name}: let whoever holds its service's key run"
            f" `precede groups admit {group} {name} {self.public_key}`."
        )

    # ── speaking ──────────────────────────────────────────────────────────────────────────────────────────────────

    def say(self, data: bytes, parents: list[Id], to: list[str] | None, object_: dict[str, Any] | None) -> Id:
        """One message, in the log when this returns."""
        with self.lock:
            if self.known.pending is not None:
                self._publish_pending()
            known = self.known
            self.stamps.seq = known.seq
            stamp = self.stamps.stamp(after=parents, to=to or [], clock_ms=self._clock_ms())
            if parents:
                stamp.setdefault("after", parents)  # what it answers is told in every order
            if to is not None:
                stamp["to"] = to
            if object_ is not None:
                stamp["object"] = object_
            record = self._encode(stamp, data)
            if len(record) > Limits().record_bytes_max:
                raise ValueError(f"a message may take {Limits().record_bytes_max} bytes in all, this one {len(record)}")
            known.seq, known.pending, known.stamps = self.stamps.seq, record.decode(), self.stamps.dump()
            self._state.save()
            self._publish_pending()
            self._said = max(self._said, stamp.get("time", 0))
            return known.sender, known.epoch, known.seq

    def control(self, **fields: Any) -> None:
        """One record of another kind, in the log when this returns."""
        with self.lock:
            self.known.stamps = self.stamps.dump()
            self._state.save()
            self._publisher.publish(self.known.group, self._encode(fields))
            self._publisher.flush()

    def leave(self) -> None:
        """The last record of this epoch; the next one begins when the member is opened again."""
        with self.lock:
            self._is_mute = True
            if self._heartbeats is not None:
                self._heartbeats.flush()  # one still on its way would come after the leave, and be fenced
            self.control(kind="leave", sender=self.known.sender, epoch=self.known.epoch, last=self.known.seq)
            self.begin(self.known.epoch + 1)

    def beat(self, publisher: Publisher, *, due: bool) -> None:
        """Send a heartbeat where the clock has passed what the log was told of it, or where it is due."""
        with self.lock:
            if self._is_mute:
                return
            self._follow()
            if due or self.time > self._promised or self.time < self._wanted:
                self.stamps.seq = self.known.seq
                fields = self.stamps.heartbeat(clock_ms=self._clock_ms())
                self.known.stamps = self.stamps.dump()
                self._state.save()  # before it is sent, for what was promised must hold after a crash, too
                self._heartbeats = publisher
                publisher.publish(self.known.group, self._encode(fields))
                self._promised = self.time
                if self.time < self._wanted:
                    publisher.flush()  # only once the log has it may the clock go further
                    self._said = self.time

    def again(self, epoch: int, first: int, last: int) -> Iterator[bytes]:
        """The own records of these seqs, byte for byte, as far as they are kept."""
        with self.lock:
            found = [
                self._sent[epoch, seq]
                for seq in range(first, min(last, first + SENT_MAX) + 1)
                if (epoch, seq) in self._sent
            ]
        yield from found

    def keep_place(self, token: str) -> None:
        """Write down how far was read."""
        with self.lock:
            self.known.token = token
            self.known.stamps, self.known.knowledge = self.stamps.dump(), self.knowledge.dump()
            self._state.save()

    def _publish_pending(self) -> None:
        known = self.known
        record = (known.pending or "").encode()
        sending.publish_pending(self._publisher, self._state, known)
        self._promised = max(self._promised, self.time)
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
        self._shown_ms = max(self._shown_ms, time.time_ns() // 1_000_000)
        return self._shown_ms
