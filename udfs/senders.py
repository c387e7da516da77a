"""What a group remembers of one sender and epoch: what is settled, what was seen, and the digests of the last delivered."""

from zlib import crc32

from udfs.intervals import Runs
from udfs.messages import SEQ_MAX

RECENT_SLACK = 64
"""How many digests beyond those that count may pile up before they are cut: cutting at every message would cost more."""


class Sender:
    """One (sender, epoch) of a group."""

    __slots__ = ("abandoned", "fence", "highest", "recent_crcs", "recent_seqs", "refused", "settled")

    def __init__(self) -> None:
        self.settled = Runs()
        """Delivered or given up: what depends on one of these need not wait for it."""
        self.abandoned: Runs | None = None
        """Given up: the part of `settled` whose messages are `late` if they come after all."""
        self.refused: Runs | None = None
        """Ids taken for ever by a refusal (S_b: self_parent, cycle, orphan)."""
        self.highest = 0
        """The largest seq seen here, however it ended: the window counts from it."""
        self.fence = SEQ_MAX
        """No seq above this counts any more."""
        self.recent_seqs: list[int] = []
        self.recent_crcs: list[int] = []

    def remember(self, seq: int, value: bytes, digests: int) -> None:
        """Keep the digest of a delivered message, so that an exact copy can be told from an equivocation."""
        self.recent_seqs.append(seq)
        self.recent_crcs.append(crc32(value))
        if len(self.recent_seqs) > digests + RECENT_SLACK:
            self.forget(digests)

    def forget(self, digests: int) -> None:
        """Drop all but the digests that count."""
        surplus = len(self.recent_seqs) - digests
        if surplus > 0:
            del self.recent_seqs[:surplus], self.recent_crcs[:surplus]

    def differs(self, seq: int, value: bytes, digests: int) -> bool:
        """Whether this value is known to be another than the one delivered under the same seq."""
        self.forget(digests)
        if seq not in self.recent_seqs:
            return False
        return self.recent_crcs[self.recent_seqs.index(seq)] != crc32(value)

    def give_up(self, seq: int) -> None:
        """Settle a seq without its message."""
        self.settled.add(seq)
        if self.abandoned is None:
            self.abandoned = Runs()
        self.abandoned.add(seq)

    def refuse(self, seq: int) -> None:
        """Take a seq for ever without settling it: what waits for it must be told."""
        if self.refused is None:
            self.refused = Runs()
        self.refused.add(seq)
