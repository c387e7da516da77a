"""The membership records of a group that a peer keeps for newcomers: its `create`, and joins and ends by epoch."""

from precede.udfs.records.messages import Abandon, Create, Evict, Join, Leave

ABANDONS_MAX = 1_000
"""How many `abandon` records are kept; the oldest are dropped."""
NAMES_MAX = 10_000
"""For how many names records are kept; beyond it, the one that was heard of first is dropped."""
EPOCHS_MAX = 16
"""Of how many epochs of one name the records are kept."""

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
        """Keep a record that took effect."""
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
