"""What a gateway begins with, and what it writes now and then so that its next start need not read it again.

It begins with the kernel's state, and with what the ordered topic tells of each group. That topic is read whole only
where nothing of it is on the disk (files.py), and else from there on, with the last messages before that.

What the gateway knows of the history comes from the raw topic while it runs, and a start reads the ordered topic. So
the ends of both are asked for, the ordered topic's first: once the raw topic is read up to there, all that the ordered
topic had is known.
"""

import time
from typing import NamedTuple

import msgspec

from precede.gateway.files import HistoryFile, KeptHistory
from precede.gateway.history import LogHistory
from precede.gateway.raw_topic import RawTopic
from precede.ingest.gc_paused import gc_paused
from precede.ingest.kafka import reading
from precede.ingest.kafka.access import Address
from precede.ingest.kafka.topics import Topic, describe
from precede.ingest.live.start import LiveStart, NotYet, OtherRules, ReadingPlace, find_start
from precede.ingest.service.running import Announcer
from precede.udfs.errors import Refused
from precede.udfs.records.messages import SEQ_MAX

EVERY_S = 60.0
"""How often the history is written."""


class GatewayStart(NamedTuple):
    """Where the log stands."""

    ordered: Topic
    live: LiveStart
    history: LogHistory


def find_gateway_start(
    bootstrap: Address | str, ordered_topic: str, progress_topic: str, history_file: HistoryFile
) -> GatewayStart | NotYet:
    """Read what a gateway begins with. Raises Refused where it cannot begin, and Unreachable while Kafka is away."""
    ordered = describe(bootstrap, [ordered_topic]).get(ordered_topic)
    if ordered is None:
        raise Refused(
            f"The topic {ordered_topic} does not exist: start the job first (precede run), which creates the topics, or"
            " name the topics of your stream in the settings."
        )
    found = find_start(ReadingPlace(bootstrap, ordered, progress_topic, None), {})
    if isinstance(found, OtherRules):
        raise Refused(f"{found.reason.partition(':')[0]}: run the job and the gateway with the same release.")
    if isinstance(found, NotYet):
        return found
    with gc_paused():  # records hold no cycles
        return GatewayStart(ordered, found, read_history(bootstrap, ordered, history_file))


def read_history(bootstrap: Address | str, ordered: Topic, history_file: HistoryFile) -> LogHistory:
    """What the ordered topic tells of each group, with what of it is on the disk. Raises Refused and Unreachable."""
    history = LogHistory()
    kept = history_file.read(ordered.id)
    offsets = dict.fromkeys(range(ordered.partitions), 0)
    if kept is not None:
        history.learn(kept.records)
        offsets = _go_on(bootstrap, ordered, kept)
    for value, key, partition, offset, at_ms in reading.records_from(bootstrap, ordered.name, offsets):
        offsets[partition] = offset + 1
        if key is None or value is None:
            continue
        try:
            history.note_ordered(key, value, at_ms=at_ms)
        except msgspec.DecodeError as error:
            raise Refused(
                f"The ordered topic {ordered.name} holds a record that precede did not write: {error}."
            ) from error
    _keep(history, history_file, ordered.id, offsets)
    return history


def _go_on(bootstrap: Address | str, ordered: Topic, kept: KeptHistory) -> dict[int, int]:
    """Where to read on: where the file ends, or at the oldest of the last messages if that is before."""
    begin = reading.offsets_since(bootstrap, ordered.name, ordered.partitions, kept.messages_ms)
    return {
        at: min(kept.offsets.get(at, 0), offset if offset is not None and kept.messages_ms else SEQ_MAX)
        for at, offset in begin.items()
    }


def _keep(history: LogHistory, file: HistoryFile, stream: str, offsets: dict[int, int]) -> None:
    """Keep on the disk what the next start need not read again; it stands at these offsets of the ordered topic."""
    changed = {group: history.controls(group) for group in history.changed}
    if file.write(stream, changed, offsets, history.messages_ms):
        history.changed.clear()


class _Ends(NamedTuple):
    ordered: dict[int, int]
    raw: dict[int, int]


class HistoryKeeping:
    """Keeps the history of one run; used by the thread that reads the log."""

    def __init__(self, start: GatewayStart, log: RawTopic, file: HistoryFile, say: Announcer) -> None:
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
        _keep(self._start.history, self._file, self._start.ordered.id, ends.ordered)
        if self._file.trouble is not None and self._file.trouble != self._said:
            self._say(self._file.trouble, level="warning")
        self._said = self._file.trouble
