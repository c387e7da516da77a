"""Which messages an order puts before which others: its promise, apart from how it waits.

An order derives this from the stamps alone (`Order.relation`), so it works for any messages, however they arrived.
Counting pairs is quadratic: in a large group the count is estimated from a sample of every n-th message.
"""

from bisect import bisect_right, insort
from collections.abc import Callable, Sequence
from typing import NamedTuple

from precede.udfs.records.messages import Id, Message, Who

EXACT_MAX = 4_000
"""Up to this many messages of a group are counted exactly."""
SMALL_MAX = 16
"""Up to this many messages, all sequences that a relation allows are counted."""


class Pairs(NamedTuple):
    """The number of ordered pairs; `every` above 1 means estimated from every n-th message."""

    found: int
    every: int = 1


class Relation:
    """A partial order of some messages, numbered as given."""

    size: int

    def pairs(self) -> Pairs:
        """How many pairs of messages have a fixed order."""
        raise NotImplementedError

    def before(self) -> list[int]:
        """For each message all that must come before it, as the bits of a number; for small sizes."""
        raise NotImplementedError

    def sequences(self) -> int | None:
        """How many sequences of all messages keep this order; None if there are too many messages to count."""
        if self.size > SMALL_MAX:
            return None
        ways = {0: 1}
        before = self.before()
        for _ in range(self.size):
            longer: dict[int, int] = {}
            for done, count in ways.items():
                for number, needed in enumerate(before):
                    if not done >> number & 1 and needed & ~done == 0:
                        longer[done | 1 << number] = longer.get(done | 1 << number, 0) + count
            ways = longer
        return sum(ways.values())


class InSequence(Relation):
    """Every pair is ordered, by the log or by a key."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self.size = len(messages)

    def pairs(self) -> Pairs:
        return Pairs(self.size * (self.size - 1) // 2)

    def before(self) -> list[int]:
        return [(1 << number) - 1 for number in range(self.size)]


class ByNamedIds(Relation):
    """The order that follows from ids named in messages, directly or through others."""

    def __init__(
        self, messages: Sequence[Message], names: Callable[[Message], Sequence[Id]], *, in_turn: bool = False
    ) -> None:
        self.size = len(messages)
        self.exact_max = EXACT_MAX
        seqs_of: dict[Who, list[tuple[int, int]]] = {}
        for number, message in enumerate(messages):
            seqs_of.setdefault(_who(message), []).append((message.seq, number))
        for seqs in seqs_of.values():
            seqs.sort()
        self.direct: list[set[int]] = []
        for number, message in enumerate(messages):
            found: set[int] = set()
            ids = list(names(message))
            if in_turn:
                ids.append((*_who(message), message.seq - 1))
            for name, epoch, seq in ids:
                seqs = seqs_of.get((name, epoch), [])
                at = bisect_right(seqs, (seq, self.size)) - 1
                if at >= 0 and (in_turn or seqs[at][0] == seq):
                    found.add(seqs[at][1])
            found.discard(number)
            self.direct.append(found)

    def _topological_order(self) -> list[int]:
        """Each message after those it names. Messages on or behind a cycle are never delivered and are left out."""
        followers: list[list[int]] = [[] for _ in range(self.size)]
        lacking = [len(direct) for direct in self.direct]
        for number, direct in enumerate(self.direct):
            for one in direct:
                followers[one].append(number)
        walk = [number for number in range(self.size) if not lacking[number]]
        for one in walk:  # grows during the loop
            for number in followers[one]:
                lacking[number] -= 1
                if not lacking[number]:
                    walk.append(number)
        return walk

    def pairs(self) -> Pairs:
        """One walk in which each message passes on one bit for each message that precedes it."""
        every = max(1, -(-self.size // self.exact_max))
        walk = self._topological_order()
        waiting = [0] * self.size  # how many followers still need a message's bits
        for direct in self.direct:
            for one in direct:
                waiting[one] += 1
        bits: dict[int, int] = {}
        count = 0
        for number in walk:
            mine = 0
            for one in self.direct[number]:
                mine |= bits[one]
                waiting[one] -= 1
                if not waiting[one]:
                    del bits[one]
            count += mine.bit_count()
            if waiting[number]:
                bits[number] = mine if number % every else mine | 1 << number // every
        if every > 1:
            count = round(count * self.size / -(-self.size // every))
        return Pairs(count, every)

    def before(self) -> list[int]:
        before = [0] * self.size
        for number in self._topological_order():
            for one in self.direct[number]:
                before[number] |= before[one] | 1 << one
        return before


class BySentStamp(Relation):
    """Before a message come those that its `sent` names for a shared destination; nothing through others."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self.size = len(messages)
        self.messages = messages
        self.exact_pairs_max = EXACT_MAX * EXACT_MAX
        """How many pairs are counted exactly; in a larger group a sample of every n-th message."""
        self.seqs_of: dict[tuple[str, Who], list[tuple[int, int]]] = {}
        """The messages of each destination and sender, as (seq, number)."""
        for number, message in enumerate(messages):
            for destination in set(message.to or ()):
                seqs = self.seqs_of.setdefault((destination, _who(message)), [])
                seqs.append((message.seq, number))
        for seqs in self.seqs_of.values():
            seqs.sort()

    def _direct(self, number: int) -> set[int]:
        """The messages that this message's own stamp puts before it."""
        message = self.messages[number]
        found: set[int] = set()
        for destination in set(message.to or ()):
            for name, epoch, seq in (message.sent or {}).get(destination, ()):
                seqs = self.seqs_of.get((destination, (name, epoch)), [])
                found.update(one for _, one in seqs[: bisect_right(seqs, (seq, self.size))])
        found.discard(number)
        return found

    def pairs(self) -> Pairs:
        every = max(1, -(-self.size * self.size // self.exact_pairs_max))
        counted = range(0, self.size, every)
        count = sum(len(self._direct(number)) for number in counted)
        return Pairs(count if every == 1 else round(count * self.size / len(counted)), every)

    def before(self) -> list[int]:
        return [sum(1 << one for one in self._direct(number)) for number in range(self.size)]


class ByTwoClocks(Relation):
    """i before j: within one source by seq; between two if time_i < time_j and clock_i <= clock_j + margin.

    The rule is not transitive. It is counted as written, without what follows through others.
    """

    def __init__(self, messages: Sequence[Message], margin_ms: int | None) -> None:
        self.size = len(messages)
        self.margin_ms = margin_ms
        latest: dict[Who, int] = {}
        self.points: list[tuple[int, int, Who, int]] = []
        """(time, clock, source, number); a clock that steps back counts as the sender's latest."""
        numbered = sorted(enumerate(messages), key=lambda one: one[1].seq)
        for number, message in numbered:
            who = _who(message)
            time: int = message.time  # type: ignore[assignment]
            clock: int = message.clock_ms  # type: ignore[assignment]
            latest[who] = max(latest.get(who, clock), clock)
            self.points.append((time, latest[who], who, number))
        self.points.sort(key=lambda point: point[0])

    def pairs(self) -> Pairs:
        all_clocks: list[int] = []
        own: dict[Who, list[int]] = {}
        count = at = 0
        while at < self.size:
            end = at
            while end < self.size and self.points[end][0] == self.points[at][0]:
                _, clock, who, _ = self.points[end]
                mine = own.setdefault(who, [])
                count += len(mine) + self._earlier(all_clocks, clock) - self._earlier(mine, clock)
                end += 1
            for _, clock, who, _ in self.points[at:end]:  # equal times are not related
                insort(all_clocks, clock)
                insort(own[who], clock)
            at = end
        return Pairs(count)

    def _earlier(self, clocks: list[int], clock: int) -> int:
        return len(clocks) if self.margin_ms is None else bisect_right(clocks, clock + self.margin_ms)

    def before(self) -> list[int]:
        before = [0] * self.size
        for time, clock, who, number in self.points:
            for other_time, other_clock, other, one in self.points:
                if other_time < time and (other == who or self._earlier([other_clock], clock)):
                    before[number] |= 1 << one
        return before


def _who(message: Message) -> Who:
    return message.sender, message.epoch  # type: ignore[return-value]  # set by the reader
