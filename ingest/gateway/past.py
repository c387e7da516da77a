"""What the log had of each group: its membership records, and the last messages, for those who join on a segment."""

from collections import deque
from collections.abc import Iterable

import msgspec

from precede.udfs.limits import Limits
from precede.udfs.peers.membership_records import MembershipRecords
from precede.udfs.records.lenient import lenient_reader
from precede.udfs.records.messages import Abandon, Create, Evict, Join, Leave, Message, Record
from precede.udfs.records.strict import Malformed
from precede.udfs.records.wire import read

KEPT_BYTES_MAX = 64 * 1024 * 1024
COST = 200
"""What a message takes in memory beside its bytes."""
POSITION = b',"position":'
LIMITS = Limits()


class _Kind(msgspec.Struct):
    status: str
    kind: str = "message"


_read_kind = lenient_reader(_Kind)


class Past:
    """The membership records of all groups, and the last messages."""

    def __init__(self, *, bytes_max: int = KEPT_BYTES_MAX) -> None:
        self.records: dict[str, MembershipRecords] = {}
        self._bytes_max = bytes_max
        self._messages: dict[str, deque[bytes]] = {}
        self._order: deque[str] = deque()
        """The groups of the messages, the oldest first."""
        self._size = 0

    def note(self, group: str, value: bytes, record: Record) -> None:
        """The log took this record."""
        if isinstance(record, Message):
            self._keep(group, value)
        elif isinstance(record, Create | Join | Leave | Evict | Abandon):
            records = self.records.setdefault(group, MembershipRecords())
            if not records.has(record, value):
                records.keep(record, value)

    def note_ordered(self, key: bytes, value: bytes) -> None:
        """A record of the ordered topic. Raises msgspec.DecodeError for what precede did not write."""
        kind = _read_kind(value)
        raw = value[: value.rfind(POSITION)] + b"}"
        if kind.status != "delivered":
            return
        if kind.kind == "message":
            self._keep(key.decode(), raw)
            return
        try:
            record = read(raw, LIMITS)
        except Malformed:
            return
        self.note(key.decode(), raw, record)

    def create_of(self, group: str) -> bytes | None:
        """The `create` record of a group, if it is known."""
        records = self.records.get(group)
        return None if records is None else records.create

    def controls(self, group: str) -> list[bytes]:
        """The membership records of a group, in an order in which they can be taken in."""
        records = self.records.get(group)
        return [] if records is None else records.all()

    def messages(self, group: str) -> Iterable[bytes]:
        """The last messages of a group, as far as they are kept."""
        return self._messages.get(group, ())

    def _keep(self, group: str, value: bytes) -> None:
        kept = self._messages.get(group)
        if kept is None:
            kept = self._messages[group] = deque()
        kept.append(value)
        self._order.append(group)
        self._size += len(value) + COST
        while self._size > self._bytes_max:
            oldest = self._order.popleft()
            self._size -= len(self._messages[oldest].popleft()) + COST
            if not self._messages[oldest]:
                del self._messages[oldest]
