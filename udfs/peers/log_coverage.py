"""What of a group the log has, as gateways tell it, and which own messages it lacks.

Where a gateway is known, a peer keeps its own messages until the log has them. At the limit it says nothing more.
"""

from collections.abc import Iterable

from precede.udfs.engine.runs import Runs
from precede.udfs.errors import Refused
from precede.udfs.records.messages import Id, Who

UNLOGGED_BYTES_MAX = 16 * 1024 * 1024


class LogCoverage:
    """One group's standing in the log."""

    def __init__(self, name: str, bytes_max: int = UNLOGGED_BYTES_MAX) -> None:
        self.is_known = False
        """Whether a gateway has told anything of this group."""
        self.create: bytes | None = None
        """The `create` record in the log, if there is one."""
        self._name = name
        self._bytes_max = bytes_max
        self._have: dict[Who, Runs] = {}
        self._lacking: dict[Id, int] = {}
        """The own messages that the log is not known to have, with their sizes."""
        self.size = 0

    def tell(self, create: bytes | None, have: dict[Who, Runs]) -> None:
        """A gateway tells what the log has; several may, each a part."""
        self.is_known = True
        self.create = create or self.create
        for who, runs in have.items():
            known = self._have.setdefault(who, Runs())
            known.add_ranges(runs.runs())
        self.drop([id_ for id_ in self._lacking if self.has(id_)])

    def has(self, id_: Id) -> bool:
        runs = self._have.get(id_[:2])
        return runs is not None and id_[2] in runs

    def said(self, id_: Id, size: int) -> None:
        """An own message goes out."""
        if not self.has(id_):
            self._lacking[id_] = size
            self.size += size

    def drop(self, ids: Iterable[Id]) -> None:
        """These need no keeping: the log has them or refused them, or they are forgotten here."""
        for id_ in ids:
            self.size -= self._lacking.pop(id_, 0)

    def keeps(self, id_: Id) -> bool:
        """Whether an own message must be kept, because the log lacks it."""
        return self.is_known and id_ in self._lacking

    def check_room(self, size: int) -> None:
        """Raises Refused if the log lacks too much of what this peer said."""
        if self.is_known and self.size + size > self._bytes_max:
            raise Refused(
                f"The log has not taken {self.size:,} bytes of what {self._name} said: a gateway or Kafka is away."
                " Wait, and send it again."
            )

    @property
    def owed(self) -> list[Id]:
        """The own messages that must be kept until the log has them: none where no gateway is known."""
        return self.lacking if self.is_known else []

    @property
    def lacking(self) -> list[Id]:
        """The own messages that the log is not known to have."""
        return list(self._lacking)
