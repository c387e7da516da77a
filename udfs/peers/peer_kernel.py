"""The kernel with what a peer asks of it and a log does not."""

from collections.abc import Iterable

from precede.udfs.engine.runs import Runs
from precede.udfs.engine.senders import sender_key
from precede.udfs.holdback import Holdback
from precede.udfs.limits import Limits
from precede.udfs.membership.settled_before import pass_over
from precede.udfs.orders import ORDERS, Order
from precede.udfs.orders.two_clock import TwoClock
from precede.udfs.records.messages import Id, Message, Who
from precede.udfs.release.by_both_clocks import ByBothClocks


class _ByBothClocks(ByBothClocks):
    """At a peer a newcomer need not be above all that was delivered: unrelated messages differ from place to place."""

    __slots__ = ()

    def least_of_joiner(self) -> int:
        return 1


class _TwoClock(TwoClock):
    __slots__ = ()

    release_type = _ByBothClocks


class PeerKernel(Holdback):
    """Takes messages that were read before, and passes over what others have settled and forgotten."""

    def __init__(self, order: str) -> None:
        super().__init__(order=order)
        orders: dict[str, type[Order]] = {**ORDERS, TwoClock.name: _TwoClock}
        self.shared.orders = orders

    def take_limits(self, limits: Limits) -> None:
        """Take records by these limits from now on."""
        self.limits = self.shared.limits = limits
        self._record_bytes_max = limits.record_bytes_max
        for group in (*self._groups.values(), *self._resting.values()):
            group.limits = limits

    def takes_read(self, group: str) -> bool:
        """Whether messages of this group may be taken as they were read: it is there, and nothing is verified."""
        known = self._groups.get(group)
        return known is not None and known.plain_partition == 0

    def receive_read(self, values: list[bytes], records: list[Message], offset: int) -> int:
        """Take messages of one sender that follow each other, from this offset on, as long as each is delivered at
        once; returns how many. The one after these was taken too, and had another end: `ordered` has what it let go.

        A peer must read a record, and trim it, before it knows whether to take it. Partition and time are 0.
        """
        group = self._groups[records[0].group]
        usual = group.deliver_next(values, records)
        receive, ordered, dead = group.receive_message, self.ordered, self.dead
        for at in range(usual, len(values)):
            record = records[at]
            receive(record, values[at], offset + at, 0)
            held = group.held
            if len(ordered) != at - usual + 1 or dead or (held and (record.sender, record.epoch, record.seq) in held):
                del ordered[: at - usual]
                return at
        self.clear()
        return len(values)

    def is_settled(self, group: str, id_: Id) -> bool:
        """Whether a message was delivered or abandoned, at all its destinations."""
        sender = self._group(group.encode(), 0).senders.get(sender_key(id_[0], id_[1]))
        return sender is not None and id_[2] in sender

    def is_over(self, group: str, name: str, epoch: int) -> bool:
        """Whether nothing is waited for any more of a member's epoch that has ended."""
        known = self._group(group.encode(), 0)
        sender = known.senders.get(sender_key(name, epoch))
        return sender is None or known.release.is_over(sender)

    def settled(self, group: str) -> dict[Who, Runs]:
        """What is delivered or abandoned at all its destinations, of each sender and epoch."""
        return {(one.name, one.epoch): one for one in self._group(group.encode(), 0).senders.values()}

    def pass_over(
        self, group: str, settled: Iterable[tuple[Who, Runs]], *, time: int = 0, offset: int = 0
    ) -> list[tuple[Who, int, int]]:
        """Wait no longer for messages that are settled elsewhere and kept by no one; what waited for them goes on.

        For a peer that comes late: the log itself has no such messages. `time` is the linear time that the
        group has reached. Returns what is passed over, as (who, first, last).
        """
        known = self._group(group.encode(), 0)
        known.release.catch_up(time)
        return [(who, first, last) for who, runs in settled for first, last in pass_over(known, *who, runs, offset, 0)]
