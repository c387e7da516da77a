"""The guarantee of each order, judged from the stamps of what was delivered.

`unmet` names what must be settled before a message; `misplaced` compares it with what was delivered before it. Which
of the two shows a violation depends on how the documents state the guarantee.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from msgspec import UNSET

from precede.check.membership import Membership
from precede.check.records import OrderedRead
from precede.check.settled import Settled
from precede.check.witness import Shown, shown
from precede.udfs.records.identifiers import id_text
from precede.udfs.records.messages import SEQ_MAX, Id, Message, Who

NO_CLOCK = -(10**30)
KEPT_MAX = 1_000
"""In `object`, so many messages of a sender are kept that came before earlier ones of it."""


class Unmet(NamedTuple):
    """What a message waits for: some seqs of one sender and epoch."""

    who: Who
    first: int
    last: int
    watched: Id
    """Nothing changes for the message until this one is settled."""


class Guarantee:
    """One order's promise. `settled` is what was delivered or abandoned so far, in the whole group."""

    name = ""
    needs: tuple[str, ...] | None = None
    """The stamps that its messages must have; None where that is not known."""
    keeps_turn = False
    """Whether a stand-in, too, follows the previous message of its sender."""
    looks_back = False
    """Whether it compares a message with what was delivered before."""
    needs_beginning = False
    """Whether that can only be judged of a sequence that is known from its beginning."""
    by_clocks = False
    both_clocks = False
    answers_first = False
    """Whether what answers the last delivered message comes before all others, and refusals take ids."""

    def __init__(self, settled: Settled, membership: Membership) -> None:
        self.settled = settled
        self.membership = membership

    @classmethod
    def contradicts(cls, message: Message) -> bool:
        """Whether the stamps of a message contradict themselves, are no clocks, or lack one that is needed."""
        return any(getattr(message, field) is UNSET for field in cls.needs or ())

    def unmet(self, id_: Id, message: Message, place: str | None) -> Unmet | None:
        """The first that must come before this message and has not; None if it may be delivered."""
        return None

    def unmet_of_stand_in(self, id_: Id) -> Unmet | None:
        """The same for the record that stands for an abandoned message."""
        return self.previous(id_) if self.keeps_turn else None

    def misplaced(self, id_: Id, message: Message, one: OrderedRead) -> tuple[Shown, str] | None:
        """An earlier delivery that should have come later, and why."""
        return None

    def delivered(self, id_: Id, message: Message | None, one: OrderedRead) -> None:
        """A message, or what stands for it, was delivered."""

    def circle(self, message: Message, other: Id) -> list[Id] | None:
        """What leads from a message back to another one that must follow it; None where nothing does."""
        return None

    def previous(self, id_: Id) -> Unmet | None:
        """What is missing of the sender's earlier messages."""
        who = (id_[0], id_[1])
        upto = self.settled.upto(who)
        if upto >= id_[2] - 1:
            return None
        return Unmet(who, upto + 1, id_[2] - 1, (*who, id_[2] - 1))


class ReplyAfterQuestion(Guarantee):
    """`s_b`: a message follows the one that it answers."""

    name = "s_b"
    needs = ("after",)
    answers_first = True

    @classmethod
    def contradicts(cls, message: Message) -> bool:
        return super().contradicts(message) or len(message.after or ()) > 1

    def unmet(self, id_: Id, message: Message, place: str | None) -> Unmet | None:
        after = message.after
        if not after or after[0] in self.settled:
            return None
        return _one(after[0])


class _Ahead(NamedTuple):
    """A message that was delivered while earlier ones of its sender had not come."""

    seq: int
    instance: tuple[int, str | int]
    op: str | None
    """The method that its instance executes."""
    to: frozenset[str]
    at: Shown


class AfterItsDependencies(Guarantee):
    """`object`: a message follows all that it names, and its significant predecessors of its own sender.

    Of one sender, a message precedes a later one with a common destination if one instance said both, or two whose
    methods conflict, the earlier one first (the object-based protocol, Table 1). A sender knows what it said, so it
    names these, directly or through others. What it did not know of another sender has the order of its delivery.
    """

    name = "object"
    needs = ("after",)
    looks_back = needs_beginning = True

    def __init__(self, settled: Settled, membership: Membership) -> None:
        super().__init__(settled, membership)
        self._ahead: dict[Who, list[_Ahead]] = {}
        self._loose = Settled()
        """What was given up on, and what follows it: there what a message names no longer leads back to all."""
        self._is_any_loose = False
        self._named: dict[Id, list[Id]] = {}
        """Of the last messages, what they name."""

    def unmet(self, id_: Id, message: Message, place: str | None) -> Unmet | None:
        for one in message.after or ():
            if one not in self.settled:
                return _one(one)
        return None

    def misplaced(self, id_: Id, message: Message, one: OrderedRead) -> tuple[Shown, str] | None:
        ahead = self._ahead.get((id_[0], id_[1]))
        if ahead is None or ahead[-1].seq <= id_[2]:
            return None
        own = _as_ahead(id_, message, one)
        if own is None:
            return None
        found: tuple[Shown, str] | None = None
        for other in ahead[bisect_right(ahead, own.seq, key=_seq_of) :]:
            why = self._why(own, other)
            if why is not None:
                way = self.circle(message, (id_[0], id_[1], other.seq))
                if way is not None:
                    return other.at, f"{why}; {_round(way)}"
                found = found or (other.at, why)
        return found

    def _why(self, one: _Ahead, other: _Ahead) -> str | None:
        """Why a message must come before one that its sender said later."""
        common = one.to & other.to
        if not common:
            return None
        where = f"both go to {min(common)}"
        if one.instance == other.instance:
            return f"one instance said it earlier, and {where}"
        is_earlier = one.instance[1] == other.instance[1] and one.instance[0] < other.instance[0]
        if not is_earlier or one.op is None or other.op is None:
            return None
        conflicts = self.membership.options.conflicts or ()
        if (one.op, other.op) not in conflicts and (other.op, one.op) not in conflicts:
            return None
        return f"it was said earlier, {one.op} and {other.op} conflict, and {where}"

    def circle(self, message: Message, other: Id) -> list[Id] | None:
        ways = [[id_] for id_ in message.after or ()]
        seen = {way[0] for way in ways}
        for way in ways:  # grows during the loop
            if way[-1] == other:
                return way
            for id_ in self._named.get(way[-1], ()):
                if id_ not in seen:
                    seen.add(id_)
                    ways.append([*way, id_])
        return None

    def delivered(self, id_: Id, message: Message | None, one: OrderedRead) -> None:
        who, after = (id_[0], id_[1]), None if message is None else message.after or None
        is_loose = message is None
        if after:
            self._named[id_] = after
            if len(self._named) > KEPT_MAX:
                del self._named[next(iter(self._named))]
            is_loose = self._is_any_loose and any(other in self._loose for other in after)
        if is_loose:
            self._is_any_loose = True
            self._loose.add(id_)
        upto = self.settled.upto(who)
        ahead = self._ahead.get(who)
        if ahead is not None and ahead[0].seq <= upto:
            del ahead[: bisect_right(ahead, upto, key=_seq_of)]
            if not ahead:
                del self._ahead[who]
        if upto >= id_[2] or is_loose or message is None:
            return
        own = _as_ahead(id_, message, one)
        if own is not None:
            ahead = self._ahead.setdefault(who, [])
            ahead.insert(bisect_right(ahead, own.seq, key=_seq_of), own)
            if len(ahead) > KEPT_MAX:
                del ahead[0]


def _as_ahead(id_: Id, message: Message, one: OrderedRead) -> _Ahead | None:
    """What a message says about its instance; None if that can order nothing."""
    stamp = message.object
    if stamp is UNSET or stamp.instance is UNSET or not message.to:
        return None
    op = None if stamp.sender_op is UNSET else stamp.sender_op
    return _Ahead(id_[2], stamp.instance, op, frozenset(message.to), shown(one, id_text(id_)))


def _seq_of(one: _Ahead) -> int:
    return one.seq


def _round(way: Sequence[Id]) -> str:
    """How a message depends on what must follow it."""
    through = " through " + ", ".join(map(id_text, way[:-1])) if len(way) > 1 else ""
    return f"it depends on that one{through} all the same, which is a circle"


class SendersOrder(Guarantee):
    """`fifo`: a message follows the previous one of its sender."""

    name = "fifo"
    needs = ()
    keeps_turn = True

    def unmet(self, id_: Id, message: Message, place: str | None) -> Unmet | None:
        return self.previous(id_)


class CausalOrder(Guarantee):
    """`causal`: a message follows everything that its vector counts."""

    name = "causal"
    needs = ("seen",)
    keeps_turn = True

    @classmethod
    def contradicts(cls, message: Message) -> bool:
        return super().contradicts(message) or not _counts_itself(message)

    def unmet(self, id_: Id, message: Message, place: str | None) -> Unmet | None:
        upto = self.settled.upto
        who = (id_[0], id_[1])
        if upto(who) < id_[2] - 1:
            return self.previous(id_)
        for name, epoch, seq in message.seen or ():
            known = upto((name, epoch))
            if known < seq and (name, epoch, seq) != id_:
                return Unmet((name, epoch), known + 1, seq, (name, epoch, seq))
        return None


class LogOrder(Guarantee):
    """`total`: the sequence of the log."""

    name = "total"
    needs = ()
    looks_back = True

    def __init__(self, settled: Settled, membership: Membership) -> None:
        super().__init__(settled, membership)
        self._last: tuple[int, Id, OrderedRead] | None = None

    def misplaced(self, id_: Id, message: Message, one: OrderedRead) -> tuple[Shown, str] | None:
        if self._last is None or self._last[0] <= self._counts_from(id_, one):
            return None
        return shown(self._last[2], id_text(self._last[1])), "it reached the log earlier"

    def delivered(self, id_: Id, message: Message | None, one: OrderedRead) -> None:
        self._last = self._counts_from(id_, one), id_, one

    def _counts_from(self, id_: Id, one: OrderedRead) -> int:
        """In a closed group, a message counts from the `join` of its sender on."""
        return max(one.offset, self.membership.joined_at.get((id_[0], id_[1]), 0))


class TimeOrder(Guarantee):
    """`lamport`: by linear time, then by the sender's name."""

    name = "lamport"
    needs = ("time",)
    looks_back = True
    keeps_turn = True
    by_clocks = True

    @classmethod
    def contradicts(cls, message: Message) -> bool:
        return super().contradicts(message) or (message.time is not UNSET and message.time < 0)

    def __init__(self, settled: Settled, membership: Membership) -> None:
        super().__init__(settled, membership)
        self._last: tuple[tuple[int, Id], OrderedRead] | None = None

    def unmet(self, id_: Id, message: Message, place: str | None) -> Unmet | None:
        return self.previous(id_)

    def misplaced(self, id_: Id, message: Message, one: OrderedRead) -> tuple[Shown, str] | None:
        if self._last is None or message.time is UNSET or self._last[0] < (message.time, id_):
            return None
        (time, last), record = self._last
        name = last[0]
        return shown(
            record, id_text(last)
        ), f"(time, sender) is ({message.time}, {id_[0]}), which is less than ({time}, {name})"

    def delivered(self, id_: Id, message: Message | None, one: OrderedRead) -> None:
        if (
            message is not None
            and message.time is not UNSET
            and (self._last is None or self._last[0] < (message.time, id_))
        ):
            self._last = (message.time, id_), one


class TwoClockOrder(Guarantee):
    """`two_clock`: a linear extension of the relation by both clocks."""

    name = "two_clock"
    needs = ("time", "clock_ms")
    looks_back = True
    keeps_turn = True
    by_clocks = both_clocks = True

    @classmethod
    def contradicts(cls, message: Message) -> bool:
        is_no_clock = message.clock_ms is not UNSET and abs(message.clock_ms) > SEQ_MAX
        is_no_time = message.time is not UNSET and message.time < 0
        return super().contradicts(message) or is_no_clock or is_no_time

    def __init__(self, settled: Settled, membership: Membership) -> None:
        super().__init__(settled, membership)
        self.clocks: dict[Id, int] = {}
        """The clock that counts for a message, where the log says more than its own stamp."""
        self._shown: dict[Who, int] = {}
        # Of what was delivered, only what no other exceeds in both clocks: times grow, clocks fall.
        self._times: list[int] = []
        self._front: list[tuple[int, Id, OrderedRead]] = []

    @property
    def margin_ms(self) -> int | None:
        options = self.membership.options
        if options.accuracy_ms is UNSET:
            return None
        return 2 * options.accuracy_ms - (options.delay_min_ms or 0)

    def unmet(self, id_: Id, message: Message, place: str | None) -> Unmet | None:
        return self.previous(id_)

    def misplaced(self, id_: Id, message: Message, one: OrderedRead) -> tuple[Shown, str] | None:
        if message.time is UNSET:
            return None
        where = bisect_right(self._times, message.time)
        if where == len(self._times):
            return None
        clock, other, record = self._front[where]
        own, margin = self._clock(id_, message), self.margin_ms
        if other[:2] == id_[:2] or (margin is not None and own > clock + margin):
            return None
        return shown(
            record, id_text(other)
        ), f"its time {message.time} is less than {self._times[where]}, and its clock does not rule it out"

    def delivered(self, id_: Id, message: Message | None, one: OrderedRead) -> None:
        if message is None or message.time is UNSET:
            return
        clock, who, time = self._clock(id_, message), (id_[0], id_[1]), message.time
        self._shown[who] = clock
        self.clocks.pop(id_, None)
        times, front = self._times, self._front
        first = bisect_left(times, time)
        if first < len(times) and front[first][0] >= clock:
            return  # one with a later time and clock stands for it
        if first < len(times) and times[first] == time:
            del times[first], front[first]
        begin = first
        while begin > 0 and front[begin - 1][0] <= clock:
            begin -= 1
        times[begin:first] = [time]
        front[begin:first] = [(clock, id_, one)]

    def _clock(self, id_: Id, message: Message) -> int:
        known = self.clocks.get(id_)
        if known is not None:
            return known
        own = NO_CLOCK if message.clock_ms is UNSET else message.clock_ms
        return max(own, self._shown.get((id_[0], id_[1]), NO_CLOCK))


class CausalAtDestinations(Guarantee):
    """`causal_p2p`: at each destination, a message follows what its `sent` names for that destination."""

    name = "causal_p2p"
    needs = ("to", "seen", "sent")
    looks_back = True

    @classmethod
    def contradicts(cls, message: Message) -> bool:
        return super().contradicts(message) or not _counts_itself(message)

    def __init__(self, settled: Settled, membership: Membership) -> None:
        super().__init__(settled, membership)
        self.merged: dict[str, dict[Who, int]] = {}
        self.gave_up = False
        """Whether anything was abandoned: then what is settled everywhere counts, too."""

    def unmet(self, id_: Id, message: Message, place: str | None) -> Unmet | None:
        sent = message.sent
        if not sent or place is None:
            return None
        clock = self.merged.get(place, {})
        for name, epoch, seq in sent.get(place, ()):
            known = clock.get((name, epoch), 0)
            if known < seq and not (self.gave_up and self.settled.upto((name, epoch)) >= seq):
                return Unmet((name, epoch), known + 1, seq, (name, epoch, seq))
        return None

    def unmet_of_stand_in(self, id_: Id) -> Unmet | None:
        previous = self.previous(id_)
        return None if previous is None else previous._replace(watched=(*previous.who, previous.first))

    def delivered(self, id_: Id, message: Message | None, one: OrderedRead) -> None:
        clock = self.merged.setdefault(one.destination or "", {})
        for name, epoch, seq in [id_] if message is None else message.seen or ():
            if clock.get((name, epoch), 0) < seq:
                clock[name, epoch] = seq


def _counts_itself(message: Message) -> bool:
    """Whether a vector clock has its own message in it, and once."""
    own = [seq for name, epoch, seq in message.seen or () if (name, epoch) == (message.sender, message.epoch or 0)]
    return own == [message.seq]


def _one(id_: Id) -> Unmet:
    return Unmet((id_[0], id_[1]), id_[2], id_[2], id_)


GUARANTEES: dict[str, type[Guarantee]] = {
    each.name: each
    for each in (
        ReplyAfterQuestion,
        SendersOrder,
        CausalOrder,
        CausalAtDestinations,
        LogOrder,
        TimeOrder,
        TwoClockOrder,
        AfterItsDependencies,
    )
}
"""The orders of the documents; of an order of one's own, only the sequence can be judged."""


def promise_of(order: str) -> type[Guarantee]:
    """The guarantee of an order; one of one's own promises nothing that is known here."""
    return GUARANTEES.get(order, Guarantee)
