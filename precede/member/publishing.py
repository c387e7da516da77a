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
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any

from precede.ingest import sending
from precede.ingest.producer import CONFIRM_S, Publisher
from precede.ingest.sender_state import KnownSender, SenderState
from precede.ingest.signing import public_text
from precede.udfs.errors import AccessDenied, Closed, Refused, Unconfirmed
from precede.udfs.member.speaker import Said, Speaker
from precede.udfs.records.identifiers import MessageId
from precede.udfs.records.messages import Id
from precede.udfs.records.signatures import sign

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

SENT_MAX = 1_000
"""How many of its own records a member keeps, to publish them again if the group requests them."""
SENT_BYTES_MAX = 16 * 1024 * 1024


_LOGGER = logging.getLogger("precede")


class MemberPublisher:
    """The sending half of a member. Threads may share it.

    What is known and stored is changed under `lock`, which is held for moments. Only one record at a time is on its way
    to Kafka, which may take long: the thread that sends has the turn, and what is delivered is observed meanwhile.
    """

    def __init__(
        self,
        state: SenderState,
        known: KnownSender,
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
        public_key = None if key is None else public_text(key)
        signs = None if key is None else partial(sign, key=key)
        self.speaker = Speaker(known.group, known.sender, known.epoch, sign=signs, public_key=public_key)
        self.speaker.load(known.knowledge, known.stamps, known.seq)
        self._state = state
        self._publisher = publisher
        self._has_left = False
        self._heartbeats: Publisher | None = None
        self._last_clock_ms = 0
        self._sent: OrderedDict[tuple[int, int], bytes] = OrderedDict()
        self._sent_bytes = 0
        self._watches_own = False
        """Whether what is observed under the own name and epoch is compared with what was sent: once it is open."""

    def begin_epoch(self, epoch: int) -> None:
        """Begin this epoch; what was observed before still counts."""
        known = self.known
        known.epoch, known.seq, known.joined, known.pending, known.doubled = epoch, 0, False, None, False
        self.speaker.begin_epoch(epoch)

    # ── observing ─────────────────────────────────────────────────────────────────────────────────────────────────

    def observe(self, record: dict[str, Any], value: bytes = b"") -> None:
        """Take note of a record that was delivered here, or at another destination if the stamps need that.

        `value` is the record as it is in the ordered topic.
        """
        with self.lock:
            if self._watches_own:
                self._notice_double(record, value)
            self.speaker.observe(record)

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

    def hear(self, value: bytes) -> None:
        """Take note of a record of the group in the raw log, which anyone may have written."""
        with self.lock:
            self.speaker.hear(value)

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
                said = self.speaker.message(
                    data, after=parents, to=to, object_=object_, meta=meta, clock_ms=self._clock_ms()
                )
                self._store(said)
            try:
                self._publish_pending(said)
            except Unconfirmed as error:
                self._left_unconfirmed()
                unconfirmed = Unconfirmed(
                    f"{str(error).rstrip('.')}. {said.id} is stored, and the same bytes are sent again in the"
                    " background until Kafka confirms them: do not say it again; `flush` waits for it."
                )
                unconfirmed.id = said.id
                raise unconfirmed from error
            return said.id

    def _store(self, said: Said) -> None:
        """Store a message as the pending one, before it is sent; where that fails, it is not said."""
        known = self.known
        before = known.seq, known.stamps
        known.seq, known.pending, known.stamps = said.id.seq, said.value.decode(), self.speaker.stamps.dump()
        try:
            self._state.save()
        except BaseException:
            (known.seq, known.stamps), known.pending = before, None
            self.speaker.take_back(said)
            raise

    def join(self, *, brings_key: bool) -> None:
        """Send the record by which the member enters; it is in the log when this returns."""
        with self._turn():
            self._send_control(self.speaker.join(brings_key=brings_key))

    def _send_control(self, record: bytes) -> None:
        with self.lock:
            self.known.stamps = self.speaker.stamps.dump()
            self._state.save()
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
                self._send_control(self.speaker.leave())
            except BaseException:
                self._has_left = False
                raise
            with self.lock:
                self.known.left = self.known.epoch
                self.begin_epoch(self.known.epoch + 1)

    def send_heartbeat(self, publisher: Publisher, *, due: bool) -> None:
        """Send a heartbeat if the clock has passed what the log was told, or if one is due."""
        speaker = self.speaker
        with self.lock:
            if self._has_left or self._is_closed or self.known.doubled:
                return
            record = speaker.heartbeat(clock_ms=self._clock_ms(), due=due)
            if record is None:
                return
            self.known.stamps = speaker.stamps.dump()
            self._state.save()  # before it is sent: its promise must hold after a crash
            self._heartbeats = publisher
            publisher.publish(self.known.group, record)
            speaker.told()
            is_behind = speaker.is_behind
        if is_behind:
            publisher.flush(self._check_open)  # the clock may only go further once the log has it
            with self.lock:
                speaker.confirmed(record)

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
            self.known.stamps, self.known.knowledge = self.speaker.stamps.dump(), self.speaker.knowledge.dump()
            self._state.save()

    # ── what became of it ─────────────────────────────────────────────────────────────────────────────────────────

    def begin_watching(self) -> None:
        """The epoch is settled: from here on it is watched what becomes of what is sent under it."""
        self._watches_own = True
        self.speaker.begin_watching(self._last_confirmed)

    def undelivered(self) -> int:
        """How many own messages of this epoch Kafka has and the group has not delivered."""
        with self.lock:
            return self.speaker.undelivered(self._last_confirmed)

    @property
    def _last_confirmed(self) -> int:
        return self.known.seq - (self.known.pending is not None)

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
                self.speaker.sent()
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
        if self.known.pending is None:
            return
        try:
            self._publish_pending(None)
        except Unconfirmed as error:
            waits = MessageId(self.known.sender, self.known.epoch, self.known.seq)
            raise Unconfirmed(
                f"{str(error).rstrip('.')}. It is {waits}, which was said before, so nothing after it was sent: send it"
                " again when the outbox is empty (`flush` waits for that)."
            ) from error

    def _publish_pending(self, said: Said | None) -> None:
        """Send the pending record: `said`, or one that was tried before."""
        known = self.known
        record = (known.pending or "").encode()
        check = self._waits_until(monotonic() + self._confirm_s)
        try:
            sending.publish_pending(
                self._publisher, self._state, known, is_new=said is not None, check=check, lock=self.lock
            )
        except (Refused, AccessDenied):
            if said is not None:
                with self.lock:
                    self.speaker.take_back(said)
            raise
        with self._changed:
            self.speaker.confirmed(record)
            self._sent[known.epoch, known.seq] = record
            self._sent_bytes += len(record)
            while len(self._sent) > SENT_MAX or self._sent_bytes > SENT_BYTES_MAX:
                self._sent_bytes -= len(self._sent.popitem(last=False)[1])
            self._changed.notify_all()

    def _clock_ms(self) -> int:
        self._last_clock_ms = max(self._last_clock_ms, time.time_ns() // 1_000_000)
        return self._last_clock_ms
