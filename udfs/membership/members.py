"""Who belongs to a group: views as a function of the log (M2MC, chapter 5, in the central form of precede).

A member is known by the largest epoch it joined with and whether it is still in. That is a join-semilattice, (epoch,
out over in), so a leave of one epoch never undoes the join of a later one: the document's tombstone set, which keeps a
member out for ever once it has left, is cured by it.
"""

from bisect import bisect_left
from typing import TYPE_CHECKING

from msgspec import UNSET

from precede.udfs import codes
from precede.udfs.codes import Refusal
from precede.udfs.engine.held import HeldMessage
from precede.udfs.engine.missing import by_arrival
from precede.udfs.engine.senders import Sender, sender_key
from precede.udfs.limits import DIGESTS_MAX
from precede.udfs.membership.fences import close, fence, withdraw
from precede.udfs.membership.keyring import SERVICE, unfit
from precede.udfs.orders import ORDERS
from precede.udfs.records.messages import SEQ_MAX, Create, Evict, Join, Leave
from precede.udfs.release.by_clocks import Clocked
from precede.udfs.ticks.repair_timers import hear

if TYPE_CHECKING:
    from precede.udfs.engine.group import Group
    from precede.udfs.membership.keyring import Keyring


class Membership:
    """The members of one group, and the records that change them."""

    __slots__ = ("group", "members")

    def __init__(self, group: "Group") -> None:
        self.group = group
        self.members: dict[str, tuple[int, bool]] = {}
        """Of each name, the largest epoch that joined, and whether it is in."""

    def has(self, name: str, epoch: int) -> bool:
        """Whether this sender is a member now, or its messages up to its fence still count as a member's."""
        known = self.members.get(name)
        if known is None or epoch > known[0]:
            return False
        # Of an older epoch, or one that left, what was in flight still counts: the fence has cut off the rest.
        return epoch == known[0] or sender_key(name, epoch) in self.group.senders

    def new_sender(self, name: str, epoch: int) -> Sender:
        """The state of a sender never heard of; an epoch older than the joined one is fenced whole."""
        sender = Sender(name=name, epoch=epoch)
        known = self.members.get(name)
        if known is not None and epoch < known[0]:
            sender.fence = 0
        return sender

    def create(self, record: Create) -> Refusal | None:
        """Begin the group: order, options, first members."""
        group = self.group
        if group.begun:
            return Refusal(codes.BAD_STAMP, "A group can be created only before anything else of it was accepted.")
        options = record.options
        order = options.order if isinstance(options.order, str) else group.order.name
        if order not in ORDERS:
            return Refusal(codes.UNKNOWN_ORDER, f"The order {order[:60]!r} is unknown; there are {', '.join(ORDERS)}.")
        most = max(DIGESTS_MAX, group.limits.digests)
        if options.digests is not UNSET and options.digests > most:
            return Refusal(
                codes.BAD_STAMP, f"`digests` may be {most} at most, for all of them are kept of every sender."
            )
        refusal = None if options.keys is UNSET else unfit(options.keys)
        if refusal is not None:
            return refusal
        group.configure(order, options)
        for name in record.members:
            self.members[name] = (0, True)
        if isinstance(group.order, Clocked):
            group.order.on_create(record.members)
        elif group.order.destinations is not None:
            group.order.destinations.welcome(record.members)
        return None

    def join(self, record: Join) -> Refusal | None:
        """A sender becomes a member, or a member comes back with a larger epoch and its old one is fenced."""
        name = record.sender
        epoch: int = record.epoch
        known = self.members.get(name)
        if known is not None and epoch == known[0] and known[1]:
            return Refusal(codes.BAD_STAMP, f"{name!r} is already a member with epoch {epoch}.")
        if known is not None and epoch <= known[0]:
            return self._too_old(name, known[0])
        spoken = self.group.epochs.get(name)
        if spoken and epoch < spoken[-1] and not self.group.closed:
            return self._too_old(name, spoken[-1])
        order = self.group.order
        if isinstance(order, Clocked):
            refusal = order.judge_join(record)
            if refusal is not None:
                return refusal
            if not self._only_signs(name) or (known is not None and (name, known[0]) in order.floors):
                order.on_join(record)
        elif order.destinations is not None and not self._only_signs(name):
            order.destinations.welcome([name])
        self._fence_older(name, epoch)
        self.members[name] = (epoch, True)
        if self.group.keyring is not None:
            self._take_key(self.group.keyring, record, epoch)
        return None

    def _take_key(self, keyring: "Keyring", record: Join, epoch: int) -> None:
        """From this epoch on the key counts that the join brings; what the old one said of later ones does not."""
        name = record.sender
        before = keyring.newest(name)
        keyring.take(record)
        if keyring.newest(name) == before:
            return
        early: list[HeldMessage] = []
        for ahead in self.group.epochs.get(name, []):
            if ahead >= epoch:
                early += by_arrival(self.group.waiting.get((name, ahead), {}))
        withdraw(self.group, early, Refusal(codes.FORGED, f"{name!r} has another key from epoch {epoch} on."))

    def _only_signs(self, name: str) -> bool:
        """Whether this is the group's service, which joins to change its key: nobody waits for what it says."""
        return self.group.keyring is not None and name == SERVICE  # whose key none but `create` can have brought

    def _too_old(self, name: str, newest: int) -> Refusal:
        return Refusal(codes.FENCED, f"{name!r} has used epoch {newest} already: it must join with a larger one.")

    def speaks(self, name: str, epoch: int) -> None:
        """Where clocks decide, whoever speaks in an open group is a member, as if it had joined just now.

        What is still in flight of an epoch that has ended brings nobody back.
        """
        known = self.members.get(name)
        if known is None or known[0] < epoch:
            self._fence_older(name, epoch)
            self.members[name] = (epoch, True)

    def after_join(self, record: Join, offset: int, now_ms: int) -> None:
        """What the join lets go: what waited for it is judged again."""
        if self.group.order.by_clocks:
            hear(self.group, record.sender, record.epoch, now_ms)
        self.group.wake((record.sender, record.epoch), offset, now_ms)

    def leave(self, record: Leave) -> Refusal | None:
        """A member's epoch ends with its last message."""
        return self._put_out(record.sender, record.epoch, record.last, "left the group")

    def evict(self, record: Evict) -> Refusal | None:
        """A member's epoch ends at the cut."""
        name, epoch = record.member
        return self._put_out(name, epoch, record.cut, "was evicted from the group")

    def _put_out(self, name: str, epoch: int, cut: int, what: str) -> Refusal | None:
        group = self.group
        known = self.members.get(name)
        sender = group.senders.get(sender_key(name, epoch))
        if sender is None and (known is None or known[0] < epoch):
            return Refusal(codes.UNKNOWN_MEMBER, f"{name!r} was never seen in this group with epoch {epoch}.")
        if known is not None and (epoch < known[0] or (epoch == known[0] and not known[1])):
            return Refusal(codes.FENCED, f"Epoch {epoch} of {name!r} has ended already.")
        highest = 0 if sender is None else sender.highest
        if cut > highest + group.window:
            return Refusal(
                codes.SEQ_JUMP, f"Its last seq {cut} is more than {group.window} past {highest}, the highest seen."
            )
        why = f"{name!r} {what}, and nothing after seq {cut} counts."
        if group.closed and (known is None or known[0] < epoch):
            cut = 0  # it was heard but never a member, and now it can never become one with this epoch
            why = f"{name!r} {what} before it ever joined with epoch {epoch}, so nothing it said counts."
        self._fence_older(name, epoch)
        self.members[name] = (epoch, False)
        if sender is None:
            sender = Sender(name=name, epoch=epoch)
            group.add_sender(sender)
        fence(group, name, epoch, cut, why)
        return None

    def _fence_older(self, name: str, epoch: int) -> None:
        """Older epochs end where they were seen last, unless they have ended already.

        In a closed group those that never joined end before anything they said.
        """
        group = self.group
        joined = self.members[name][0] if name in self.members else -1
        if isinstance(group.order, Clocked) and joined < epoch:
            group.order.end_unheard(name)
        later = group.epochs.get(name, [])
        older = later[: bisect_left(later, epoch)]
        del later[: len(older)]  # each epoch ends once
        ended: list[HeldMessage] = []
        for ending in [0, *older] if epoch else []:
            sender = group.senders.get(sender_key(name, ending))
            if sender is not None and sender.fence == SEQ_MAX:
                cut = 0 if group.closed and ending > joined else sender.highest
                ended += close(group, name, ending, cut)
        withdraw(group, ended, Refusal(codes.FENCED, f"{name!r} has come back with epoch {epoch}."))
