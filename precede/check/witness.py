"""What a check finds: which promise is broken, the two or three records that show it, and why, in a sentence."""

from collections import Counter
from typing import NamedTuple

import msgspec

from precede.check.records import OrderedRead, RawRecord

KEPT_MAX = 100
"""So many groups are reported with a witness; what is broken in others is counted."""

PROMISES = {
    "s_b": "a reply never comes before what it answers",
    "fifo": "each sender's messages come in its order",
    "causal": "a message comes after all that its sender had read or said",
    "causal_p2p": "a message comes after all that its sender knew was sent to that destination before",
    "total": "the sequence is the log's",
    "lamport": "the sequence is the one of (time, sender)",
    "two_clock": "what both clocks put first comes first",
    "object": "what a request depends on comes before it, and so does what its sender said in conflict with it",
    "position": "positions are 1, 2, 3, without a hole and without a repetition",
    "once": "each message is delivered once",
    "released": "a record is released by a record of the log, not before it arrived, and one after the other",
    "fields": "the appended fields say what the log says",
    "bytes": "an ordered record is its raw record, byte for byte",
    "invented": "everything delivered is in the raw log",
    "member": "no one speaks in a closed group who is not a member",
    "fence": "above the end of an epoch nothing counts",
    "destination": "a message goes to its destinations, and to no one else",
    "signature": "in a group with keys everything is signed by its sender",
    "early": "a message waits until nothing before it can come",
    "late": "nothing waits longer than it must",
    "sequence": "what is released together comes in one fixed sequence",
    "account": "each raw record is delivered, a dead letter, an exact copy, or held",
    "refused": "no good message is refused",
}
"""Each promise by its name, in the words of the documents."""

ORDER_PROMISES = ("s_b", "fifo", "causal", "causal_p2p", "total", "lamport", "two_clock", "object")

FIRST = tuple(sorted(PROMISES, key=lambda name: name not in ("released", "invented", "bytes", "once", "refused")))
"""Where one mistake breaks several promises, the one that stands first says most."""


class Shown(msgspec.Struct, frozen=True, omit_defaults=True):
    """A record of a witness: where it stands in the sequence, and in the log."""

    id: str | None
    partition: int
    offset: int
    position: int | None = None
    destination: str | None = None
    released_offset: int | None = None

    def __str__(self) -> str:
        name = self.id or "a record"
        place = f"offset {self.partition}:{self.offset}"
        return f"{name} ({place})" if self.position is None else f"{name} (position {self.position}, {place})"


def shown(one: OrderedRead, name: str | None) -> Shown:
    """An ordered record as a witness."""
    return Shown(name, one.partition, one.offset, one.position, one.destination, one.released_offset)


def shown_raw(one: RawRecord, name: str | None) -> Shown:
    """A raw record as a witness."""
    return Shown(name, one.partition, one.offset)


class Violation(msgspec.Struct, omit_defaults=True):
    """One broken promise."""

    guarantee: str
    group: str | None
    sentence: str
    records: list[Shown] = []
    destination: str | None = None
    more: int = 0
    """How much else is broken in this group: it may follow from the same mistake."""

    @property
    def promise(self) -> str:
        return PROMISES[self.guarantee]


class Unjudged(NamedTuple):
    """Something that could not be judged, and what is missing for it."""

    what: str
    missing: str


class Witnesses:
    """All that was found: of each group the witness that says most, and how often each promise was broken."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.unjudged: Counter[Unjudged] = Counter()
        self.noted: Counter[str] = Counter()
        """What is worth knowing and breaks nothing."""
        self.before = 0
        """How many messages follow something that lies before the beginning."""
        self._first: dict[str | None, Violation] = {}
        self._all: dict[str | None, int] = {}

    def add(self, violation: Violation) -> None:
        """Keep a violation, unless an earlier one of its group says more; what comes later is mostly a consequence."""
        self.counts[violation.guarantee] += 1
        group = violation.group
        count = self._all[group] = self._all.get(group, 0) + 1
        kept = self._first.get(group)
        if kept is None:
            if len(self._first) < KEPT_MAX:
                self._first[group] = violation
        elif _rank(violation) < _rank(kept) and (_at_one_record(kept, violation) or _shows(kept, violation, count)):
            self._first[group] = violation

    def cannot(self, what: str, missing: str) -> None:
        """Count something that cannot be judged."""
        self.unjudged[Unjudged(what, missing)] += 1

    @property
    def violations(self) -> list[Violation]:
        """One for each broken group, the smallest witness first."""
        for group, violation in self._first.items():
            violation.more = self._all[group] - 1
        return sorted(self._first.values(), key=_size)

    @property
    def groups_broken(self) -> int:
        return len(self._all)


def _rank(violation: Violation) -> tuple[int, int]:
    return FIRST.index(violation.guarantee), len(violation.records)


def _at_one_record(one: Violation, other: Violation) -> bool:
    """Whether both were found at one record, which stands first in a witness."""
    return bool(one.records and other.records) and one.records[0] == other.records[0]


def _shows(kept: Violation, violation: Violation, count: int) -> bool:
    """Whether something was noticed by its absence, and the next record shows what came instead."""
    by_absence = bool(kept.records) and kept.records[0].position is None
    return count == 2 and by_absence and violation.guarantee in (*ORDER_PROMISES, "position")


def _size(violation: Violation) -> tuple[int, int, str]:
    """Few records close together are read first."""
    offsets = [one.offset for one in violation.records] or [0]
    return len(violation.records) or 9, max(offsets) - min(offsets), violation.group or ""
