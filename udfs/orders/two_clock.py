"""`two_clock`: what one clock orders and the other allows (linear and physical clocks, sections 3 to 5).

Guarantee: the sequence is a linear extension of a relation that contains causality: of one source by seq; of two, m_i
before m_j if time_i < time_j and clock_j - clock_i >= delay_min - 2 accuracy. Unrelated messages do not wait for each
other. With loss or silence a message waits until one of a member's two clocks proves that nothing before it can come.
Where the delay is bounded (`delay_max_ms`) the log's own time proves it too, unless something of that member is known
to be missing.
Stamp: `time`, the linear clock, and `clock_ms`, the physical one; `create` gives `accuracy_ms` (without it the physical
clock proves nothing), `delay_min_ms`, `delay_max_ms`. The gain over `lamport` is real only where a least delay is
known.

    members A, B; accuracy_ms 1
    arrives A:1 time 5 clock_ms 100         -> held: B may still say something before it
    arrives B:1 time 3 clock_ms 103         -> B:1, because A's next time is above 3; A:1, because B's clock is past
                                               100 + 2, though it is unknown whether B's next time is above 5

Rulings: rule 1(b) is unsound, because with a greatest delay a causal pair may show a difference as small as -2
accuracy, and it forgets pairs of the same source; rule 1(a) orders pairs against time; the last branch of 1(a) means
concurrent; the printed relation has circles where messages are lost, this one has none, because every edge raises
`time`; it is not transitive, so it is never used to sort; `DSEQ := m.seq + 1` blocks every member at the second
message; the receive rule is max(own, received + 1). The timed release is a watermark: a message goes once the log's
time is past its clock by more than 4 accuracy - delay_min + delay_max. The printed 2 accuracy + delay_max covers true
causes only: a message that precedes by both clocks may come later than that, even if its sender's clock and delays are
as `create` says.
"""

from collections.abc import Sequence
from typing import Any

from msgspec import UNSET

from precede.udfs import codes
from precede.udfs.codes import Refusal
from precede.udfs.orders.lamport import Lamport, LamportStamps
from precede.udfs.orders.order import Stamps
from precede.udfs.orders.relation import ByTwoClocks, Relation
from precede.udfs.records.messages import SEQ_MAX, Id, Message, Options
from precede.udfs.release.by_both_clocks import ByBothClocks, margin_ms


class TwoClock(Lamport):
    """A message waits for its sender's previous one, then until nothing can come that precedes it by both clocks."""

    __slots__ = ()

    name = "two_clock"
    paper = "Tsuneizumi, Aikebaier, Enokido and Takizawa, Reduction of Messages Unnecessarily Ordered"
    release_type = ByBothClocks

    def fault(self, message: Message) -> Refusal | None:
        fault = super().fault(message)
        if fault is not None:
            return fault
        if message.clock_ms is UNSET:
            return Refusal(codes.MISSING_STAMP, "The order two_clock needs the field `clock_ms`: the physical clock.")
        if abs(message.clock_ms) > SEQ_MAX:
            return Refusal(codes.BAD_STAMP, f"`clock_ms` {message.clock_ms} is no time.")
        return None

    @classmethod
    def relation(cls, messages: Sequence[Message], options: Options) -> Relation:
        return ByTwoClocks(messages, margin_ms(options))

    @classmethod
    def stamps_of(cls, name: str, epoch: int = 0) -> "TwoClockStamps":
        return TwoClockStamps(name, epoch)


class TwoClockStamps(LamportStamps):
    """A linear clock, and the physical one the caller reads."""

    def fields(self, *, after: list[Id], to: list[str], clock_ms: int) -> dict[str, Any]:
        return {**super().fields(after=after, to=to, clock_ms=clock_ms), "clock_ms": clock_ms}

    def heartbeat(self, *, clock_ms: int = 0) -> dict[str, Any]:
        """The physical clock alone says something new each time, so the linear one need not."""
        return {**Stamps.heartbeat(self), "time": self.time, "clock_ms": clock_ms}
