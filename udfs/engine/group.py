"""The hold-back engine: one group, record by record.

Every order is the same loop, and this is it. A message that is ready is delivered; one that is not watches ONE thing it
waits for (an id, or a join) and is judged again when that happens, so no record ever causes a rescan. The engine owns
holding, duplicates, gaps, giving up, limits, positions and accounting; the order (orders/) answers what to wait for.

Same state and same record give the same output: one step is one record, and all it frees is delivered before the next.
The checks stand in the contract's order (section 3, "Order of checks").
"""

from bisect import bisect_left
from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from itertools import islice

from msgspec import UNSET, UnsetType

from precede.udfs import codes
from precede.udfs.codes import COPY, Refusal
from precede.udfs.engine.held import QUEUED, HeldMessage, Watch, Watchers, arrival
from precede.udfs.engine.outbox import Outbox, ordered_form, stand_in_head
from precede.udfs.engine.permanent_refusals import condemn
from precede.udfs.engine.senders import Sender, SenderKey, fenced, sender_key
from precede.udfs.limits import Limits
from precede.udfs.membership.keyring import Keyring
from precede.udfs.membership.members import Membership
from precede.udfs.orders import ORDERS
from precede.udfs.orders.order import Order
from precede.udfs.records.messages import Id, Identity, LogRecord, Message, Options, Who
from precede.udfs.release.clock_steps import advance
from precede.udfs.ticks.repair_timers import Waits

NO_OPTIONS = Options()


class Group:
    """The state of one group, and what one more record does to it."""

    __slots__ = (
        "_abandoned",
        "_delivered",
        "begun",
        "closed",
        "deadline",
        "digests",
        "epochs",
        "held",
        "held_bytes",
        "key",
        "keyring",
        "limits",
        "looked",
        "membership",
        "name",
        "options",
        "order",
        "outbox",
        "partition",
        "plain_partition",
        "position",
        "senders",
        "waiting",
        "waits",
        "window",
    )

    def __init__(self, key: bytes, *, order: str, limits: Limits, partition: int, outbox: Outbox) -> None:
        self.key = key
        self.name = key.decode()
        self.limits = limits
        self.outbox = outbox
        self.partition = partition
        self.position = 0
        self.begun = False
        """Whether a record of this group was accepted; until then nothing of it need be kept."""
        self.senders: dict[SenderKey, Sender] = {}
        self.epochs: dict[str, list[int]] = {}
        """Of each name the epochs above 0 that were seen, in order, but for those that a later one has ended."""
        self.held: dict[Id, HeldMessage] = {}
        self.held_bytes = 0
        self.waiting: dict[Watch, Watchers] = {}
        """Who waits for what."""
        self.looked: dict[Who, list[int]] = {}
        """Of each sender the first seqs that are absent, as far as one look at the group has found them."""
        self.waits: Waits | None = None
        """What is known of those it has been waiting for a while; mostly nothing."""
        self.deadline: tuple[int, int | None] | None = None
        """Where it is known: at which position, and from which time of the log on, a tick may do something here."""
        self.membership = Membership(self)
        self.configure(order, NO_OPTIONS)

    def configure(self, order: str, options: Options) -> None:
        """Take the order and the options; before anything else of the group was accepted."""
        self.options = options
        self.window: int = self.limits.window if options.window is UNSET else options.window
        self.digests: int = self.limits.digests if options.digests is UNSET else options.digests
        self.order: Order = ORDERS[order](self)
        # Where clocks decide, a created group waits for its members, so it has to know them: it is closed.
        self.closed = options.closed is True or (self.order.by_clocks and options is not NO_OPTIONS)
        self.keyring = None if options.keys is UNSET else Keyring(self, options.keys)
        self.plain_partition = self.partition if self.keyring is None else None
        """The partition whose records are taken at once; none where their signatures must be looked at first."""
        self._delivered = ordered_form(order, "delivered", self.partition)
        self._abandoned = ordered_form(order, "abandoned", self.partition)

    # ── messages ──────────────────────────────────────────────────────────────────────────────────────────────────

    def receive_message(self, message: Message, value: bytes, offset: int, now_ms: int) -> None:
        """One step: a message arrives at `offset`, taken by the log at `now_ms`."""
        seq: int = message.seq
        epoch: int = message.epoch  # type: ignore[assignment]  # and set the epoch
        name = message.sender
        sender = self.senders.get((name, epoch) if epoch else name)
        if sender is None:
            sender = self.membership.new_sender(name, epoch)
        id_: Id = (name, epoch, seq)
        verdict: Refusal | Watch | None
        is_usual = sender.highest < seq <= sender.highest + self.window and seq <= sender.fence
        if is_usual and (not self.closed or self.membership.has(name, epoch)):
            verdict = self.order.arrive(id_, message)
        else:
            verdict = self._check(sender, id_, message, value)
        if verdict is None:
            if (seq == sender.prefix + 1 and not sender.beyond) or not self._too_many_runs(sender, seq):
                self._deliver_at_once(sender, id_, value, offset, now_ms)
                return
            verdict = self.runs_refusal(name)
        if verdict is COPY:
            self.outbox.duplicates += 1
            return
        self.deadline = None
        one = HeldMessage(offset, now_ms, 0, value, id_, None, message)
        if verdict.__class__ is tuple:
            if self.order.destinations is not None:
                refusal = self.order.destinations.receive(sender, one, verdict, offset, now_ms)
                if refusal is not None:
                    self.refuse_held(one, refusal)
                return
            refusal = self.no_room(sender, seq, value, len(self.held))
            if refusal is None or (verdict == QUEUED and self.order.lets_go(one, now_ms)):  # type: ignore[attr-defined]
                self.accept(sender, id_)
                self.hold(one, verdict)
                if self.order.by_clocks:
                    advance(self, offset, now_ms)
                return
            verdict = refusal
        assert isinstance(verdict, Refusal)
        if verdict.code in self.order.takes_id and sender.refuses_too_many(seq, self.limits.runs_max):
            verdict = self.runs_refusal(name)
        if verdict.code in self.order.takes_id:
            self.accept(sender, id_)
            condemn(self, one, verdict)
        else:
            self.refuse(verdict, Identity(self.name, *id_), value, offset, now_ms)

    def _check(self, sender: Sender, id_: Id, message: Message, value: bytes) -> Watch | Refusal | None:
        """Every check, in the contract's order: copy, fenced, late, stamp, equivocation, seq_jump, and so on."""
        seq = id_[2]
        held = self.held.get(id_)
        settled = held is None and seq in sender
        overtaken = not settled and held is None and seq <= sender.highest <= sender.fence
        if overtaken and sender.refused is None and not self.closed:
            return self.order.arrive(id_, message)  # the usual one of those that come here
        abandoned = settled and sender.abandoned is not None and seq in sender.abandoned
        if settled and not abandoned and not sender.differs(seq, value, self.digests):
            return COPY
        if held is not None and held.value == value:
            return COPY
        if seq > sender.fence:
            return fenced(sender)
        if abandoned or (held is not None and held.value is None):
            return Refusal(codes.LATE, "The group has given up on this message; another record stands in its place.")
        fault = self.order.fault(message)
        if fault is not None:
            return fault
        if settled or held is not None:
            return Refusal(codes.EQUIVOCATION, "Another message came first with the same id and other content.")
        if sender.refused is not None and seq in sender.refused:
            verdict = self.order.wait(id_, message)
            if isinstance(verdict, Refusal):
                return verdict
            return Refusal(codes.EQUIVOCATION, "A message with the same id and other content was refused before.")
        if seq > sender.highest + self.window:
            past = f"more than {self.window} past {sender.highest}, the highest seen of {_whose(id_)}"
            return Refusal(codes.SEQ_JUMP, f"seq {seq} is {past}.")
        return self.order.poison(id_, message) or self._judge(id_, message)

    def _judge(self, id_: Id, message: Message) -> Watch | Refusal | None:
        """What a message waits for: to be a member where the group is closed, then what its order says."""
        if self.closed and not self.membership.has(id_[0], id_[1]):
            return id_[:2]
        return self.order.wait(id_, message)

    def accept(self, sender: Sender, id_: Id) -> None:
        """From here on the record counts."""
        self.begun = True
        if id_[2] > sender.highest:
            if sender.highest == 0:
                self.add_sender(sender)
            sender.highest = id_[2]

    def add_sender(self, sender: Sender) -> None:
        """Remember a sender, from the first record of its that counts."""
        self.senders[sender_key(sender.name, sender.epoch)] = sender
        if sender.epoch:
            seen = self.epochs.setdefault(sender.name, [])
            at = bisect_left(seen, sender.epoch)
            if seen[at : at + 1] != [sender.epoch]:
                seen.insert(at, sender.epoch)

    # ── limits ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _too_many_runs(self, sender: Sender, seq: int) -> bool:
        return sender.run_count() >= self.limits.runs_max and sender.opens_run(seq)

    def runs_refusal(self, name: str) -> Refusal:
        most = self.limits.runs_max
        return Refusal(codes.BACKPRESSURE, f"What is decided of {name!r} lies in {most} runs already, its limit.")

    def no_room(self, sender: Sender, seq: int, value: bytes, held: int, more: int = 1) -> Refusal | None:
        """Why a message cannot be taken that would have to be held, at so many more places than are waited for now."""
        if more and held + more > self.limits.held_max:
            return Refusal(codes.BACKPRESSURE, f"The group already holds {held} messages, nearly its limit.")
        if more and self.held_bytes + len(value) > self.limits.held_bytes_max:
            return Refusal(codes.BACKPRESSURE, f"The group already holds {self.held_bytes} bytes, nearly its limit.")
        if self._too_many_runs(sender, seq) or sender.refuses_too_many(seq, self.limits.runs_max):
            return self.runs_refusal(sender.name)
        return None

    # ── the hold-back loop ────────────────────────────────────────────────────────────────────────────────────────

    def _deliver_at_once(self, sender: Sender, id_: Id, value: bytes, offset: int, now_ms: int) -> None:
        """The common case, kept short: the message is ready on arrival."""
        seq = id_[2]
        if seq > sender.highest:
            if sender.highest == 0:
                self.add_sender(sender)
                self.begun = True
            sender.highest = seq
        position = self.position = self.position + 1
        outbox = self.outbox
        outbox.ordered.append(self._delivered % (value[:-1], position, offset, now_ms, offset, now_ms))
        outbox.ordered_keys.append(self.key)
        if seq == sender.prefix + 1 and not sender.beyond:
            sender.prefix = seq
        else:
            sender.add(seq)
        if self.digests:
            sender.remember(seq, value, self.digests)
        if self.waiting and id_ in self.waiting:
            self.settle(self.woken_by(id_), offset, now_ms)

    def hold(self, one: HeldMessage, watch: Watch) -> None:
        """Keep a message until what it watches happens."""
        if not self.held:
            self.outbox.holding.add(self)
        self.held[one.id] = one
        self.outbox.held_growth += 1
        if one.value is not None:
            self.held_bytes += len(one.value)
        self._watch(one, watch)

    def hold_again(self, held: list[HeldMessage]) -> None:
        """Take up those that were held before, in a snapshot, and in this order; they may be very many."""
        self.outbox.holding.add(self)
        self.held = {one.id: one for one in held}
        self.held_bytes = sum([len(one.value) for one in held if one.value is not None])
        find = self.waiting.setdefault
        for one in held:
            if find(one.watch, one) is not one:  # type: ignore[arg-type]  # it watched something
                self._join_watchers(one)

    def _watch(self, one: HeldMessage, watch: Watch) -> None:
        """Let a held message wait for this from here on."""
        one.watch = watch
        if self.order.asks_no_more(watch):
            one.message = None  # what is held should be small
        if self.waiting.setdefault(watch, one) is not one:
            self._join_watchers(one)
        if self.order.by_clocks and len(watch) != 2:
            self.order.on_hold(one)

    def _join_watchers(self, one: HeldMessage) -> None:
        """Somebody waits for the same already."""
        watch: Watch = one.watch  # type: ignore[assignment]  # it has one by now
        others = self.waiting[watch]
        if isinstance(others, dict):
            others[one.id] = one
        else:
            self.waiting[watch] = {others.id: others, one.id: one}

    def release(self, one: HeldMessage) -> None:
        """Take a message out of the held ones; the caller says where it ends."""
        del self.held[one.id]
        self.outbox.held_growth -= 1
        if one.value is not None:
            self.held_bytes -= len(one.value)

    def stop_watching(self, one: HeldMessage) -> None:
        """Take a message out of those that wait, before what it waits for has happened."""
        assert one.watch is not None
        watchers = self.waiting[one.watch]
        if isinstance(watchers, dict):
            del watchers[one.id]
            if watchers:
                return
        del self.waiting[one.watch]

    def take_watchers(self, watch: Watch) -> list[HeldMessage]:
        """Those that watch this, in arrival order; they watch nothing any more."""
        watchers = self.waiting.pop(watch, None)
        if watchers is None:
            return []
        if isinstance(watchers, dict):
            return sorted(watchers.values(), key=arrival)
        return [watchers]

    def woken_by(self, watch: Watch) -> list[HeldMessage]:
        """Those that watched this, in arrival order, each judged again; the ready ones are returned, no longer held."""
        ready: list[HeldMessage] = []
        condemned: list[tuple[HeldMessage, Refusal]] = []
        is_ready = self.order.asks_no_more(watch)
        for one in self.take_watchers(watch):
            verdict: Watch | Refusal | None = None
            if not is_ready:
                verdict = self.turn(one.id) if one.message is None else self._judge(one.id, one.message)
            if verdict.__class__ is tuple:
                self._watch(one, verdict)
                continue
            self.release(one)
            if verdict is None:
                ready.append(one)
            else:
                condemned.append((one, verdict))  # type: ignore[arg-type]
        for one, refusal in condemned:  # last, so that what hangs on them stands where it will be found
            if refusal.code in self.order.takes_id:
                condemn(self, one, refusal)
            else:
                self.refuse_held(one, refusal)
        return ready

    def settle(self, ready: list[HeldMessage], offset: int, now_ms: int) -> None:
        """Deliver what is ready and all it frees; after every single delivery the ready set is taken anew."""
        if self.order.depth_first:
            ready.reverse()
            while ready:
                one = ready.pop()
                self._deliver(one, offset, now_ms)
                if one.id in self.waiting:
                    freed = self.woken_by(one.id)
                    freed.reverse()
                    ready += freed
            return
        ranked = [(one.offset, one.rank, one) for one in ready]
        heapify(ranked)
        while ranked:
            one = heappop(ranked)[2]
            self._deliver(one, offset, now_ms)
            for freed_one in self.woken_by(one.id):
                heappush(ranked, (freed_one.offset, freed_one.rank, freed_one))

    def deliver(self, one: HeldMessage, offset: int, now_ms: int) -> None:
        """Deliver one message that is held no longer, and all it frees."""
        self._deliver(one, offset, now_ms)
        if one.id in self.waiting:
            self.settle(self.woken_by(one.id), offset, now_ms)

    def _deliver(self, one: HeldMessage, offset: int, now_ms: int) -> None:
        """The next position goes to this message, or to the stand-in of one given up on."""
        name, epoch, seq = one.id
        sender = self.senders[(name, epoch) if epoch else name]
        if one.value is None:
            sender.add(seq)
            self._emit(stand_in_head(self.name, one.id), self._abandoned, one.offset, one.arrived_ms, offset, now_ms)
            if self.order.by_clocks:
                self.order.stood_in(one.id)  # type: ignore[attr-defined]
            return
        sender.add(seq)
        if self.digests:
            sender.remember(seq, one.value, self.digests)
        self._emit(one.value[:-1], self._delivered, one.offset, one.arrived_ms, offset, now_ms)

    def _emit(self, head: bytes, form: bytes, arrived_at: int, arrived_ms: int, offset: int, now_ms: int) -> None:
        self.position += 1
        self.outbox.ordered.append(form % (head, self.position, arrived_at, arrived_ms, offset, now_ms))
        self.outbox.ordered_keys.append(self.key)

    def deliver_control(self, value: bytes, offset: int, now_ms: int) -> None:
        """A membership record that takes effect has its place in the sequence."""
        self.begun = True
        if self.order.destinations is not None:
            self.order.destinations.deliver_control(value, offset, now_ms)
            return
        self._emit(value[:-1], self._delivered, offset, now_ms, offset, now_ms)

    def wake(self, watch: Watch, offset: int, now_ms: int) -> None:
        """Something other than a delivery happened that held messages may wait for."""
        if self.order.destinations is not None:
            self.order.destinations.joined(watch, offset, now_ms)
            return
        self.settle(self.woken_by(watch), offset, now_ms)
        if self.order.by_clocks:
            advance(self, offset, now_ms)

    def turn(self, id_: Id) -> Id | None:
        """Where each sender's order is kept: the sender's previous id, if that is not settled yet."""
        name, epoch, seq = id_
        if seq == 1:
            return None
        sender = self.senders.get(sender_key(name, epoch))
        if sender is not None and seq - 1 in sender:
            return None
        return (name, epoch, seq - 1)

    def missing_of(self, name: str, epoch: int, first: int, last: int) -> Iterator[int]:
        """The seqs of this stretch that are not settled."""
        sender = self.senders.get(sender_key(name, epoch))
        return iter(range(first, last + 1)) if sender is None else sender.missing(first, last)

    def missing_before(self, id_: Id, at_most: int) -> list[Id]:
        """The ids below this one, of its sender, that are neither settled nor here."""
        name, epoch, seq = id_
        absent = self.looked.get((name, epoch))
        if absent is None:
            sender = self.senders[sender_key(name, epoch)]
            seqs = (one for one in sender.missing(1, sender.highest) if (name, epoch, one) not in self.held)
            absent = self.looked[name, epoch] = list(islice(seqs, at_most))
        return [(name, epoch, one) for one in absent if one < seq]

    # ── refusals ──────────────────────────────────────────────────────────────────────────────────────────────────

    def refuse(self, refusal: Refusal, identity: Identity, value: bytes, offset: int, arrived_ms: int) -> None:
        """Write the dead letter of one record of this group."""
        self.outbox.refuse(refusal, identity, LogRecord(value, self.key, self.partition, offset, arrived_ms))

    def refuse_held(self, one: HeldMessage, refusal: Refusal, destination: str | UnsetType = UNSET) -> None:
        """Write the dead letter of a message that was, or would have been, held; perhaps of one destination of it."""
        assert one.value is not None
        record = LogRecord(one.value, self.key, self.partition, one.offset, one.arrived_ms)
        self.outbox.refuse(refusal, Identity(self.name, *one.id), record, destination)


def _whose(id_: Id) -> str:
    return f"{id_[0]!r} (epoch {id_[1]})"
