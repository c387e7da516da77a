"""Which groups changed since their state was last written to the state topic, and what is to be written now.

Pure: who runs the kernel reports what changed, asks what is due by the time of the log, and publishes it in the same
transaction as everything else. In each partition the unwritten groups are kept in the order of their first change, so
the first of them is both the next one due and the limit of what the topic covers.
"""

from collections.abc import Callable, Mapping
from itertools import islice

import msgspec

from precede.udfs.records.state_pieces import PIECE_BYTES_MAX, Record, pieces
from precede.udfs.rules import RULES

EVERY_MS = 10_000
STEP_BYTES_MAX = 32 * 1024 * 1024
"""So much state is written at once; what is due beyond that follows in the next step."""

Change = tuple[int, int]
"""The raw offset of the first change since the state was written, and the time of the log there."""

Waiting = tuple[int, int, int]
"""When the oldest held message arrived, in milliseconds of the log, how many gaps there are, and how many are held."""

NO_WAITING: Waiting = (0, 0, 0)


class StateSettings(msgspec.Struct, frozen=True):
    """How state is written."""

    topic: str = ""
    """The id of the state topic."""
    stream: str = ""
    """The id of the ordered topic."""
    every_ms: int = EVERY_MS
    """The time of the log after which a change is written at the latest."""
    piece_bytes_max: int = PIECE_BYTES_MAX
    written_from: dict[int, int] = {}
    """Per raw partition: no state that stands below this is written, for the topic's own covers up to here."""


class DumpedStateLog(msgspec.Struct, array_like=True):
    """What is kept across batches and restarts."""

    unwritten: dict[int, dict[bytes, Change]] = {}
    counts: dict[bytes, int] = {}
    """How many pieces the written state of a group has, where it is more than one."""
    topic: str = ""
    """The id of the state topic into which the rest is written."""


class StateLog:
    """What is not written yet."""

    def __init__(self, settings: StateSettings, kept: DumpedStateLog | None = None) -> None:
        self._settings = settings
        kept = DumpedStateLog() if kept is None else kept
        self._unwritten = kept.unwritten
        self._counts = kept.counts
        self.has_changed = False
        """Whether `dump` gives anything else than what was kept."""

    def dump(self) -> DumpedStateLog:
        """What the next StateLog needs."""
        return DumpedStateLog(self._unwritten, self._counts, self._settings.topic)

    def changed(self, key: bytes, partition: int, change: Change) -> None:
        """The state of a group changed; changes of one partition are reported in the order of their offsets."""
        groups = self._unwritten.setdefault(partition, {})
        if key not in groups:
            groups[key] = change
            self.has_changed = True

    def take_due(
        self,
        partition: int,
        next_offset: int,
        now_ms: int,
        state_of: Callable[[bytes], bytes | None],
        waiting: Mapping[bytes, Waiting],
    ) -> list[Record]:
        """The records to write now for a partition that is processed up to `next_offset` and this time of the log.

        `state_of` gives None for a state that is as it was written last.
        """
        settings = self._settings
        unwritten = self._unwritten.get(partition, {})
        records: list[Record] = []
        written = size = 0
        if next_offset < settings.written_from.get(partition, 0):
            return records
        for key, (_, since_ms) in unwritten.items():
            if since_ms + settings.every_ms > now_ms or size >= STEP_BYTES_MAX:
                break
            written += 1
            state = state_of(key)
            if state is not None:
                new = self._pieces(key, next_offset, state, waiting.get(key, NO_WAITING))
                size += sum(len(value) for _, value in new if value is not None)
                records += new
        for key in list(islice(unwritten, written)):
            del unwritten[key]
            self.has_changed = True
        if not unwritten:
            self._unwritten.pop(partition, None)
        return records

    def __contains__(self, key: object) -> bool:
        """Whether the state of this group is not written."""
        return any(key in groups for groups in self._unwritten.values())

    def pieces_of(self, key: bytes) -> int:
        """How many pieces the written state of this group has."""
        return self._counts.get(key, 1)

    def uncovered(self) -> dict[int, int]:
        """Per partition, the first raw offset that the state in the topic does not cover; only where there is one."""
        return {at: next(iter(groups.values()))[0] for at, groups in self._unwritten.items() if groups}

    def unwritten(self) -> dict[int, int]:
        """Per partition, how many groups are not written yet."""
        return {at: len(groups) for at, groups in self._unwritten.items()}

    def take_over(self, counts: Mapping[bytes, int]) -> None:
        """State was read from the topic: remember how many pieces it has there."""
        self._counts.update((key, count) for key, count in counts.items() if count > 1)

    def _pieces(self, key: bytes, next_offset: int, blob: bytes, waiting: Waiting) -> list[Record]:
        settings = self._settings
        before = self._counts.pop(key, 1)
        records = pieces(
            key,
            blob,
            stream=settings.stream,
            rules=RULES,
            next_offset=next_offset,
            waiting=waiting,
            bytes_max=settings.piece_bytes_max,
            before=before,
        )
        count = sum(value is not None for _, value in records)
        if count > 1:
            self._counts[key] = count
        return records
