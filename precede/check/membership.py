"""Who may speak in a group, up to which seq, and by which key: from the membership records that took effect."""

from msgspec import UNSET

from precede.check.witness import Shown
from precede.udfs.records.messages import Create, Evict, Join, Leave, Options, Record, Who
from precede.udfs.records.signatures import is_signed_by, read_key, signature_in

NO_END = 2**53


def about_of(record: Create | Join | Leave | Evict) -> tuple[str, ...]:
    """Which membership records repeat each other if they have the same bytes."""
    match record:
        case Join():
            return "join", record.sender
        case Leave():
            return "leave", record.sender, str(record.epoch)
        case Evict():
            return "evict", record.member[0], str(record.member[1])
    return ("create",)


class Membership:
    """The members of one group, and the ends of what has ended."""

    __slots__ = ("closed", "ends", "fences", "joined", "joined_at", "keys", "members", "options")

    def __init__(self) -> None:
        self.options = Options()
        self.closed = False
        self.members: dict[str, tuple[int, bool]] = {}
        """The last epoch of each name, and whether it is in."""
        self.joined: set[Who] = set()
        self.joined_at: dict[Who, int] = {}
        """The offset of the `join` that let a sender in."""
        self.fences: dict[Who, int] = {}
        self.ends: dict[Who, Shown] = {}
        """The record that ended a sender's epoch, as a witness."""
        self.keys: dict[str, list[tuple[int, bytes]]] | None = None
        """Of each name its keys, each with the epoch from which it counts."""

    def is_in(self, who: Who) -> bool:
        return not self.closed or who in self.joined

    def fence_of(self, who: Who) -> int:
        """The seq above which nothing of this sender and epoch counts."""
        fence = self.fences.get(who)
        if fence is not None:
            return fence
        last = self.members.get(who[0])
        return 0 if last is not None and who[1] < last[0] else NO_END

    def take(self, record: Record, at: Shown, highest: dict[Who, int] | None) -> list[tuple[Who, int]]:
        """A membership record took effect. Returns which epochs ended, and after which seq.

        `highest` names what has arrived of each sender; where that is not known, older epochs end without a seq.
        """
        match record:
            case Create():
                self._create(record)
            case Join():
                self.members[record.sender] = (record.epoch, True)
                self.joined.add((record.sender, record.epoch))
                self.joined_at[record.sender, record.epoch] = at.offset
                key = read_key(record.key) if self.keys is not None else None
                if key is not None and self.keys is not None:
                    self.keys.setdefault(record.sender, []).append((record.epoch, key))
                return self.end_older(record.sender, record.epoch, at, highest)
            case Leave() | Evict():
                name, epoch = (record.sender, record.epoch) if isinstance(record, Leave) else record.member
                cut = record.last if isinstance(record, Leave) else record.cut
                self.members[name] = (epoch, False)
                ended = self.end_older(name, epoch, at, highest)
                return [*ended, self.end((name, epoch), cut, at)]
        return []

    def _create(self, record: Create) -> None:
        self.options = options = record.options
        self.closed = options.closed is True
        self.members = dict.fromkeys(record.members, (0, True))
        self.joined = {(name, 0) for name in record.members}
        if options.keys is not UNSET:
            keys = {name: read_key(text) for name, text in options.keys.items()}
            self.keys = {name: [(0, key)] for name, key in keys.items() if key is not None}

    def end_older(self, name: str, epoch: int, at: Shown, highest: dict[Who, int] | None) -> list[tuple[Who, int]]:
        """End the older epochs of a sender: what was in flight still counts."""
        return [
            self.end(who, seq, at)
            for who, seq in list((highest or {}).items())
            if who[0] == name and who[1] < epoch and who not in self.fences
        ]

    def end(self, who: Who, cut: int, at: Shown) -> tuple[Who, int]:
        """Let nothing above this seq count any more."""
        if self.closed and who not in self.joined:
            cut = 0
        self.fences[who] = cut = min(cut, self.fences.get(who, NO_END))
        self.ends[who] = at
        return who, cut

    def is_signed(self, who: Who, value: bytes) -> bool:
        """Whether a message in a group with keys is signed by its sender; `value` is the trimmed raw record."""
        signature = signature_in(value)
        keys = [key for epoch, key in (self.keys or {}).get(who[0], []) if epoch <= who[1]]
        return signature is not None and bool(keys) and is_signed_by(keys[-1], signature, value)
