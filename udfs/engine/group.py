"""The hold-back engine: one group, record by record.

Every order is the same loop. A message that is ready is delivered; one that is not watches ONE thing it waits for (an
id, a join, or QUEUED: its release keeps it) and is judged again when that happens, so no record ever causes a rescan.
The engine owns holding, duplicates, gaps, abandoning, limits, positions and accounting; the order (orders/) answers
what to wait for, and the release (release/) decides how what waits goes out.

A message goes through these states. Beside each arrow is the function that makes the transition:

    ARRIVED      Holdback.receive calls Group.receive_message, which asks order.arrive, or admission.check
       |
       +---------> dropped       Group._hold_or_refuse: an exact copy, it is only counted
       +---------> REFUSED       Group._refuse: a dead letter; refuse_permanently takes its id for ever, too
       +---------> SETTLED       Group.receive_message: it is ready, the usual case; Group.deliver_next: so are several
       |
       v           Release.take: it waits, and there is room
    HELD, watches an id or a join
       |
       +---------> SETTLED       Release.happened: its id is settled or its sender joined, and it is ready
       +---------> HELD          AtOnce.watch: it waits for another id
       +---------> REFUSED       AtOnce.woken_by: refused when judged again; or refuse_permanently: what it answers was
       |
       v           Release.take or AtOnce.watch: it waits for no single id any more
    QUEUED, by clocks or for its destinations
       |
       +---------> SETTLED       ByClocks.release_ready: the clocks let it go; ByDestination._end: all have got it

    HELD, QUEUED   -> REFUSED    Release.withdraw: it lies above a fence, or a new key makes it forged
    HELD, QUEUED,  -> ABANDONED  Release.abandon: a dead letter for what was held, and a stand-in in its place, which is
    or missing                   HELD until its turn and then SETTLED like a message

A settled message has its position (GroupState.settle), and what depends on it goes on. The position of an abandoned
message belongs to its stand-in.

Same state and same record give the same output: one step is one record, and all it frees is delivered before the next.
"""

from collections.abc import Callable, Mapping

from msgspec import UNSET

from precede.udfs.codes import COPY, Refusal
from precede.udfs.engine.admission import check, refuse_permanently, runs_refusal, too_many_runs
from precede.udfs.engine.held import HeldMessage, Watch
from precede.udfs.engine.interfaces import OrderRules, Release, is_closed
from precede.udfs.engine.outbox import Labels, Outbox
from precede.udfs.engine.senders import SenderRuns
from precede.udfs.engine.state import NO_OPTIONS, GroupState
from precede.udfs.limits import Limits
from precede.udfs.records.messages import Id, Message, Options
from precede.udfs.records.signatures import Keyring


class Shared:
    """What all groups of one kernel share."""

    __slots__ = ("holding", "limits", "orders", "outbox")

    def __init__(self, limits: Limits, orders: Mapping[str, Callable[["Group"], OrderRules]], outbox: Outbox) -> None:
        self.limits = limits
        self.orders = orders
        """The orders by name; each makes its rules for one group."""
        self.outbox = outbox
        outbox.limits = limits
        self.holding: set[Group] = set()
        """The groups that time may matter to: all that hold something, and some that did a while ago."""


class Group(GroupState):
    """One group, and what one more message does to it."""

    __slots__ = ("order", "orders", "release")
    __deletable__ = ("order", "release")

    def __init__(self, key: bytes, *, order: str, partition: int, shared: Shared) -> None:
        super().__init__(key, partition, shared.limits, shared.outbox, shared.holding)
        self.orders = shared.orders
        self.configure(order, NO_OPTIONS)

    def configure(self, order: str, options: Options) -> None:
        """Take the order and the options, before anything else of the group was accepted."""
        self.options = options
        self.window = self.limits.window if options.window is UNSET else options.window
        self.digests = self.limits.digests if options.digests is UNSET else options.digests
        self.order: OrderRules = self.orders[order](self)
        self.release: Release = self.order.release
        self.closed = is_closed(options.closed, None if options is NO_OPTIONS else self.order)
        self.keyring = None if options.keys is UNSET else Keyring(options.keys)
        self.take_at_once()
        self.labels = Labels(self.key, self.name, order, self.partition, takes_apart=self.order.takes_apart)
        self.form_delivered = self.labels.delivered

    def take_at_once(self) -> None:
        """Let records of this group be taken at once, unless their signatures must be checked first."""
        self.plain_partition = self.partition if self.keyring is None else None

    def receive_message(self, message: Message, value: bytes, offset: int, now_ms: int) -> None:
        """One step: a message arrives at `offset`, and the log took it at `now_ms`."""
        seq: int = message.seq
        epoch: int = message.epoch  # type: ignore[assignment]  # the reader has set it
        name = message.sender
        sender = self.senders.get((name, epoch) if epoch else name)
        if sender is None:
            sender = self.new_sender(name, epoch)
        id_: Id = (name, epoch, seq)
        verdict: Refusal | Watch | None
        is_usual = sender.highest < seq <= sender.highest + self.window and seq <= sender.fence
        if is_usual and (not self.closed or self.has_member(name, epoch)):
            verdict = self.order.arrive(id_, message)
        else:
            verdict = check(self, self.order, sender, id_, message, value)
        is_next = seq == sender.prefix + 1 and not sender.beyond
        if verdict is not None or not (is_next or not too_many_runs(self, sender, seq)):
            self._hold_or_refuse(sender, HeldMessage(offset, now_ms, 0, value, id_, None, message), verdict)
            return
        # It is ready when it arrives: the usual case, so what it takes stands here, without a call.
        if seq > sender.highest:
            if sender.highest == 0:
                self.add_sender(sender)
                self.begun = True
            sender.highest = seq
        position = self.position = self.position + 1
        formed = self.formed
        if formed is not None:
            formed.ordered.append(self.form_delivered % (value[:-1], position, offset, now_ms, offset, now_ms))
            formed.ordered_keys.append(self.key)
        else:
            one = HeldMessage(offset, now_ms, 0, value, id_, None, message)
            self.outbox.place(self.labels, one, position, offset, now_ms)
        if is_next:
            sender.prefix = seq
        else:
            sender.add(seq)
        if self.digests:
            sender.remember(seq, value, self.digests)
        if self.waiting and id_ in self.waiting:
            self.release.happened(id_, offset, now_ms)

    def _hold_or_refuse(self, sender: SenderRuns, one: HeldMessage, verdict: Watch | Refusal | None) -> None:
        """A message that has just come waits, is refused or dropped; without a verdict there is no room for a run."""
        if verdict is COPY:
            self.outbox.duplicates += 1
            return
        self.deadline = None
        if verdict is None:
            verdict = runs_refusal(self, sender.name)
        if isinstance(verdict, Refusal):
            self._refuse(sender, one, verdict)
            return
        refusal = self.release.take(sender, one, verdict, one.offset, one.arrived_ms)
        if refusal is not None:
            self.refuse_held(one, refusal)

    def deliver_next(self, values: list[bytes], messages: list[Message]) -> int:
        """Deliver messages of one sender that are its next ones, as long as nothing is in their way; returns how many.

        The outbox is not told of them: a peer has them in its hand, and positions mean nothing there.
        """
        name, epoch, seq = messages[0].sender, messages[0].epoch, messages[0].seq
        assert isinstance(epoch, int)  # the reader has set it
        order, waiting = self.order, self.waiting
        sender = self.senders.get((name, epoch) if epoch else name)
        if sender is None or not 0 < sender.highest == sender.largest == seq - 1 or not order.waits_once:
            return 0
        if self.closed and not self.has_member(name, epoch):
            return 0
        for message in messages[: max(0, sender.fence - sender.highest)]:
            id_: Id = (name, epoch, message.seq)
            if (waiting and id_ in waiting) or not (order.in_turn or order.arrive(id_, message) is None):
                break
            sender.extend(1)
            sender.highest = message.seq
        count = sender.highest + 1 - seq
        self.position += count
        if self.digests and count:
            sender.remember_next(seq, values[:count], self.digests)
        return count

    def _refuse(self, sender: SenderRuns, one: HeldMessage, refusal: Refusal) -> None:
        """Write the dead letter of a message that arrived; some refusals also take its id for ever."""
        if refusal.code in self.order.takes_id and sender.refuses_too_many(one.id[2], self.limits.runs_max):
            refusal = runs_refusal(self, sender.name)
        if refusal.code in self.order.takes_id:
            self.accept(sender, one.id)
            refuse_permanently(self, one, refusal)
        else:
            self.refuse_held(one, refusal)

    def close(self) -> None:
        """Let go of the order and the release: they name the group, so counting references would never free them."""
        self.keyring = None
        del self.order, self.release
