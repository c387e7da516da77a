"""The state of one group: its senders, members and held messages, and the few ways in which these change.

Nothing is judged here. Which message is taken is in admission.py, how held messages are let go in release/, and the
steps that records of the log make are in group.py.

A held message watches one thing:

    an id, (sender, epoch, seq)    until this message is settled
    a join, (sender, epoch)        until this sender is a member of the closed group
    QUEUED, the empty tuple        for no single thing: the clocks, or places at destinations, let it go

The kinds are told apart by their length, which costs nothing to build and nothing to keep. Where many are looked at in
one loop the length is compared in place.
"""

from bisect import bisect_left
from collections.abc import Iterator
from typing import Any, Final, TypeGuard

from msgspec import UNSET, UnsetType

from precede.udfs.codes import Refusal
from precede.udfs.engine.held import HeldMessage, Watch, Watchers
from precede.udfs.engine.outbox import BytesOutbox, Labels, Outbox
from precede.udfs.engine.repair_timers import RepairTimers
from precede.udfs.engine.senders import SenderKey, SenderRuns, sender_key
from precede.udfs.limits import Limits
from precede.udfs.records.messages import Id, Identity, LogRecord, Options, Record, Who, identity_of
from precede.udfs.records.signatures import Keyring

QUEUED: tuple[()] = ()
"""The watch of a message that waits for no single id or join."""

ID_PARTS: Final = 3
"""The length of a watch that is an id."""
WHO_PARTS: Final = 2
"""The length of a watch that is a join."""


def waits_for_id(watch: Watch | None) -> TypeGuard[Id]:
    """Whether this watch is the id of a message."""
    return watch is not None and len(watch) == ID_PARTS


def waits_for_join(watch: Watch | None) -> TypeGuard[Who]:
    """Whether this watch is the join of a sender and epoch."""
    return watch is not None and len(watch) == WHO_PARTS


def arrival(held: HeldMessage) -> tuple[int, int]:
    """How held messages rank by their arrival."""
    return held.offset, held.rank


def first_of(watchers: Watchers) -> HeldMessage:
    """The watcher that has waited longest."""
    return min(watchers.values(), key=arrival) if isinstance(watchers, dict) else watchers


def by_arrival(watchers: Watchers) -> list[HeldMessage]:
    """All watchers of one thing in the order they arrived."""
    return sorted(watchers.values(), key=arrival) if isinstance(watchers, dict) else [watchers]


NO_OPTIONS = Options()

MembershipKind = tuple[int, str, int]
"""Which membership records replace each other: the kind as a number, the name and the epoch, where they count."""


class GroupState:
    """What is known of one group."""

    __slots__ = (
        "begun",
        "closed",
        "deadline",
        "digests",
        "epochs",
        "form_delivered",
        "formed",
        "held",
        "held_bytes",
        "holding",
        "key",
        "keyring",
        "labels",
        "limits",
        "members",
        "name",
        "options",
        "outbox",
        "partition",
        "plain_partition",
        "position",
        "repair_timers",
        "senders",
        "took_effect",
        "waiting",
        "window",
    )

    # What the options of a group decide; Group.configure sets it.
    options: Options
    window: int
    digests: int
    """How many digests of delivered messages count of each sender."""
    closed: bool
    """Whether only members may speak; what others say waits for their join."""
    keyring: Keyring | None
    plain_partition: int | None
    """The partition whose records are taken at once; None where something must be looked at before.

    That is a signature, that the state covers the record already, or that this is a first change to be noted.
    """
    labels: Labels
    form_delivered: bytes
    """`labels.delivered`, at hand for the usual message."""

    def __init__(self, key: bytes, partition: int, limits: Limits, outbox: Outbox, holding: set[Any]) -> None:
        self.key = key
        self.name = key.decode()
        self.partition = partition
        self.limits = limits
        self.outbox = outbox
        self.formed = outbox if isinstance(outbox, BytesOutbox) else None
        """The same outbox, where it takes bytes: the usual message is put into it without a call."""
        self.holding = holding
        """The groups of this kernel that hold something; a group adds itself."""
        self.position = 0
        """The position of the last ordered record."""
        self.begun = False
        """Whether a record of this group was accepted; until then nothing of it need be kept."""
        self.senders: dict[SenderKey, SenderRuns] = {}
        self.epochs: dict[str, list[int]] = {}
        """Of each name the epochs above 0 that were seen, in order, without those that a later one has ended."""
        self.members: dict[str, tuple[int, bool]] = {}
        """Of each name the largest epoch that joined, and whether it is in."""
        self.took_effect: dict[MembershipKind, int] = {}
        """A digest of the last membership record of each kind that took effect, to tell its copies."""
        self.held: dict[Id, HeldMessage] = {}
        """All held messages, in the order they began to be held."""
        self.held_bytes = 0
        self.waiting: dict[Watch, Watchers] = {}
        """The held messages by what they watch."""
        self.repair_timers: RepairTimers | None = None
        """What is remembered of the things it has waited for a while; mostly nothing."""
        self.deadline: tuple[int, int | None] | None = None
        """Where it is known: at which position, and from which time of the log on, a tick may do something here."""

    @property
    def description(self) -> str | None:
        """What the group is about, as its `create` says."""
        return None if self.options.description is UNSET else self.options.description

    # ── senders and members ───────────────────────────────────────────────────────────────────────────────────────

    def has_member(self, name: str, epoch: int) -> bool:
        """Whether this sender is a member now, or its messages up to its fence still count as a member's."""
        known = self.members.get(name)
        if known is None or epoch > known[0]:
            return False
        # What was in flight of an older epoch, or of a member that left, still counts: the fence cuts off the rest.
        return epoch == known[0] or sender_key(name, epoch) in self.senders

    def new_sender(self, name: str, epoch: int) -> SenderRuns:
        """The state of a sender that was never seen; an epoch older than the joined one is fenced as a whole."""
        sender = SenderRuns(name, epoch)
        known = self.members.get(name)
        if known is not None and epoch < known[0]:
            sender.fence = 0
        return sender

    def accept(self, sender: SenderRuns, id_: Id) -> None:
        """From here on the record counts."""
        self.begun = True
        if id_[2] > sender.highest:
            if sender.highest == 0:
                self.add_sender(sender)
            sender.highest = id_[2]

    def add_sender(self, sender: SenderRuns) -> None:
        """Remember a sender, from its first record that counts."""
        self.senders[sender_key(sender.name, sender.epoch)] = sender
        if sender.epoch:
            seen = self.epochs.setdefault(sender.name, [])
            at = bisect_left(seen, sender.epoch)
            if seen[at : at + 1] != [sender.epoch]:
                seen.insert(at, sender.epoch)

    def turn(self, id_: Id) -> Id | None:
        """Where each sender's order is kept: the sender's previous id if that is not settled yet."""
        name, epoch, seq = id_
        before = seq - 1
        sender = self.senders.get((name, epoch) if epoch else name)
        if before == 0 or (sender is not None and (before <= sender.prefix or before in sender)):
            return None
        return (name, epoch, before)

    def missing_of(self, name: str, epoch: int, first: int, last: int) -> Iterator[int]:
        """The seqs of this stretch that are not settled."""
        sender = self.senders.get(sender_key(name, epoch))
        return iter(range(first, last + 1)) if sender is None else sender.missing(first, last)

    def timers_to_write(self) -> RepairTimers:
        """The repair timers, made where there are none yet."""
        if self.repair_timers is None:
            self.repair_timers = RepairTimers()
        return self.repair_timers

    def note_sign_of_life(self, name: str, epoch: int, now_ms: int) -> None:
        """A member was heard from."""
        heard = self.timers_to_write().heard
        heard[name, epoch] = max(now_ms, heard.get((name, epoch), now_ms))

    # ── held messages and what they watch ─────────────────────────────────────────────────────────────────────────

    def hold(self, one: HeldMessage, watch: Watch) -> None:
        """Keep a message until what it watches happens."""
        if not self.held:
            self.holding.add(self)
        self.held[one.id] = one
        self.outbox.held_growth += 1
        if one.value is not None:
            self.held_bytes += len(one.value)
        one.watch = watch
        if self.waiting.setdefault(watch, one) is not one:
            self._join_watchers(one, watch)

    def hold_again(self, held: list[HeldMessage]) -> None:
        """Take up the messages that a snapshot holds, in this order; there may be very many."""
        self.holding.add(self)
        self.held = {one.id: one for one in held}
        self.held_bytes = sum([len(one.value) for one in held if one.value is not None])
        find = self.waiting.setdefault
        for one in held:
            watch: Watch = one.watch  # type: ignore[assignment]  # it watched something
            if find(watch, one) is not one:
                self._join_watchers(one, watch)

    def watch(self, one: HeldMessage, watch: Watch) -> None:
        """Let a held message wait for this from here on."""
        one.watch = watch
        if self.waiting.setdefault(watch, one) is not one:
            self._join_watchers(one, watch)

    def _join_watchers(self, one: HeldMessage, watch: Watch) -> None:
        """Another message waits for the same already."""
        others = self.waiting[watch]
        if isinstance(others, dict):
            others[one.id] = one
        else:
            self.waiting[watch] = {others.id: others, one.id: one}

    def take_out(self, one: HeldMessage) -> None:
        """Take a message out of the held ones; the caller decides where it ends."""
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
        """The messages that watch this, in arrival order; they watch nothing any more."""
        watchers = self.waiting.pop(watch, None)
        return [] if watchers is None else by_arrival(watchers)

    # ── what is written ───────────────────────────────────────────────────────────────────────────────────────────

    def settle(self, one: HeldMessage, offset: int, now_ms: int) -> None:
        """The next position goes to this message, which is held no longer, or to a stand-in."""
        name, epoch, seq = one.id
        sender = self.senders[(name, epoch) if epoch else name]
        sender.add(seq)
        if self.digests and one.value is not None:
            sender.remember(seq, one.value, self.digests)
        self.position += 1
        self.outbox.place(self.labels, one, self.position, offset, now_ms)

    def place_control(self, value: bytes, offset: int, now_ms: int) -> None:
        """The next position goes to a membership record that has just come."""
        self.position += 1
        self.outbox.place(self.labels, control(value, offset, now_ms), self.position, offset, now_ms)

    def refuse(self, refusal: Refusal, record: Record, value: bytes, offset: int, arrived_ms: int) -> None:
        """Refuse one record of this group that is no message."""
        came = LogRecord(value, self.key, self.partition, offset, arrived_ms)
        self.outbox.refuse(refusal, identity_of(record), came, UNSET, record)

    def refuse_held(self, one: HeldMessage, refusal: Refusal, destination: str | UnsetType = UNSET) -> None:
        """Refuse a message that was held, or would have been; or one destination of it."""
        assert one.value is not None
        came = LogRecord(one.value, self.key, self.partition, one.offset, one.arrived_ms)
        self.outbox.refuse(refusal, Identity(self.name, *one.id), came, destination)


def control(value: bytes, offset: int, now_ms: int) -> HeldMessage:
    """A membership record, as an outbox takes it."""
    return HeldMessage(offset, now_ms, 0, value, ("", 0, 0))


def whose(who: Who | Id) -> str:
    """A sender and its epoch, as a sentence names them."""
    return f"{who[0]!r} (epoch {who[1]})"
