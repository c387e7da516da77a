"""What a group remembers of one sender and epoch: what is settled, what was seen, digests of the last delivered."""

from struct import pack
from zlib import crc32

from precede.udfs import codes
from precede.udfs.codes import Refusal
from precede.udfs.engine.runs import NO_RUNS, Runs
from precede.udfs.records.messages import SEQ_MAX, Who

SenderKey = str | Who


def sender_key(name: str, epoch: int) -> SenderKey:
    """How a group finds a sender: in epoch 0, the usual one, by its name alone, which saves a tuple per message."""
    return (name, epoch) if epoch else name


DIGEST_BYTES = 4
CUT_AT_BYTES = 256
"""How many bytes of digests may pile up before they are cut, or twice the bytes that count if that is more: a cut at
every message would cost more."""


class SenderRuns(Runs):
    """One (sender, epoch) of a group; the runs it inherits are its settled seqs.

    A settled message is delivered, or its stand-in is: what depends on it need not wait for it. The runs are inherited
    and not a field, because every object that the machine has to look at for a message may be a cache miss.
    """

    __slots__ = (
        *("abandoned", "digests", "epoch", "fence", "highest", "name"),
        *("places", "recent_last", "recent_seqs", "refused"),
    )

    def __init__(self, name: str, epoch: int) -> None:
        self.prefix = 0  # as in Runs.__init__, without a call for every new sender
        self.beyond = NO_RUNS
        self.name = name
        self.epoch = epoch
        self.highest = 0
        """The largest seq seen here, however it ended: the window counts from it."""
        self.fence = SEQ_MAX
        """No seq above this counts any more."""
        self.digests = bytearray()
        """A hash of each of the last delivered values, oldest first, as a snapshot keeps them."""
        self.recent_last = 0
        """The seq of the last digest."""
        self.recent_seqs: list[int] | None = None
        """The seq of each digest; None while they are consecutive, as they are where everything comes in order."""
        self.places: dict[int, int] | None = None
        """Which digest belongs to which seq, where they are many and not consecutive; built when one is needed."""
        self.abandoned: Runs | None = None
        """The abandoned seqs, settled or waiting for their turn: their messages are `late` if they come after all."""
        self.refused: Runs | None = None
        """The seqs that a refusal has taken for ever (S_b: self_parent, cycle, orphan)."""

    def remember(self, seq: int, value: bytes, count: int) -> None:
        """Keep the digest of a delivered message, to tell an exact copy from an equivocation."""
        digests = self.digests
        if self.recent_seqs is not None:
            self.recent_seqs.append(seq)
            if self.places is not None:
                self.places[seq] = len(self.recent_seqs) - 1
        elif seq != self.recent_last + 1 and digests:
            self.recent_seqs = [*self.seqs(), seq]
        self.recent_last = seq
        digests += crc32(value).to_bytes(4, "little")
        if len(digests) > CUT_AT_BYTES and len(digests) > 2 * count * DIGEST_BYTES:
            self.forget(count)

    def remember_next(self, first: int, values: list[bytes], count: int) -> None:
        """Keep the digests of delivered messages of consecutive seqs."""
        if self.recent_seqs is not None or first != self.recent_last + 1:
            for seq, value in enumerate(values, first):
                self.remember(seq, value, count)
            return
        self.recent_last += len(values)
        self.digests += pack(f"<{len(values)}I", *map(crc32, values))
        if len(self.digests) > CUT_AT_BYTES and len(self.digests) > 2 * count * DIGEST_BYTES:
            self.forget(count)

    def forget(self, count: int) -> None:
        """Drop all but the last digests, the ones that count."""
        surplus = len(self.digests) // DIGEST_BYTES - count
        if surplus > 0:
            del self.digests[: surplus * DIGEST_BYTES]
            self.places = None
            if self.recent_seqs is not None:
                del self.recent_seqs[:surplus]
        seqs = self.recent_seqs
        if seqs is not None and (not seqs or seqs == list(range(seqs[0], seqs[0] + len(seqs)))):
            self.recent_seqs = None

    def seqs(self) -> list[int]:
        """The seqs the digests belong to."""
        if self.recent_seqs is not None:
            return self.recent_seqs
        return list(range(self.recent_last - len(self.digests) // DIGEST_BYTES + 1, self.recent_last + 1))

    def differs(self, seq: int, value: bytes, count: int) -> bool:
        """Whether this value is known to differ from the one delivered under the same seq."""
        place = self._place_of(seq)
        if place is None or place < len(self.digests) // DIGEST_BYTES - count:  # the digest no longer counts
            return False
        at = place * DIGEST_BYTES
        return self.digests[at : at + DIGEST_BYTES] != crc32(value).to_bytes(DIGEST_BYTES, "little")

    def _place_of(self, seq: int) -> int | None:
        """Which of the digests belongs to this seq, without a walk through many."""
        seqs = self.recent_seqs
        if seqs is None:
            place = seq - self.recent_last - 1 + len(self.digests) // DIGEST_BYTES
            return place if place >= 0 and seq <= self.recent_last else None
        if len(self.digests) <= CUT_AT_BYTES:
            return seqs.index(seq) if seq in seqs else None
        if self.places is None:
            self.places = {each: place for place, each in enumerate(seqs)}
        return self.places.get(seq)

    def abandon(self, seq: int, runs_max: int) -> None:
        """Stop waiting for the message of this seq; the seq is settled once its stand-in is delivered.

        Where there are more runs of abandoned seqs than that, the first is forgotten if it is settled: a message that
        comes under it after all counts as a copy.
        """
        if self.abandoned is None:
            self.abandoned = Runs()
        self.abandoned.add(seq)
        if self.abandoned.run_count() > runs_max:
            low, high = next(self.abandoned.runs())
            if self.missing_count(low, high) == 0:
                self.abandoned.drop_first()

    def refuses_too_many(self, seq: int, runs_max: int) -> bool:
        """Whether taking this seq by a refusal would begin one run of refused seqs too many."""
        return self.refused is not None and self.refused.run_count() >= runs_max and self.refused.opens_run(seq)

    def refuse(self, seq: int) -> None:
        """Take a seq for ever without settling it: messages that wait for it must be told."""
        if self.refused is None:
            self.refused = Runs()
        self.refused.add(seq)


def fenced(sender: SenderRuns) -> Refusal:
    """Why a record of this sender and epoch comes too late."""
    what = f"nothing above seq {sender.fence} counts" if sender.fence else "nothing counts"
    return Refusal(codes.FENCED, f"Of {sender.name!r} (epoch {sender.epoch}) {what} any more.")
