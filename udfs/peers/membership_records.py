"""The records of a group that are about its members: those that newcomers need, and those that wait.

    heard before it is known who joined   `hear`            -> all of it, once that is known
    a join of a larger epoch              `put`             -> DEFER_MS later; at once where no older one is known
    a leave behind such a join            `put`             -> with it
    a heartbeat of one who is no member   `put_heartbeat`   -> with its join

Joins of a larger epoch wait, because the kernel fences the older epoch where it was seen last: what is still on its way
of that should count. A newcomer takes the history in before all joins but the first of each member, its own included.
"""

from collections.abc import Iterator

from precede.udfs.peers.views import View
from precede.udfs.records.messages import Abandon, Create, Evict, Heartbeat, Join, Leave

ABANDONS_MAX = 1_000
"""How many `abandon` records are kept; the oldest are dropped."""
NAMES_MAX = 10_000
"""For how many names records are kept; beyond it, the one that was heard of first is dropped."""
EPOCHS_MAX = 16
"""Of how many epochs of one name the records are kept."""
DEFER_MS = 1_500.0
"""How long a join of a larger epoch waits for what is on its way of the older one; meanwhile all say what they have."""
DEFERRED_MAX = 1_000
"""So many joins and leaves may wait; one more comes again when members synchronise."""
EARLY_MAX = 1_000
"""From how many who are no members yet a heartbeat is kept."""
HEARD_BYTES_MAX = 4 * 1024 * 1024
"""So much is kept of what is heard before it is known who has joined; where it is more, this peer asks again."""

MembershipRecord = Create | Join | Leave | Evict | Abandon


class MembershipRecords:
    """Control records by what they are about."""

    def __init__(self) -> None:
        self.create: bytes | None = None
        self._joins: dict[str, dict[int, bytes]] = {}
        self._ends: dict[str, dict[int, bytes]] = {}
        self._abandons: dict[bytes, None] = {}

    def has(self, record: MembershipRecord, value: bytes) -> bool:
        """Whether this record, or another of its kind about the same epoch of the same member, is here."""
        match record:
            case Create():
                return self.create == value
            case Join():
                return record.epoch in self._joins.get(record.sender, ())
            case Leave():
                return record.epoch in self._ends.get(record.sender, ())
            case Evict():
                return record.member[1] in self._ends.get(record.member[0], ())
        return value in self._abandons

    def keep(self, record: MembershipRecord, value: bytes) -> None:
        match record:
            case Create():
                self.create = value
            case Join():
                _keep(self._joins, record.sender, record.epoch, value)
            case Leave():
                _keep(self._ends, record.sender, record.epoch, value)
            case Evict():
                _keep(self._ends, *record.member, value)
            case Abandon():
                self._abandons[value] = None
                if len(self._abandons) > ABANDONS_MAX:
                    del self._abandons[next(iter(self._abandons))]

    def has_join_of(self, name: str) -> bool:
        """Whether any join of this name is here."""
        return name in self._joins

    def all(self) -> list[bytes]:
        """All records, in an order in which they can be taken in: by epoch, the end of each after its join."""
        about = [(epoch, 0, name, value) for name, of in self._joins.items() for epoch, value in of.items()]
        about += [(epoch, 1, name, value) for name, of in self._ends.items() for epoch, value in of.items()]
        create = [] if self.create is None else [self.create]
        return create + [value for _, _, _, value in sorted(about)] + list(self._abandons)


def _keep(records: dict[str, dict[int, bytes]], name: str, epoch: int, value: bytes) -> None:
    of = records.pop(name, {})
    records[name] = of  # the one that was heard of last stands last
    of[epoch] = value
    if len(records) > NAMES_MAX:
        del records[next(iter(records))]
    if len(of) > EPOCHS_MAX:
        del of[min(of)]


class WaitingRecords:
    """Records that came too early for the kernel; each waits for one thing, and is then taken in by the group."""

    def __init__(self) -> None:
        self._heard: list[tuple[list[bytes], bool]] = []
        """What was heard before it was known who has joined, and whether from a gateway."""
        self._heard_bytes = 0
        self._deferred: list[tuple[float, int, bytes, Join | Leave]] = []
        """Joins, each with its time and epoch, and the leaves behind them."""
        self._heartbeats: dict[str, tuple[bytes, Heartbeat]] = {}
        """The last heartbeat of each who is no member yet."""

    def hear(self, values: list[bytes], *, is_from_log: bool) -> None:
        """Somebody says this before it is known who has joined; beyond the limit it is left to synchronising."""
        if self._heard_bytes < HEARD_BYTES_MAX:
            self._heard.append((values, is_from_log))
            self._heard_bytes += sum(map(len, values))

    def take_heard(self) -> tuple[list[tuple[list[bytes], bool]], bool]:
        """All that was heard, in its order, and whether there may have been more."""
        heard, is_full = self._heard, self._heard_bytes >= HEARD_BYTES_MAX
        self._heard, self._heard_bytes = [], 0
        return heard, is_full

    def put(self, value: bytes, record: Join | Leave, now_ms: float) -> bool:
        """A join, or a leave behind one, waits; returns whether it does so only now."""
        if len(self._deferred) >= DEFERRED_MAX or any(other == value for _, _, other, _ in self._deferred):
            return False
        self._deferred.append((now_ms, record.epoch, value, record))
        return True

    def has_join_before(self, leave: Leave) -> bool:
        """Whether something of its sender waits that comes before this leave."""
        return any(epoch <= leave.epoch and one.sender == leave.sender for _, epoch, _, one in self._deferred)

    def take_due(self, view: View, now_ms: float) -> Iterator[tuple[bytes, Join | Leave]]:
        """The joins and leaves that have waited long enough, by epoch; each may change the view."""
        for one in sorted(self._deferred, key=lambda one: (one[1], one[0])):
            if _ready_ms(one, view) <= now_ms:
                self._deferred.remove(one)
                yield one[2:]

    def due_ms(self, view: View) -> float | None:
        return min((_ready_ms(one, view) for one in self._deferred), default=None)

    def put_heartbeat(self, value: bytes, record: Heartbeat) -> None:
        """One who is no member yet tells its clock."""
        if len(self._heartbeats) < EARLY_MAX:
            self._heartbeats[record.sender] = value, record

    def take_heartbeat(self, name: str) -> tuple[bytes, Heartbeat] | None:
        """What one told before it was a member."""
        return self._heartbeats.pop(name, None)


def _ready_ms(one: tuple[float, int, bytes, Join | Leave], view: View) -> float:
    """A join waits only where an older epoch of its sender is known."""
    arrived_ms, epoch, _, record = one
    known = view.get(record.sender)
    return arrived_ms + DEFER_MS if known is not None and known[0] < epoch else arrived_ms
