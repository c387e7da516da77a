"""Sends what a member says: stamped by the publisher's half of its group's order, and stored before it is sent.

All that stamps need (own seq, vector, clocks) is in the state file, replaced in the same step as the record that
carries them. After a crash exactly the same bytes are sent again, and the kernel drops them as an exact copy if they
had arrived. Nothing is guessed, no seq is used twice, and no clock runs back.
"""

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from time import monotonic
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import json

from precede.ingest import sending
from precede.ingest.producer import CONFIRM_S, Publisher
from precede.ingest.sender_state import Sender, SenderState
from precede.ingest.signing import public_text
from precede.udfs.engine.runs import Runs
from precede.udfs.engine.signers import SERVICE
from precede.udfs.errors import AccessDenied, Closed, Refused, Unconfirmed
from precede.udfs.limits import Limits
from precede.udfs.member.knowledge import Knowledge
from precede.udfs.member.raw_log_trust import read_trusted_clock
from precede.udfs.orders import ORDERS, Order
from precede.udfs.orders.order import Stamps
from precede.udfs.records.identifiers import id_text
from precede.udfs.records.messages import Id
from precede.udfs.records.published import lenient_reader
from precede.udfs.records.signatures import sign

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

SENT_MAX = 1_000
"""How many of its own records a member keeps, to publish them again if the group requests them."""
SENT_BYTES_MAX = 16 * 1024 * 1024


_LOGGER = logging.getLogger("precede")


class _Time(msgspec.Struct):
    time: int = 0


_read_time = lenient_reader(_Time)


class MemberPublisher:
    """The sending half of a member. Threads may share it.

    What is known and stored is changed under `lock`, which is held for moments. Only one record at a time is on its way
    to Kafka, which may take long: the thread that sends has the turn, and what is delivered is observed meanwhile.
    """

    def __init__(
        self,
        state: SenderState,
        known: Sender,
        publisher: Publisher,
        key: "Ed25519PrivateKey | None",
        *,
        confirm_s: float = CONFIRM_S,
    ) -> None:
        self.lock = threading.RLock()
        self._changed = threading.Condition(self.lock)
        """Notified when the turn ends, a record is confirmed, or this is closed."""
        self._has_turn = False
        self._is_closed = False
        self._confirm_s = confirm_s
        self._left_unconfirmed: Callable[[], object] = lambda: None
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
        self._own_settled = Runs()
        """The own seqs of this epoch that were delivered or abandoned."""
        self.watches_own = False
        """Whether what is observed under the own name and epoch is compared with what was sent: once it is open."""
        self._meanwhile: list[dict[str, Any]] | None = None
        """What was observed since the record that is on its way was stamped."""

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
        self.known.doubled = False
        self.stamps = self.order.stamps_of(self.known.sender, epoch)
        self.stamps.load(kept)
        self.stamps.seq = 0
        # The last records of the old epoch may not have counted, and a time that is too far ahead would be refused.
        self.stamps.keep_to(self.knowledge.time + self.knowledge.window - 1)
        self._confirmed_time = self._wanted_time = 0
        self._own_settled = Runs()

    # ── observing ─────────────────────────────────────────────────────────────────────────────────────────────────

    def observe(self, record: dict[str, Any], value: bytes = b"") -> None:
        """Take note of a record that was delivered here, or at another destination if the stamps need that.

        `value` is the record as it is in the ordered topic.
        """
        with self.lock:
            if self.watches_own:
                self._notice_double(record, value)
            self.adopt_order(record["order"])
            if record.get("destination") in (None, self.known.sender):
                self.knowledge.deliver(record)
            if record["status"] == "delivered":
                self.stamps.observe(record)
                if self._meanwhile is not None:
                    self._meanwhile.append(record)
            if (record.get("sender"), record.get("epoch", 0)) == (self.known.sender, self.known.epoch):
                self._own_settled.add(record.get("seq", 0))

    def _notice_double(self, record: dict[str, Any], value: bytes) -> None:
        """Stop where another sender says something under this name and epoch: of two, the log keeps the first only."""
        known = self.known
        is_own = (record.get("sender"), record.get("epoch", 0)) == (known.sender, known.epoch)
        if not is_own or known.doubled or record.get("kind", "message") != "message" or record["status"] != "delivered":
            return
        seq = record["seq"]
        said = self._sent.get((known.epoch, seq))
        if said is None and known.pending is not None and seq == known.seq:
            said = known.pending.encode()
        if seq <= known.seq and (said is None or not value or value.startswith(said[:-1])):
            return
        known.doubled = True
        _LOGGER.error("%s", self.why_doubled)
        with suppress(Refused):  # a full disk, and then the next start notices it as this one did
            self._state.save()

    @property
    def why_doubled(self) -> str | None:
        """Why nothing more may be sent under this epoch; None if it may."""
        known = self.known
        if not known.doubled:
            return None
        return (
            f"{known.sender} is open in another place, too: {known.group} has a message of {known.sender}, epoch"
            f" {known.epoch}, that this member did not send. Where both used an id, only the first of the two messages"
            " counts, and the other is lost (`equivocation` among the dead letters). Close one of the two, or give it a"
            " name of its own; this member is opened again under a new epoch."
        )

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
        if 0 < self.stamps.time < self._wanted_time:
            surely = (
                max(self.knowledge.time, self._confirmed_time) + self.knowledge.window - 1
            )  # a heartbeat may show one more than this
            self.stamps.catch_up(min(self._wanted_time, max(self.stamps.time, surely)) - 1)

    @property
    def time(self) -> int:
        """The linear time of the next record; 0 if the order has no clocks."""
        return self.stamps.time

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

    def send(
        self,
        data: bytes,
        parents: list[Id],
        to: list[str] | None,
        object_: dict[str, Any] | None,
        meta: bytes | None = None,
    ) -> Id:
        """Send one message; it is in the log when this returns.

        Where Kafka does not confirm it, Unconfirmed has its id, and it stays in the outbox.
        """
        with self._turn():
            self._publish_outbox()
            with self.lock:
                id_, kept = self._store(data, parents, to, object_, meta)
            try:
                self._publish_pending(kept)
            except Unconfirmed as error:
                self._left_unconfirmed()
                unconfirmed = Unconfirmed(
                    f"{str(error).rstrip('.')}. {id_text(id_)} is stored, and the same bytes are sent again in the"
                    " background until Kafka confirms them: do not say it again; `flush` waits for it."
                )
                unconfirmed.id = id_
                raise unconfirmed from error
            return id_

    def _store(
        self,
        data: bytes,
        parents: list[Id],
        to: list[str] | None,
        object_: dict[str, Any] | None,
        meta: bytes | None,
    ) -> tuple[Id, dict[str, Any]]:
        """Stamp a message and store it as the pending one; its id, and what the stamps were before."""
        known = self.known
        self.stamps.seq = known.seq
        kept = self.stamps.dump()
        stamp = self.stamps.stamp(after=parents, to=to or [], clock_ms=self._clock_ms())
        if parents:
            stamp.setdefault("after", parents)  # every order carries what a message answers
        if to is not None:
            stamp["to"] = to
        if object_ is not None:
            stamp["object"] = object_
        if meta is not None:
            stamp["meta"] = msgspec.Raw(meta)
        record = self._encode(stamp, data)
        if len(record) > Limits().record_bytes_max:
            self._take_back(kept)
            raise ValueError(
                f"a message may have {Limits().record_bytes_max} bytes in all, and this one has {len(record)}"
            )
        before = known.seq, known.stamps
        known.seq, known.pending, known.stamps = self.stamps.seq, record.decode(), self.stamps.dump()
        try:
            self._state.save()
        except BaseException:
            (known.seq, known.stamps), known.pending = before, None
            self._take_back(kept)
            raise
        self._meanwhile = []
        return (known.sender, known.epoch, known.seq), kept

    def _take_back(self, kept: dict[str, Any]) -> None:
        """The message that was stamped last is not said: its stamp must not show in the next one."""
        if not self.stamps.time:  # a clock never runs back, and heartbeats may have shown it
            self.stamps.load(kept)
            for record in self._meanwhile or ():
                self.stamps.observe(record)
        self._meanwhile = None

    def send_control(self, **fields: Any) -> None:
        """Send one record of another kind; it is in the log when this returns."""
        with self._turn():
            self._send_control(fields)

    def _send_control(self, fields: dict[str, Any]) -> None:
        with self.lock:
            self.known.stamps = self.stamps.dump()
            self._state.save()
            record = self._encode(fields)
        self._publisher.publish(self.known.group, record)
        self._publisher.flush(self._waits_until(monotonic() + self._confirm_s))

    def leave(self) -> None:
        """Send the last record of this epoch; the next epoch begins when the member is opened again."""
        with self._turn():
            self._publish_outbox()  # or the others would wait for a message that this epoch has and never sends
            with self.lock:
                self._has_left = True
                heartbeats = self._heartbeats
            try:
                if heartbeats is not None:
                    heartbeats.flush()  # one on its way would arrive after the leave, and be refused
                known = self.known
                self._send_control({"kind": "leave", "sender": known.sender, "epoch": known.epoch, "last": known.seq})
            except BaseException:
                self._has_left = False
                raise
            with self.lock:
                self.known.left = self.known.epoch
                self.begin_epoch(self.known.epoch + 1)

    def send_heartbeat(self, publisher: Publisher, *, due: bool) -> None:
        """Send a heartbeat if the clock has passed what the log was told, or if one is due."""
        with self.lock:
            if self._has_left or self._is_closed or self.known.doubled:
                return
            self._raise_clock()
            if not (due or self.time > self._promised_time or self.time < self._wanted_time):
                return
            self.stamps.seq = self.known.seq
            fields = self.stamps.heartbeat(clock_ms=self._clock_ms())
            self.known.stamps = self.stamps.dump()
            self._state.save()  # before it is sent: its promise must hold after a crash
            self._heartbeats = publisher
            publisher.publish(self.known.group, self._encode(fields))
            self._promised_time = shown = self.time
            is_behind = shown < self._wanted_time
        if is_behind:
            publisher.flush(self._check_open)  # the clock may only go further once the log has it
            with self.lock:
                self._confirmed_time = max(self._confirmed_time, shown)

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

    # ── what became of it ─────────────────────────────────────────────────────────────────────────────────────────

    def begin_watching_own(self) -> None:
        """The epoch is settled: from here on it is watched what becomes of what is sent under it."""
        known = self.known
        self.watches_own = True
        if self.order.has_destinations:  # what went to others was never delivered here
            self._own_settled.add_range(1, known.seq - (known.pending is not None))
        else:
            delivered = self.knowledge.delivered.get((known.sender, known.epoch))
            self._own_settled.add_ranges([] if delivered is None else delivered.runs())

    def own_pending(self) -> int:
        """How many own messages of this epoch Kafka has and the group has not delivered."""
        with self.lock:
            return self._own_settled.missing_count(1, self.known.seq - (self.known.pending is not None))

    # ── the outbox ────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def outbox(self) -> list[Id]:
        """What is stored and not confirmed by Kafka."""
        with self.lock:
            known = self.known
            return [] if known.pending is None else [(known.sender, known.epoch, known.seq)]

    def when_left_unconfirmed(self, call: Callable[[], object]) -> None:
        """Call this whenever something stays in the outbox."""
        self._left_unconfirmed = call

    def retry(self) -> None:
        """Send what is in the outbox once more, as the same bytes. Raises what `send` raises."""
        with self._turn():
            self._publish_outbox()

    def flush(self, timeout_s: float | None) -> bool:
        """Wait until the outbox is empty; returns whether it is."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or self.known.pending is None, timeout_s)
            self._check_open()
            return self.known.pending is None

    def close(self) -> None:
        """Send nothing from now on; a thread that waits for Kafka is told so."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def _check_open(self) -> None:
        if self._is_closed:
            raise Closed(f"the member {self.known.sender} of {self.known.group}")

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Alone on the way to Kafka. Raises Unconfirmed if others take too long."""
        with self._changed:
            self._check_open()
            if not self._changed.wait_for(lambda: self._is_closed or not self._has_turn, self._confirm_s):
                raise Unconfirmed(
                    f"Kafka did not confirm an earlier record of {self.known.sender} within {self._confirm_s:g} s, so"
                    " this one was not sent: send it again when the outbox is empty (`flush` waits for that)."
                )
            self._check_open()
            self._has_turn = True
        try:
            yield
        finally:
            with self._changed:
                self._has_turn = False
                self._meanwhile = None
                self._changed.notify_all()

    def _waits_until(self, deadline: float) -> Callable[[], None]:
        """Called while Kafka is waited for; raises if this takes too long, or is closed meanwhile."""

        def check() -> None:
            if self._is_closed:
                raise Unconfirmed(
                    f"{self.known.sender} was closed before Kafka confirmed its record. It is stored, and sent again"
                    " when the member is opened."
                )
            if monotonic() > deadline:
                raise Unconfirmed(f"Kafka at {self._publisher.bootstrap} did not confirm a record in time.")

        return check

    def _publish_outbox(self) -> None:
        """Send what an earlier call left, before anything else."""
        if self.known.pending is not None:
            self._publish_pending(None)

    def _publish_pending(self, kept: dict[str, Any] | None) -> None:
        """Send the pending record; `kept` is what the stamps were before it, if it was never sent before."""
        known, is_new = self.known, kept is not None
        record = (known.pending or "").encode()
        check = self._waits_until(monotonic() + self._confirm_s)
        try:
            sending.publish_pending(self._publisher, self._state, known, is_new=is_new, check=check, lock=self.lock)
        except (Refused, AccessDenied):
            if kept is not None:
                with self.lock:
                    self._take_back(kept)
            raise
        with self._changed:
            self._promised_time = max(self._promised_time, self.time)
            self._confirmed_time = max(self._confirmed_time, self._time_of(record))
            self._sent[known.epoch, known.seq] = record
            self._sent_bytes += len(record)
            while len(self._sent) > SENT_MAX or self._sent_bytes > SENT_BYTES_MAX:
                self._sent_bytes -= len(self._sent.popitem(last=False)[1])
            self._changed.notify_all()

    def _time_of(self, record: bytes) -> int:
        """The linear time of an own record; 0 if the order has none."""
        return int(_read_time(record).time) if self.stamps.time else 0

    def _encode(self, fields: dict[str, Any], data: bytes | None = None) -> bytes:
        record = json.encode({"group": self.known.group, **fields})
        if data is not None:
            record = record[:-1] + b',"data":' + data + b"}"
        return record if self._key is None else sign(record, self._key)

    def _clock_ms(self) -> int:
        self._last_clock_ms = max(self._last_clock_ms, time.time_ns() // 1_000_000)
        return self._last_clock_ms
