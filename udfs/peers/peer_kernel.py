"""The kernel with what a peer asks of it and a log does not."""

from collections.abc import Iterable

from precede.udfs.engine.runs import Runs
from precede.udfs.engine.senders import sender_key
from precede.udfs.holdback import Holdback
from precede.udfs.membership.settled_before import pass_over
from precede.udfs.records.messages import Id, Message, Who


class PeerKernel(Holdback):
    """Takes messages that were read before, and passes over what others have settled and forgotten."""

    def receive_read(self, record: Message, value: bytes, offset: int) -> bool:
        """Take a message that the caller has read and trimmed; False where it has to go by `receive`.

        A peer must read a record before it knows whether to take it. Partition and time are 0.
        """
        group = self._groups.get(record.group)
        if group is None or group.plain_partition != 0:
            return False
        group.receive_message(record, value, offset, 0)
        return True

    def is_settled(self, group: str, id_: Id) -> bool:
        """Whether a message was delivered or abandoned, at all its destinations."""
        sender = self._group(group.encode(), 0).senders.get(sender_key(id_[0], id_[1]))
        return sender is not None and id_[2] in sender

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
