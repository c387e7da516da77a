"""What a group may release at each step of the raw log, and so must: for the orders that wait for messages."""

from heapq import heappop, heappush

from precede.check.group import GroupSequence
from precede.check.guarantees import CausalAtDestinations
from precede.check.records import RawRecord
from precede.udfs.records.messages import Id, Message, Who

NO_PLACES: set[str] = set()
"""Of what has no destinations; nothing is ever put into it."""


class Waiting:
    """A message that arrived and has not been delivered, or what stands for one that was given up on."""

    __slots__ = ("arrived", "clock", "gone", "id", "left", "message", "offset", "rank", "who")

    def __init__(self, id_: Id, message: Message | None, arrived: RawRecord, rank: int = 0) -> None:
        self.id = id_
        self.who: Who = (id_[0], id_[1])
        self.message = message
        """None for a stand-in."""
        self.arrived = arrived
        self.offset = arrived.offset
        self.rank = rank
        self.left: set[str] = NO_PLACES if message is None or not message.to else set(message.to)
        """In orders with destinations, those that have not received it."""
        self.clock = 0
        self.gone = False
        """Delivered, withdrawn or given up on."""


Ready = tuple[Waiting, str | None]
"""A message and the destination that may have it."""


class NextJudge:
    """What must come next."""

    def __init__(self, sequence: GroupSequence) -> None:
        self.sequence = sequence

    def begin_step(self, now_ms: int) -> None:
        """A record of the log that counts has come."""

    def add(self, one: Waiting) -> None:
        """A message has arrived, or a stand-in takes its place."""
        raise NotImplementedError

    def next(self) -> Ready | None:
        """What must be delivered next, and where; None if everything has to wait."""
        raise NotImplementedError

    def delivered(self, one: Waiting, place: str | None) -> None:
        """It was delivered, and is settled already."""

    def joined(self, who: Who) -> None:
        """This sender may speak from now on."""

    def remove(self, one: Waiting) -> None:
        """It will not be delivered."""
        one.gone = True


class AfterMessages(NextJudge):
    """Each message waits for one settled id after the other; what is ready goes by rank."""

    def __init__(self, sequence: GroupSequence) -> None:
        super().__init__(sequence)
        self._ready: list[tuple[int, int, int, str, Waiting]] = []
        self._watching: dict[Id, list[Waiting]] = {}
        self._strangers: dict[Who, list[Waiting]] = {}
        self._placed: dict[Id, int] = {}
        """In `s_b`, what was delivered in this step, by its turn: answers to the last one come first."""
        self._depth_first = sequence.guarantee is not None and sequence.guarantee.answers_first

    def begin_step(self, now_ms: int) -> None:
        if self._placed:
            self._placed.clear()

    def add(self, one: Waiting) -> None:
        message, sequence = one.message, self.sequence
        guarantee = sequence.guarantee
        assert guarantee is not None
        depth = 0
        if message is None:
            unmet = guarantee.unmet_of_stand_in(one.id)
        elif sequence.membership.closed and one.who not in sequence.membership.joined:
            self._strangers.setdefault(one.who, []).append(one)
            return
        else:
            unmet = guarantee.unmet(one.id, message, None)
            if unmet is None and self._placed and message.after:
                depth = -self._placed.get(message.after[0], 0)
        if unmet is None:
            heappush(self._ready, (depth, one.offset, one.rank, "", one))
        else:
            self._watching.setdefault(unmet.watched, []).append(one)

    def next(self) -> Ready | None:
        ready = self._ready
        while ready:
            one = ready[0][4]
            if not one.gone:
                return one, None
            heappop(ready)
        return None

    def delivered(self, one: Waiting, place: str | None) -> None:
        one.gone = True
        if self._depth_first:
            self._placed[one.id] = len(self._placed) + 1
        if self._watching and one.id in self._watching:
            self._wake(one.id)

    def joined(self, who: Who) -> None:
        for one in self._strangers.pop(who, ()):
            if not one.gone:
                self.add(one)

    def _wake(self, id_: Id) -> None:
        for one in self._watching.pop(id_, ()):
            if not one.gone:
                self.add(one)


class AtDestinations(AfterMessages):
    """`causal_p2p`: at each destination a message waits for what is merged there."""

    def __init__(self, sequence: GroupSequence) -> None:
        super().__init__(sequence)
        self.named: set[str] = set()
        """The destinations of all that counts so far."""
        self._at: dict[Who, list[tuple[Waiting, str]]] = {}
        """Who waits, somewhere, for something of this sender."""
        self._gave_up = False

    def add(self, one: Waiting) -> None:
        if one.message is None:
            super().add(one)
            return
        membership = self.sequence.membership
        if not membership.is_in(one.who):
            self._strangers.setdefault(one.who, []).append(one)
            return
        self.named.update(one.left)
        for place in list(one.left):
            self._look(one, place)
        if not one.left:
            self._end(one)

    def _look(self, one: Waiting, place: str) -> None:
        guarantee = self.sequence.guarantee
        assert guarantee is not None
        assert one.message is not None
        unmet = guarantee.unmet(one.id, one.message, place)
        if unmet is None:
            heappush(self._ready, (0, one.offset, 0, place, one))
        else:
            self._at.setdefault(unmet.who, []).append((one, place))

    def next(self) -> Ready | None:
        guarantee = self.sequence.guarantee
        assert isinstance(guarantee, CausalAtDestinations)
        if guarantee.gave_up and not self._gave_up:
            self._gave_up = True
            self._look_again(list(self._at))
        ready = self._ready
        while ready:
            _, _, _, place, one = ready[0]
            if not one.gone and (one.message is None or place in one.left):
                return one, place if one.message is not None else None
            heappop(ready)
        return None

    def delivered(self, one: Waiting, place: str | None) -> None:
        """Everything that was merged at this destination, or settled everywhere, may free something."""
        if one.message is None:
            one.gone = True
            self._look_again([one.who])
            self._wake(one.id)
            return
        one.left.discard(place or "")
        self._look_again([(name, epoch) for name, epoch, _ in one.message.seen or ()])
        if not one.left:
            self._end(one)

    def _end(self, one: Waiting) -> None:
        """All destinations have it."""
        one.gone = True
        self.sequence.settled.add(one.id)
        self._wake(one.id)
        if self._gave_up:
            self._look_again([one.who])

    def settled(self, one: Waiting) -> None:
        """It is over, though not all destinations have received it."""
        self._end(one)

    def _look_again(self, senders: list[Who]) -> None:
        for who in senders:
            for one, place in self._at.pop(who, ()):
                if not one.gone and place in one.left:
                    self._look(one, place)
