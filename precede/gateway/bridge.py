"""All segments of a gateway and the log: what the kernel over the log says goes to all sides, and back.

No I/O. The caller hands over the events of the segments and the raw records of the log, publishes what `take_upward`
returns, and calls `step` now and then. Everything that is heard is kept until the log has it, within `kept_bytes_max`;
beyond that the segments take in no records, so that the peers go on keeping theirs.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from precede.gateway.history import LogHistory
from precede.gateway.log_kernel import LogKernel, LogRefusal, Verdict
from precede.gateway.publish_queue import HeardRecord, PublishQueue
from precede.gateway.segment_side import SegmentSide
from precede.ingest.live.kernel import RawRow
from precede.udfs.errors import Refused
from precede.udfs.limits import ANY_SIZE
from precede.udfs.peers.events import Event
from precede.udfs.peers.gateway_calls import keep_within, pause
from precede.udfs.peers.segment import SegmentProtocol
from precede.udfs.records.messages import Evict, Join, Leave, Message
from precede.udfs.records.published import GapRecord
from precede.udfs.records.strict import Malformed
from precede.udfs.records.wire import read

SPOOL_MS = 500.0
"""What the log does not have after this time is written to the disk."""
KEPT_BYTES_MAX = 256 * 1024 * 1024
SEGMENTS_BYTES_MAX = 256 * 1024 * 1024
"""So much of the messages of all groups on all segments is kept for those who lack it, 64 MiB of one group at most."""
BOUND_MS = 1_000.0
"""How often that is looked at."""
REST_MS = 10_000.0
"""How often the groups of the log are put away that nothing reached."""
DISK_MS = 5_000.0
"""After how long a disk that could not be written is tried again."""
RESUME_AT = 0.8
"""Below this share of the limit the segments take in records again."""
ANSWERED_MAX = 1_000
"""So many messages are published again for one request of the log."""


ERRORS_SAID_MAX = 100
"""So many different errors are said."""

_LOGGER = logging.getLogger("precede")


class Spool(Protocol):
    """Where entries are kept that the log lacks; see spool.py."""

    def add(self, entries: Sequence[HeardRecord]) -> None:
        """Keep these, and tell each its row. Raises Refused where the disk cannot be written."""

    def remove(self, rows: Sequence[int]) -> None:
        """The log has these."""


class Bridge:
    """The segments of one gateway, and the log."""

    def __init__(
        self,
        log: LogKernel,
        history: LogHistory,
        spool: Spool,
        *,
        say: Callable[[str], object],
        kept_bytes_max: int = KEPT_BYTES_MAX,
        segments_bytes_max: int = SEGMENTS_BYTES_MAX,
    ) -> None:
        self.log = log
        self.history = history
        self.sides: list[SegmentSide] = []
        self.queue = PublishQueue(log, self._gone)
        self.is_full = False
        """Whether so much is kept that the segments take in no more."""
        self.refused: Counter[str] = Counter()
        """What the log refused of what this gateway had heard, by code."""
        self.answered = 0
        """How many messages were published again because the log asked for them."""
        self.errors = 0
        """How many records and events were left out because of an error in precede."""
        self._errors_said: set[str] = set()
        self.reads_to_end = False
        """Whether the log was read to its end lately; the caller sets it."""
        self._spool = spool
        self._unneeded: list[int] = []
        self._unwritten: list[HeardRecord] = []
        """What should be on the disk and is not."""
        self._disk_ms = 0.0
        self._say = say
        self._kept_bytes_max = kept_bytes_max
        self._segments_bytes_max = segments_bytes_max
        self._bound_ms = self._rest_ms = 0.0

    def add(self, url: str, segment: SegmentProtocol) -> SegmentSide:
        """Carry between this segment and the log, too."""
        side = SegmentSide(url, segment, self.log, self.history, self.queue, self._say, self.broke)
        self.sides.append(side)
        return side

    # ── from the segments ─────────────────────────────────────────────────────────────────────────────────────────

    def take_events(self, side: SegmentSide, events: Iterable[Event], now_ms: float) -> None:
        """What happened on a segment."""
        side.take_events(events, now_ms)
        if self.queue.size > self._kept_bytes_max and not self.is_full:
            size = f"{self.queue.size // 2**20:,} MiB"
            self._fill_up(f"The log lacks {size} of what was heard here, and no more is kept.", now_ms)

    def take_spooled(self, group: str, value: bytes, row: int, now_ms: float) -> None:
        """A record that an earlier run of this gateway kept."""
        try:
            record = read(value, self.log.limits)
        except Malformed:
            self._unneeded.append(row)
            return
        if self.queue.hear(group, value, record, 0, now_ms):
            key = next(reversed(self.queue.records))
            self.queue.records[key].row = row
        else:
            self._unneeded.append(row)

    def _fill_up(self, why: str, now_ms: float) -> None:
        self.is_full = True
        self._say(f"{why} Until that has changed no records are taken in, and the peers keep theirs.")
        for side in self.sides:
            pause(side.segment, is_paused=True, now_ms=now_ms)

    def _gone(self, entry: HeardRecord) -> None:
        if entry.row is not None:
            self._unneeded.append(entry.row)

    # ── from the log ──────────────────────────────────────────────────────────────────────────────────────────────

    def take_log(self, rows: Sequence[RawRow], now_ms: float) -> None:
        """Raw records of the log, in the order of each partition."""
        for verdict in self.log.feed(rows):
            try:
                self._take(verdict, now_ms)
            except Exception as error:  # noqa: BLE001 (whatever it is, the others go on)
                self.broke(error)

    def broke(self, error: Exception) -> None:
        """What one record or event raises is an error in precede, and ends nothing: it is counted, and said once."""
        self.errors += 1
        kind = f"{type(error).__name__}: {error}"
        if kind not in self._errors_said and len(self._errors_said) < ERRORS_SAID_MAX:
            self._errors_said.add(kind)
            _LOGGER.error("a record was left out", exc_info=error)
            self._say(f"A record or an event was left out because of an error in precede ({kind}).")

    def _take(self, verdict: Verdict, now_ms: float) -> None:
        if isinstance(verdict, LogRefusal):
            self._refuse(verdict, now_ms)
            return
        group, value, record, is_copy = verdict
        self.queue.took(group, record, now_ms)
        if not is_copy:
            self.history.note(group, value, record, at_ms=self.log.time_ms)
        for side in self.sides:
            try:
                side.take(verdict, now_ms)
            except Exception as error:  # noqa: BLE001 (whatever it is, the other segments get it)
                self.broke(error)
        if isinstance(record, Join | Leave | Evict):
            self.queue.ended(group)

    def _refuse(self, refusal: LogRefusal, now_ms: float) -> None:
        """Tell the peers, if it is about what one of them said."""
        if refusal.record is not None and refusal.value is not None:
            if self.queue.refused(refusal.group, refusal.record, refusal.value) is None:
                return
        elif refusal.value is not None or refusal.id is None:
            return
        is_told = False
        for side in self.sides:
            if refusal.id is None or side.is_home_of(refusal.group, *refusal.id[:2]):
                side.refuse(refusal, now_ms)
                is_told = True
        if is_told:
            self.refused[refusal.code] += 1

    def answer(self, gaps: Iterable[GapRecord], now_ms: float) -> None:
        """The log asks for missing messages: publish what is kept, and ask the segments for the rest."""
        for gap in gaps:
            try:
                self._answer(gap, now_ms)
            except Exception as error:  # noqa: BLE001 (whatever it is, the other questions are answered)
                self.broke(error)

    def _answer(self, gap: GapRecord, now_ms: float) -> None:
        if gap.kind != "ask":
            return
        last = min(gap.last, gap.first + ANSWERED_MAX - 1)
        self.queue.hurry(gap.group, gap.sender, gap.epoch, gap.first, last, now_ms)
        for side in self.sides:
            peer = side.segment.groups.get(gap.group)
            if peer is None:
                continue
            kept = peer.sync_schedule.kept.messages
            for seq in range(gap.first, last + 1):
                value = kept.get((gap.sender, gap.epoch, seq))
                if value is None:
                    continue
                record = read(value, ANY_SIZE)
                if isinstance(record, Message) and self.queue.hear(gap.group, value, record, 0, now_ms):
                    self.answered += 1
            peer.sync_schedule.lacks(now_ms)

    # ── to the log ────────────────────────────────────────────────────────────────────────────────────────────────

    def take_upward(self, now_ms: float) -> list[HeardRecord]:
        """What to publish now."""
        return self.queue.take(now_ms)

    def step(self, now_ms: float) -> None:
        """Do what is due."""
        for side in self.sides:
            try:
                side.step(now_ms)
            except Exception as error:  # noqa: BLE001 (whatever it is, the other segments have their turn)
                self.broke(error)
        if self.reads_to_end:
            self.queue.look_back(now_ms)
        if self._bound_ms <= now_ms:
            self._bound_ms = now_ms + BOUND_MS
            keep_within([side.segment for side in self.sides], self._segments_bytes_max)
        if self._rest_ms <= now_ms:
            self._rest_ms = now_ms + REST_MS
            self.log.rest()
        if self._disk_ms <= now_ms:
            self._write(now_ms, older_ms=now_ms - SPOOL_MS)
        if self.is_full and self.queue.size <= self._kept_bytes_max * RESUME_AT and not self._unwritten:
            self.is_full = False
            self._say("Records are taken in again.")
            for side in self.sides:
                pause(side.segment, is_paused=False, now_ms=now_ms)

    def _write(self, now_ms: float, *, older_ms: float) -> None:
        """Bring the disk up to date; where it cannot be written, take no more in, and try again later."""
        self._unwritten = [entry for entry in self._unwritten if not entry.gone]
        self._unwritten += [entry for entry in self.queue.unspooled(older_ms) if entry.row is None]
        try:
            if self._unneeded:
                self._spool.remove(self._unneeded)
                self._unneeded = []
            if self._unwritten:
                self._spool.add(self._unwritten)
                self._unwritten = []
        except Refused as error:
            self._disk_ms = now_ms + DISK_MS
            if not self.is_full:
                self._fill_up(str(error), now_ms)

    @property
    def reads_on(self) -> bool:
        """Whether to read the log further; not while a segment cannot take what it has."""
        return not any(side.is_full for side in self.sides)

    def pause(self, now_ms: float) -> None:
        """The end comes: take in no more, and write to the disk what the log lacks."""
        for side in self.sides:
            pause(side.segment, is_paused=True, now_ms=now_ms)
        self._write(now_ms, older_ms=now_ms)

    def close(self, now_ms: float) -> None:
        """The end."""
        self._write(now_ms, older_ms=now_ms)
        self.log.close()
