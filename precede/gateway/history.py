"""What the log had of each group: its membership records, and the last messages, for those who join on a segment.

No I/O: the records of the topics are handed in.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress

import msgspec

from precede.udfs.limits import ANY_SIZE
from precede.udfs.peers.membership_records import MembershipRecords
from precede.udfs.records.messages import Abandon, Create, Evict, Join, Leave, Message, Record
from precede.udfs.records.published import lenient_reader
from precede.udfs.records.strict import Malformed
from precede.udfs.records.wire import read

KEPT_BYTES_MAX = 64 * 1024 * 1024
COST = 300
"""What a message takes in memory beside its bytes."""
POSITION = b',"position":'


class _Kind(msgspec.Struct):
    status: str
    kind: str = "message"


_read_kind = lenient_reader(_Kind)


class LogHistory:
    """The membership records of all groups, and the last messages."""

    def __init__(self, *, bytes_max: int = KEPT_BYTES_MAX) -> None:
        self.records: dict[str, MembershipRecords] = {}
        self.changed: set[str] = set()
        """Groups whose membership records are not on the disk as they are now."""
        self._bytes_max = bytes_max
        self._messages: dict[str, deque[bytes]] = {}
        self._order: deque[tuple[str, int]] = deque()
        """The groups of the messages, and when the log took each, the oldest first."""
        self._size = 0

    def note(self, group: str, value: bytes, record: Record, *, at_ms: int) -> None:
        """The log took this record, at this time."""
        if isinstance(record, Message):
            self._keep(group, value, at_ms)
        elif isinstance(record, Create | Join | Leave | Evict | Abandon):
            records = self.records.setdefault(group, MembershipRecords())
            if not records.has(record, value):
                records.keep(record, value)
                self.changed.add(group)

    def note_ordered(self, key: bytes, value: bytes, *, at_ms: int) -> None:
        """A record of the ordered topic. Raises msgspec.DecodeError for what precede did not write."""
        kind = _read_kind(value)
        if kind.status != "delivered":
            return
        raw = value[: value.rfind(POSITION)] + b"}"
        if kind.kind == "message":
            self._keep(key.decode(), raw, at_ms)
        else:
            self._note_raw(key.decode(), raw, at_ms)

    def learn(self, records: Mapping[str, Iterable[bytes]]) -> None:
        """Membership records that an earlier run kept on the disk."""
        for group, values in records.items():
            for value in values:
                self._note_raw(group, value, 0)
        self.changed.clear()

    def _note_raw(self, group: str, raw: bytes, at_ms: int) -> None:
        with suppress(Malformed):
            self.note(group, raw, read(raw, ANY_SIZE), at_ms=at_ms)

    @property
    def messages_ms(self) -> int:
        """When the log took the oldest of the messages that are kept; 0 where none is."""
        return self._order[0][1] if self._order else 0

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

    def _keep(self, group: str, value: bytes, at_ms: int) -> None:
        kept = self._messages.get(group)
        if kept is None:
            kept = self._messages[group] = deque()
        kept.append(value)
        self._order.append((group, at_ms))
        self._size += len(value) + COST
        while self._size > self._bytes_max:
            oldest, _ = self._order.popleft()
            self._size -= len(self._messages[oldest].popleft()) + COST
            if not self._messages[oldest]:
                del self._messages[oldest]
