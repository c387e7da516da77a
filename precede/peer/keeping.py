"""Writes the state of a peer to disk: when it is opened, now and then, and when it is closed."""

import threading
from collections.abc import Callable, Iterable, Mapping
from time import monotonic
from typing import Any

from precede.ingest.segment.link import Link, clock_ms
from precede.ingest.segment.peer_state import OwnMessage, PeerState
from precede.ingest.segment.runner import SegmentRunner
from precede.ingest.service.monitor import Monitor
from precede.udfs.errors import Refused
from precede.udfs.limits import ANY_SIZE
from precede.udfs.peers.events import Delivered, Event
from precede.udfs.peers.handed_over import handed_over_by, restore_handed_over, was_handed_over
from precede.udfs.peers.segment import SegmentProtocol
from precede.udfs.records.wire import read

SAVE_S = 30.0
"""How often all of it is written."""
LOOK_S = 1.0
"""How often it is written what the application was told: after a crash, what came since is told again."""
STOP_S = 60.0
"""How long the end waits for what is written just then."""
LOOK_SHARE = 0.02
"""More seldom where that would take more of the time than this."""


class Keeper:
    """Keeps one segment's state. All of it is on disk before anything is sent."""

    def __init__(
        self,
        state: PeerState,
        segment: SegmentProtocol,
        waiting: Callable[[bool], Mapping[str, Iterable[Event]] | None],
    ) -> None:
        """Bring back what was said after the state was written, and write it. Raises Refused if that cannot be.

        `waiting`, which is told whether this is the end, says what of each group is not handed over to the application;
        None if that is not known.
        """
        self.has_news = False
        """Whether anything happened since the state was written."""
        self._trouble: str | None = None
        """Why the state cannot be written; it is tried again each second."""
        self._has_told = False
        """Whether anything happened since it was written what was told."""
        self._waiting = waiting
        self._state = state
        self._segment = segment
        self._saving = threading.Lock()
        self._saved_s = 0.0
        self._monitor = Monitor(
            "precede state", self._look, every_s=LOOK_S, first_s=LOOK_S, undone="the state of this peer is not written"
        )
        self._runner: SegmentRunner | None = None
        self._link: Link | None = None
        restore_handed_over(segment, state.told)
        for group, epoch, seq, value in state.said:
            segment.restore_said(group, epoch, seq, value, clock_ms())
        state.said.clear()
        self.waited = self._waited(state.dumped or {})
        """What waited for the application when the state was written, and was not handed over since."""
        state.begin_next()
        state.save(self._dump() | {"waiting": _plain(self.waited)})

    def _dump(self, *, is_end: bool = False) -> dict[str, Any]:
        used = [group.speaking.epoch for group in self._segment.groups.values()]
        self._state.epoch = max(self._state.epoch, self._segment.epoch, *used)
        waiting = [event for of in (self._waiting(is_end) or {}).values() for event in of]
        return self._segment.dump() | {"waiting": _plain(waiting)}

    def _waited(self, dumped: dict[str, Any]) -> list[Event]:
        found = [
            Delivered(group, value, read(value, ANY_SIZE), is_abandoned, 0.0)
            for group, value, is_abandoned in dumped.get("waiting", [])
        ]
        return [one for one in found if not was_handed_over(self._segment, one)]

    def start(self, runner: SegmentRunner, link: Link) -> None:
        """Save now and then, while the runner runs."""
        self._runner, self._link = runner, link
        self._saved_s = monotonic()
        self._monitor.start()

    @property
    def trouble(self) -> str | None:
        """Why the state, or what was said last, is not on disk."""
        return self._trouble or self._state.trouble

    def make_room(self, record_bytes: int) -> None:
        """Have room on the disk for one more message of this size. Raises Refused if nothing may be said."""
        if self._trouble is not None:
            raise Refused(self._trouble)
        self._state.make_room(record_bytes)

    def said(self, one: OwnMessage) -> None:
        """An own message; it is on disk before it is sent."""
        self.has_news = True
        self._state.add(one)

    def save(self) -> None:
        """Write all that there is now. Raises Refused if that cannot be."""
        assert self._runner is not None
        assert self._link is not None
        with self._saving:
            with self._runner.use(self._link):
                self._state.begin_next()
                dumped = self._dump()
                self.has_news = False
            try:
                self._state.save(dumped)
            except Refused as refusal:
                self._trouble = str(refusal)  # a later try takes it back
                raise
            self._trouble = None

    def close(self, *, is_complete: bool) -> None:
        """Write all for the last time, after the runner has ended; complete is it only if that ended well."""
        self._monitor.stop(STOP_S)
        if is_complete:
            self._state.flush()
            self._state.save(self._dump(is_end=True), is_complete=True)

    def _save_handed_over(self) -> float:
        """Write what the application was told; returns how long to wait before the next time."""
        assert self._runner is not None
        assert self._link is not None
        began = monotonic()
        with self._runner.use(self._link):
            waiting = self._waiting(False)
            told = None if waiting is None else handed_over_by(self._segment, waiting)
            self._has_told = self._has_told and told is None
        if told is not None:
            try:
                self._state.save_handed_over(told)
            except (OSError, Refused):
                self._has_told = True  # it is still to be written
                raise
        return max(LOOK_S, (monotonic() - began) / LOOK_SHARE)

    def happened(self) -> None:
        self.has_news = self._has_told = True

    def _look(self, _: object) -> float | None:
        assert self._runner is not None
        if not self._runner.is_running:
            self._monitor.finish()  # the runner says why to everyone
            return None
        try:
            is_due = monotonic() - self._saved_s >= SAVE_S or self._state.is_large
            if self._trouble or (self.has_news and is_due):
                self._saved_s = monotonic()
                self.save()
            if self._has_told:
                return self._save_handed_over()
        except Refused as refusal:
            self._trouble = str(refusal)
        return None


def _plain(waiting: Iterable[Event]) -> list[tuple[str, bytes, bool]]:
    """Group and record of each delivery, and whether it is abandoned."""
    return [(one.group, one.value, one.is_abandoned) for one in waiting if isinstance(one, Delivered)]
