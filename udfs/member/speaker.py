"""The speaking half of a member: adopts the group's order, stamps what is said, and keeps what the stamps need.

It is pure: no clock, no file, no network. Its owner stores what it says before it is sent, sends it, and tells it
what became of it. So a member of a log, a peer on a segment and a name that another process hosts can share it. What
Kafka or a segment did not take is taken back, and leaves no trace in what is said next.

Under orders by clocks a member also hears records of others before they are delivered, so that it can answer with a
larger clock. Anyone with write access to the log can write in any name. So in a group with keys a record counts only if
it is signed by a key that the group knows for its sender: a key of `create`, of a delivered join, or of a correctly
signed join in the log. In a group without keys the kernel trusts every sender, and so does a member. A record that the
kernel cannot read never counts, and a clock goes no further than the group accepts.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET

from precede.udfs.engine.runs import Runs
from precede.udfs.engine.signers import SERVICE
from precede.udfs.limits import Limits
from precede.udfs.member.knowledge import Knowledge
from precede.udfs.orders import ORDERS, Order
from precede.udfs.orders.order import Stamps
from precede.udfs.records.identifiers import MessageId
from precede.udfs.records.messages import Heartbeat, Id, Join, Message
from precede.udfs.records.published import lenient_reader
from precede.udfs.records.signatures import is_signed_by, read_key, signature_in
from precede.udfs.records.strict import Malformed
from precede.udfs.records.wire import SPACE, read

_LIMITS = Limits()


class _Clock(msgspec.Struct):
    time: int = 0
    kind: str = "message"


_read_clock = lenient_reader(_Clock)


class Said(NamedTuple):
    """A message that was stamped."""

    id: MessageId
    value: bytes
    before: dict[str, Any]
    """What the stamps were before it."""


class Speaker:
    """What one member says in one group, and what it must know for that."""

    def __init__(
        self,
        group: str,
        name: str,
        epoch: int = 0,
        *,
        order: str = "s_b",
        sign: Callable[[bytes], bytes] | None = None,
        public_key: str | None = None,
    ) -> None:
        """`sign` adds the signature to a record, and `public_key` is its key; a member without one signs nothing."""
        self.group = group
        self.name = name
        self.epoch = epoch
        self.public_key = public_key
        self.knowledge = Knowledge()
        self.order: type[Order] = ORDERS[order]
        self.stamps: Stamps = self.order.stamps_of(name, epoch)
        self._sign = sign
        self._promised_time = 0
        """The group was told that nothing more is said below this time."""
        self._highest_time = 0
        """The largest time that the group seems to have reached."""
        self._wanted_time = 0
        """The time that this member should reach, by what it heard."""
        self._confirmed_time = 0
        """The largest time of its own records that the group certainly gets."""
        self._settled = Runs()
        """The own seqs of this epoch that were delivered or abandoned."""
        self._meanwhile: list[Mapping[str, Any]] | None = None
        """What was delivered since the message that is on its way was stamped."""

    @property
    def time(self) -> int:
        """The linear time of the next record; 0 if the order has no clocks."""
        return self.stamps.time

    @property
    def is_behind(self) -> bool:
        """Whether the clock could not go as far yet as it should, because the group would not accept that."""
        return self.time < self._wanted_time

    # ── order and epoch ───────────────────────────────────────────────────────────────────────────────────────────

    def adopt_order(self, order: str) -> None:
        """Stamp by this order from now on, with what the stamps have kept so far; an unknown one changes nothing."""
        if order == self.order.name or order not in ORDERS:
            return
        kept = self.stamps.dump()
        self.order = ORDERS[order]
        self.stamps = self.order.stamps_of(self.name, self.epoch)
        self.stamps.load(kept)

    def begin_epoch(self, epoch: int) -> None:
        """Begin this epoch; what was observed before still counts."""
        kept = self.stamps.dump()
        self.epoch = epoch
        self.stamps = self.order.stamps_of(self.name, epoch)
        self.stamps.load(kept)
        self.stamps.seq = 0
        # The last records of the old epoch may not have counted, and a time that is too far ahead would be refused.
        self.stamps.keep_to(self.knowledge.time + self.knowledge.window - 1)
        self._confirmed_time = self._wanted_time = 0
        self._settled = Runs()

    # ── speaking ──────────────────────────────────────────────────────────────────────────────────────────────────

    def message(
        self,
        data: bytes,
        *,
        after: list[Id],
        to: list[str] | None = None,
        object_: dict[str, Any] | None = None,
        meta: bytes | None = None,
        clock_ms: int = 0,
    ) -> Said:
        """The next message. Raises ValueError if the order does not take it or it is too large; then it is not said."""
        before = self.stamps.dump()
        try:
            fields = self.stamps.stamp(after=after, to=to or [], clock_ms=clock_ms)
        except ValueError:  # what the order does not take uses no seq
            self.stamps.seq = before["seq"]
            raise
        if after:
            fields.setdefault("after", after)  # every order carries what a message answers
        if to is not None:
            fields["to"] = to
        if object_ is not None:
            fields["object"] = object_
        if meta is not None:
            fields["meta"] = msgspec.Raw(meta)
        said = Said(MessageId(self.name, self.epoch, self.stamps.seq), self._record(fields, data), before)
        if len(said.value) > _LIMITS.record_bytes_max:
            self.take_back(said)
            raise ValueError(
                f"a message may have {_LIMITS.record_bytes_max} bytes in all, and this one has {len(said.value)}"
            )
        self._meanwhile = []
        return said

    def take_back(self, said: Said) -> None:
        """The last message is not said: its seq is free again, and its stamp shows in nothing that follows."""
        if self.time:  # a clock never runs back, and heartbeats may have shown it
            self.stamps.seq = said.before["seq"]
        else:
            self.stamps.load(said.before)
            for record in self._meanwhile or ():
                self.stamps.observe(record)
        self._meanwhile = None

    def sent(self) -> None:
        """The last message is on its way for good, and is not taken back any more."""
        self._meanwhile = None

    def control(self, **fields: Any) -> bytes:
        """A record of another kind."""
        return self._record(fields)

    def join(self, *, brings_key: bool) -> bytes:
        """The record by which this member enters."""
        fields: dict[str, Any] = {"kind": "join", "sender": self.name, "epoch": self.epoch}
        if self.order.waits_for_members:
            fields["time"] = self.time
        if brings_key:
            fields["key"] = self.public_key
        return self._record(fields)

    def leave(self) -> bytes:
        """The record by which this member leaves; what it said so far counts."""
        return self.control(kind="leave", sender=self.name, epoch=self.epoch, last=self.stamps.seq)

    def heartbeat(self, *, clock_ms: int, due: bool) -> bytes | None:
        """The record that tells the own clock: if one is due, or if the clock has passed what the group was told."""
        self._raise_clock()
        if not (due or self.time > self._promised_time or self.is_behind):
            return None
        return self._record(self.stamps.heartbeat(clock_ms=clock_ms))

    def told(self) -> None:
        """The heartbeat that was made last is on its way."""
        self._promised_time = self.time

    def confirmed(self, value: bytes) -> None:
        """An own record is certainly in the log."""
        if self.time:
            said = _read_clock(value)
            # Behind a message comes nothing of the same time.
            self._promised_time = max(self._promised_time, said.time + (said.kind == "message"))
            self._confirmed_time = max(self._confirmed_time, said.time)

    def _record(self, fields: dict[str, Any], data: bytes | None = None) -> bytes:
        record = msgspec.json.encode({"group": self.group, **fields})
        if data is not None:
            record = record[:-1] + b',"data":' + data + b"}"
        return record if self._sign is None else self._sign(record)

    # ── judging ───────────────────────────────────────────────────────────────────────────────────────────────────

    def check_after(self, ids: Iterable[Id]) -> None:
        """Raise ValueError for what this member cannot answer: what it did not say and was not handed."""
        for id_ in ids:
            is_own = id_[:2] == (self.name, self.epoch) and id_[2] <= self.stamps.seq
            if not is_own and not self.knowledge.has(id_):
                raise ValueError(
                    f"{MessageId(*id_)} has not been delivered to {self.name}: a message can only answer what its"
                    " sender knows, so take messages until it is there, or ask for it with find()"
                )

    def why_forged(self) -> str | None:
        """Why the group would refuse as forged what this member says; None if it would not, as far as is known."""
        knowledge, name, group = self.knowledge, self.name, self.group
        if not knowledge.has_keys:
            return None
        if self.public_key is None:
            return f"{group} accepts only signed records: open {name} with its private key."
        if name in knowledge.keys:
            if knowledge.key_of(name, self.epoch) == self.public_key:
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

    # ── hearing ───────────────────────────────────────────────────────────────────────────────────────────────────

    def observe(self, record: Mapping[str, Any]) -> None:
        """A record was delivered here, or at another destination if the stamps need that."""
        self.adopt_order(record["order"])
        if record.get("destination") in (None, self.name):
            self.knowledge.deliver(record)
        if record["status"] == "delivered":
            self.stamps.observe(record)
            if self._meanwhile is not None:
                self._meanwhile.append(record)
        if (record.get("sender"), record.get("epoch", 0)) == (self.name, self.epoch):
            self._settled.add(record.get("seq", 0))

    def begin_watching(self, last: int) -> None:
        """The epoch is settled: from here on it is watched what becomes of what is said; so far `last` was used."""
        if self.order.has_destinations:  # what went to others was never delivered here
            self._settled.add_range(1, last)
        elif (delivered := self.knowledge.delivered.get((self.name, self.epoch))) is not None:
            self._settled.add_ranges(delivered.runs())

    def undelivered(self, last: int) -> int:
        """How many of its messages of this epoch, up to the seq `last`, were neither delivered nor abandoned."""
        return self._settled.missing_count(1, last)

    def hear(self, value: bytes) -> None:
        """A record of the raw log, which anyone may have written: its clock raises the own one, if it is trusted."""
        above = min(self._highest_time, max(self._wanted_time, self.time) - 1)
        found = self._trusted(value.strip(SPACE), above)
        if found is not None and found.time is not UNSET and found.time > above:
            self.hear_time(found.time, is_message=isinstance(found, Message))

    def hear_time(self, linear: int, *, is_message: bool = True) -> None:
        """A linear time that another member used; one beyond the group's window is ignored.

        A record that is no message only promises a time, and needs no answer.
        """
        self._highest_time = max(self._highest_time, self.knowledge.time)
        if linear <= self._highest_time + self.knowledge.window:
            self._highest_time = max(self._highest_time, linear)
            if is_message:
                self._wanted_time = max(self._wanted_time, linear + 1)
                self._raise_clock()

    def _raise_clock(self) -> None:
        """Raise the clock to what was heard, but only as far as the group accepts it.

        What was heard in the raw log may be refused, and then it does not count. What was delivered counts, and what
        this member said.
        """
        if 0 < self.time < self._wanted_time:
            # A heartbeat may show one more than this.
            surely = max(self.knowledge.time, self._confirmed_time) + self.knowledge.window - 1
            self.stamps.catch_up(min(self._wanted_time, max(self.time, surely)) - 1)

    def _trusted(self, record: bytes, above: int) -> Message | Heartbeat | Join | None:
        """A record that may count; None if it cannot be read, is not trusted, or says nothing above this time."""
        try:
            found = read(record, _LIMITS)
        except Malformed:
            return None
        if not isinstance(found, Message | Heartbeat | Join) or found.group != self.group:
            return None
        brought = found.key if isinstance(found, Join) and self.knowledge.has_keys else UNSET
        if brought is UNSET and (found.time is UNSET or found.time <= above):
            return None  # not worth the time to verify a signature
        if self.knowledge.has_keys:
            signature = signature_in(record)
            if signature is None or not any(is_signed_by(key, signature, record) for key in self._keys_for(found)):
                return None
            if brought is not UNSET:
                self.knowledge.add_key(found.sender, found.epoch, brought)  # type: ignore[arg-type]
        return found

    def _keys_for(self, record: Message | Heartbeat | Join) -> list[bytes]:
        """The keys, one of which must have signed this. By clocks a created group is closed: no one admits itself."""
        if isinstance(record, Join):
            texts = [self.knowledge.newest_key(record.sender), self.knowledge.newest_key(SERVICE)]
        else:
            texts = [self.knowledge.key_of(record.sender, record.epoch)]  # type: ignore[arg-type]
        return [key for text in texts if (key := read_key(text)) is not None]

    # ── keeping ───────────────────────────────────────────────────────────────────────────────────────────────────

    def load(self, knowledge: Mapping[str, Any] | None, stamps: Mapping[str, Any] | None, seq: int) -> None:
        """Go on with what `knowledge.dump` and `stamps.dump` returned; `seq` is the last seq that was used."""
        if knowledge is not None:
            self.knowledge.load(knowledge)
            self.adopt_order(self.knowledge.order or self.order.name)
        if stamps is not None:
            self.stamps.load(stamps)
        self.stamps.seq = seq
