"""What a member keeps of its group's messages for those who lack them, within bounds; all ids that were ever here."""

from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice

from precede.udfs.engine.runs import Runs
from precede.udfs.peers.notes import Have
from precede.udfs.records.messages import Id, Who

KEPT_BYTES_MAX = 64 * 1024 * 1024
"""How many bytes of messages a member keeps; beyond it, the oldest settled ones are forgotten."""
KEPT_COST = 300
"""What one message takes in memory beside its bytes."""
HAVE_BYTES_MAX = 384 * 1024
"""How large the list of all ids may become: one request has to name them. Beyond it, no sender and no gap is new."""
SENDER_COST = 20
BOUND_COST = 9
"""What a sender beside its name, and a bound of a run, take in that list."""
SETTLED_MAX = 1_000
"""How many runs of forgotten messages are named at once."""


class KeptMessages:
    """Messages under their ids. What was forgotten stays known by its id, as runs of seqs."""

    def __init__(self, *, grace_ms: int = 0, bytes_max: int = KEPT_BYTES_MAX) -> None:
        self.grace_ms = grace_ms
        """Messages younger than this are not sent: they are on their way to the requester anyway."""
        self.bytes_max = bytes_max
        self.messages = MessageStore()
        """The messages that are kept, in order of arrival."""
        self.size = 0
        """How many bytes they take."""
        self._have: dict[Who, Runs] = {}
        """All that was ever here."""
        self._gone: dict[Who, Runs] = {}
        """What of that is kept no longer."""
        self._young: deque[tuple[float, Who, int, int]] = deque()
        """Since when these of a sender, from first to last, may be sent."""
        self._have_bytes = 0

    def has_room_for(self, id_: Id) -> bool:
        """Whether this message may be noted as here, so that a request can still name all that is."""
        if self._have_bytes <= HAVE_BYTES_MAX:
            return True
        runs = self._have.get(id_[:2])
        return runs is not None and not runs.opens_run(id_[2])

    def has(self, id_: Id) -> bool:
        """Whether this message was ever here."""
        runs = self._have.get(id_[:2])
        return runs is not None and id_[2] in runs

    def highest(self, who: Who) -> int:
        """The largest seq of a sender that was ever here."""
        runs = self._have.get(who)
        return 0 if runs is None else runs.largest

    def is_next(self, who: Who, seq: int) -> bool:
        """Whether this is the next message after the largest of a sender that was ever here."""
        runs = self._have.get(who)
        return runs is not None and 0 < runs.largest == seq - 1

    def store(self, id_: Id, value: bytes, *, now_ms: float = 0) -> bool:
        """Store a message of the group; returns whether it is new."""
        who = id_[:2]
        runs = self._runs_of(who)
        if id_[2] in runs:
            return False
        bounds = len(runs.beyond)
        runs.add(id_[2])
        self._have_bytes += BOUND_COST * (len(runs.beyond) - bounds)
        self.messages.put(who, id_[2], [value])
        self.size += len(value) + KEPT_COST
        self._note_young(who, id_[2], id_[2], now_ms)
        return True

    def store_next(self, who: Who, values: list[bytes], now_ms: float) -> None:
        """Store the messages that come after the largest of a sender; each of them `is_next`."""
        runs = self._have[who]
        first = runs.largest + 1
        runs.extend(len(values))
        self.messages.put(who, first, values)
        self.size += sum(map(len, values)) + KEPT_COST * len(values)
        self._note_young(who, first, runs.largest, now_ms)

    def _note_young(self, who: Who, first: int, last: int, now_ms: float) -> None:
        if self.grace_ms:
            self._young.append((now_ms + self.grace_ms, who, first, last))
            if self._young[0][0] <= now_ms:
                self.grow_old(now_ms)

    def note_gone(self, who: Who, first: int, last: int) -> None:
        """These messages need not come: they were refused for good, or are kept by no one any more."""
        if self._have_bytes > HAVE_BYTES_MAX:
            return
        have, gone = self._runs_of(who), self._gone.setdefault(who, Runs())
        bounds = len(have.beyond)
        gaps = list(have.gaps(first, last))
        have.add_ranges(gaps)
        gone.add_ranges(gaps)
        self._have_bytes += BOUND_COST * (len(have.beyond) - bounds)

    def clear(self) -> None:
        self.messages.clear()
        self._have.clear()
        self._gone.clear()
        self._young.clear()
        self.size = self._have_bytes = 0

    def _runs_of(self, who: Who) -> Runs:
        runs = self._have.get(who)
        if runs is None:
            runs = self._have[who] = Runs()
            self._have_bytes += SENDER_COST + len(who[0].encode())
        return runs

    def forget(self, id_: Id) -> None:
        """Drop the text of a message to save memory; its id stays known."""
        value = self.messages.drop(id_)
        if value is not None:
            self._note_forgotten(id_, value)

    def _note_forgotten(self, id_: Id, value: bytes) -> None:
        self.size -= len(value) + KEPT_COST
        self._gone.setdefault(id_[:2], Runs()).add(id_[2])

    def forget_old(self, is_settled: Callable[[Id], bool]) -> list[Id]:
        """Forget the oldest messages beyond the limit and return them; one that still waits for its turn is kept."""
        forgotten: list[Id] = []
        waiting: list[tuple[Id, bytes]] = []
        while self.size > self.bytes_max and self.messages:
            id_, value = self.messages.drop_oldest()
            if is_settled(id_):
                self._note_forgotten(id_, value)
                forgotten.append(id_)
            else:
                waiting.append((id_, value))
        for id_, value in waiting:
            self.messages.put(id_[:2], id_[2], [value])
        return forgotten

    def grow_old(self, now_ms: float) -> None:
        """Messages that have become old enough may be sent from here on."""
        young = self._young
        while young and young[0][0] <= now_ms:
            young.popleft()

    def have(self) -> list[Have]:
        """All that was ever here, as plain data."""
        return [(name, epoch, runs.dump()) for (name, epoch), runs in self._have.items()]

    def lacks_any_of(self, have: dict[Who, Runs]) -> bool:
        """Whether these contain any message that is not here."""
        nothing = Runs()
        return any(
            next(self._have.get(who, nothing).missing(low, high), None) is not None
            for who, runs in have.items()
            for low, high in runs.runs()
        )

    def not_in(self, have: dict[Who, Runs]) -> Iterator[Id]:
        """The messages that are kept here, and not among these."""
        nothing = Runs()
        too_young = self._young_stretches()
        for who, runs in self._have.items():
            theirs, gone = have.get(who, nothing), self._gone.get(who, nothing)
            young = too_young.get(who, ())
            for low, high in runs.runs():
                for first, last in theirs.gaps(low, high):
                    for seq in gone.missing(first, last):
                        id_ = (*who, seq)
                        if id_ in self.messages and not any(one <= seq <= other for one, other in young):
                            yield id_

    def _young_stretches(self) -> dict[Who, list[tuple[int, int]]]:
        """Which messages of each sender are too young to be sent, as (first, last)."""
        found: dict[Who, list[tuple[int, int]]] = {}
        for _, who, first, last in self._young:
            stretches = found.setdefault(who, [])
            if stretches and stretches[-1][1] + 1 == first:
                first = stretches.pop()[0]
            stretches.append((first, last))
        return found

    def gone_and_not_in(self, have: dict[Who, Runs]) -> list[Have]:
        """The forgotten messages that are not among these; beyond SETTLED_MAX runs, the rest is told the next time."""
        nothing = Runs()
        found: list[Have] = []
        room = SETTLED_MAX
        for (name, epoch), gone in self._gone.items():
            theirs = have.get((name, epoch), nothing)
            stretches = (stretch for low, high in gone.runs() for stretch in theirs.gaps(low, high))
            lacking = Runs()
            lacking.add_ranges(islice(stretches, room))
            room -= lacking.run_count()
            if lacking.run_count():
                found.append((name, epoch, lacking.dump()))
        return found


class MessageStore:
    """Values under ids."""

    def __init__(self) -> None:
        self._by_sender: dict[Who, dict[int, bytes]] = {}
        self._came: deque[tuple[Who, int, int]] = deque()
        """Of whom which seqs came, from first to last, the oldest first; some of them may have been dropped since."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __contains__(self, id_: Id) -> bool:
        return id_[2] in self._by_sender.get(id_[:2], ())

    def __iter__(self) -> Iterator[Id]:
        return (id_ for id_, _ in self.items())

    def items(self) -> Iterator[tuple[Id, bytes]]:
        """The ids and values, the oldest first."""
        for who, first, last in self._came:
            values = self._by_sender[who]
            for seq in range(first, last + 1):
                if seq in values:
                    yield (*who, seq), values[seq]

    def get(self, id_: Id) -> bytes | None:
        values = self._by_sender.get(id_[:2])
        return None if values is None else values.get(id_[2])

    def put(self, who: Who, first: int, values: list[bytes]) -> None:
        """Keep the values of consecutive seqs, none of which is kept yet."""
        kept = self._by_sender.get(who)
        if kept is None:
            kept = self._by_sender[who] = {}
        last = first + len(values) - 1
        kept.update(zip(range(first, last + 1), values, strict=True))
        self._came.append((who, first, last))
        self._count += len(values)

    def drop(self, id_: Id) -> bytes | None:
        """Keep this one no longer; returns its value, if it was kept."""
        value = self._by_sender.get(id_[:2], {}).pop(id_[2], None)
        self._count -= value is not None
        return value

    def drop_oldest(self) -> tuple[Id, bytes]:
        """Keep the one that came first no longer; there is one at least."""
        while True:
            who, first, last = self._came.popleft()
            if first < last:
                self._came.appendleft((who, first + 1, last))
            value = self.drop((*who, first))
            if value is not None:
                return (*who, first), value

    def clear(self) -> None:
        self._by_sender.clear()
        self._came.clear()
        self._count = 0
