"""One destination of a group: its own sequence, and what it has merged (`causal_p2p`).

Destinations share nothing but the records. What a message waits for here is the entry of this destination in `sent`,
and it goes as soon as the clock here has reached everything that the entry names, whatever other destinations still
wait for. A message that waits watches ONE sender whose clock is too low, and is judged again when that has risen far
enough.
"""

from heapq import heappop, heappush

from precede.udfs.engine.group import Group
from precede.udfs.engine.held import HeldMessage
from precede.udfs.engine.outbox import Labels
from precede.udfs.engine.senders import SenderKey, sender_key
from precede.udfs.records.messages import Id

Place = tuple[int, int, str, HeldMessage]
"""(offset, rank, destination, message): how ready messages rank; a stand-in has one place for all destinations."""


class SettledEverywhere:
    """What is settled at all destinations, and the messages that wait for that.

    It counts from the first abandoned message on, because a stand-in has no stamp that a destination could merge. From
    there on an entry of a stamp is met, too, where everything that its sender said up to there is settled at all
    destinations: nothing of it can be missing then.
    """

    __slots__ = ("counts", "group", "waiting")

    def __init__(self, group: Group) -> None:
        self.group = group
        self.counts = False
        """Whether anything was ever abandoned."""
        self.waiting: dict[SenderKey, list[tuple[int, int, str, HeldMessage]]] = {}
        """By sender, the messages that wait for all up to a seq to be settled, as a heap by that seq."""

    def covers(self, who: SenderKey, seq: int) -> bool:
        """Whether everything that a sender said up to there is settled, where that counts."""
        sender = self.group.senders.get(who) if self.counts else None
        return sender is not None and seq <= sender.prefix

    def watch(self, who: SenderKey, seq: int, one: HeldMessage, destination: str) -> None:
        """Let a message of one destination wait for that, too."""
        if self.counts:
            heappush(self.waiting.setdefault(who, []), (seq, one.offset, destination, one))

    def take(self, who: SenderKey, reached: int) -> list[tuple[int, str, HeldMessage]]:
        """The messages that waited for no more than this seq, with the seq and destination of each, in that order."""
        heap = self.waiting.get(who)
        taken: list[tuple[int, str, HeldMessage]] = []
        while heap and heap[0][0] <= reached:
            seq, _, name, one = heappop(heap)
            taken.append((seq, name, one))
        if heap is not None and not heap:
            del self.waiting[who]
        return taken


class Destination:
    """The virtual receiver of one member."""

    __slots__ = ("clock", "held", "labels", "name", "named", "position", "settled", "waiting")

    def __init__(self, name: str, group: Group, settled: SettledEverywhere) -> None:
        self.name = name
        self.settled = settled
        self.named = False
        """Whether a message was ever addressed to it; a member gets membership records before that."""
        self.position = 0
        self.clock: dict[SenderKey, int] = {}
        """The maximum of the stamps delivered here."""
        self.held: dict[Id, HeldMessage] = {}
        """The messages that wait for their place here."""
        self.waiting: dict[SenderKey, list[tuple[int, int, HeldMessage]]] = {}
        """By the sender whose clock they watch, the waiting messages as a heap by how far it must rise; some left."""
        self.labels = Labels(group.key, group.name, group.order.name, group.partition, name, takes_apart=True)

    def is_ready(self, one: HeldMessage) -> bool:
        """Whether the clock meets what `sent` says of this destination; else its last entry left is to be watched."""
        entries = entries_of(one, self.name)
        clock = self.clock
        while entries:
            name, epoch, seq = entries[-1]
            who = (name, epoch) if epoch else name
            if seq > clock.get(who, 0) and not self.settled.covers(who, seq):
                return False
            entries.pop()  # once met it stays met, so each entry is looked at once
        return True

    def meets(self, who: SenderKey, seq: int) -> bool:
        """Whether nothing of this sender up to that seq need be waited for here."""
        return seq <= self.clock.get(who, 0) or self.settled.covers(who, seq)

    def watch(self, one: HeldMessage) -> None:
        """Let a message that is not ready wait for its last entry."""
        name, epoch, seq = entries_of(one, self.name)[-1]
        who = sender_key(name, epoch)
        heappush(self.waiting.setdefault(who, []), (seq, one.offset, one))
        self.settled.watch(who, seq, one, self.name)

    def watches(self, one: HeldMessage, who: SenderKey, seq: int) -> bool:
        """Whether a message still waits here, and for this entry."""
        if self.held.get(one.id) is not one:
            return False  # abandoned, or fenced
        entries = entries_of(one, self.name)
        return bool(entries) and entries[-1][2] == seq and sender_key(entries[-1][0], entries[-1][1]) == who

    def place(self, one: HeldMessage) -> Place:
        """How a message that is ready here ranks."""
        return one.offset, 0, self.name, one

    def merge(self, stamp: list[Id]) -> list[Place]:
        """Let the clock rise to a stamp that is delivered here; the messages that are ready now are returned."""
        clock, waiting = self.clock, self.waiting
        ready: list[Place] = []
        for name, epoch, seq in stamp:
            who = (name, epoch) if epoch else name
            if seq > clock.get(who, 0):
                clock[who] = seq
                if who in waiting:
                    self._wake(who, seq, ready)
        return ready

    def _wake(self, who: SenderKey, reached: int, ready: list[Place]) -> None:
        """Judge the messages again that wait for no more of this sender than that."""
        heap = self.waiting[who]
        while heap and heap[0][0] <= reached:
            awaited, _, one = heappop(heap)
            if self.watches(one, who, awaited):
                if self.is_ready(one):
                    ready.append(self.place(one))
                else:
                    self.watch(one)
        if not heap:
            del self.waiting[who]

    def unmet(self, one: HeldMessage) -> list[Id]:
        """Up to which seq of which senders a message waits here."""
        return [
            entry for entry in entries_of(one, self.name) if not self.meets(sender_key(entry[0], entry[1]), entry[2])
        ]


def entries_of(one: HeldMessage, name: str) -> list[Id]:
    """What a stamp says was sent to one destination, as far as it is not known to be met."""
    return one.message.sent.get(name, [])  # type: ignore[union-attr]  # judged before
