"""Writes now and then what the next start of a gateway need not read again.

What the gateway knows of the past comes from the raw topic while it runs, and a start reads the ordered topic. So the
ends of both are asked for, the ordered topic's first: once the raw topic is read up to there, all that the ordered
topic had is known.
"""

import time
from typing import NamedTuple

from precede.ingest.gateway.past_file import PastFile
from precede.ingest.gateway.raw_topic import RawTopic
from precede.ingest.gateway.start import GatewayStart
from precede.ingest.service.running import Announcer

EVERY_S = 60.0


class _Ends(NamedTuple):
    ordered: dict[int, int]
    raw: dict[int, int]


class PastKeeping:
    """Keeps the past of one run; used by the thread that reads the log."""

    def __init__(self, start: GatewayStart, log: RawTopic, file: PastFile, say: Announcer) -> None:
        self._start = start
        self._log = log
        self._file = file
        self._say = say
        self._ends: _Ends | None = None
        self._next_s = time.monotonic() + EVERY_S
        self._said: str | None = None

    def step(self) -> None:
        """Ask for the ends when it is time, and write when they are reached."""
        if self._ends is not None:
            self._write_if_reached(self._ends)
        elif time.monotonic() >= self._next_s and self._log.at_end:
            self.ask()

    def ask(self) -> None:
        """Ask for the ends now."""
        self._next_s = time.monotonic() + EVERY_S
        ordered = self._log.ends_of(self._start.ordered.name, self._start.ordered.partitions)
        raw = self._log.ends_of(self._start.live.stream.raw_topic, self._start.live.stream.partitions)
        self._ends = None if ordered is None or raw is None else _Ends(ordered, raw)

    @property
    def is_waiting(self) -> bool:
        """Whether something is to be written once the log is read up to the ends that were told."""
        return self._ends is not None

    def _write_if_reached(self, ends: _Ends) -> None:
        if any(self._log.offsets[at] < end for at, end in ends.raw.items()):
            return
        self._ends = None
        self._start.past.write_to(self._file, self._start.ordered.id, ends.ordered)
        if self._file.trouble is not None and self._file.trouble != self._said:
            self._say(self._file.trouble, level="warning")
        self._said = self._file.trouble
