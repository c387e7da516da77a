"""Writes the state of a peer to disk: when it is opened, now and then, and when it is closed."""

import threading
from typing import Any

from precede.ingest.segment.link import Link, clock_ms
from precede.ingest.segment.peer_state import PeerState, Said
from precede.ingest.segment.runner import SegmentRunner
from precede.udfs.errors import PrecedeError, Refused
from precede.udfs.peers.segment import Segment

SAVE_S = 30.0
"""After a crash, what was delivered since the state was written last is delivered again."""
LOOK_S = 1.0


class Keeper:
    """Keeps one segment's state. All of it is on disk before anything is sent."""

    def __init__(self, state: PeerState, segment: Segment) -> None:
        """Bring back what was said after the state was written, and write it. Raises Refused if that cannot be."""
        self.has_news = False
        """Whether anything happened since the state was written."""
        self._state = state
        self._segment = segment
        self._saving = threading.Lock()
        self._is_stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._runner: SegmentRunner | None = None
        self._link: Link | None = None
        for group, epoch, seq, value in state.said:
            segment.restore_said(group, epoch, seq, value, clock_ms())
        state.said.clear()
        state.begin_next()
        state.save(self._dump())

    def _dump(self) -> dict[str, Any]:
        used = [group.speaking.epoch for group in self._segment.groups.values()]
        self._state.epoch = max(self._state.epoch, self._segment.epoch, *used)
        return self._segment.dump()

    def start(self, runner: SegmentRunner, link: Link) -> None:
        """Save now and then, while the runner runs."""
        self._runner, self._link = runner, link
        self._thread = threading.Thread(target=self._run, name="precede state", daemon=True)
        self._thread.start()

    @property
    def trouble(self) -> str | None:
        """Why what was said last is not on disk."""
        return self._state.trouble

    def said(self, one: Said) -> None:
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
            self._state.save(dumped)

    def close(self, *, is_complete: bool) -> None:
        """Write all for the last time, after the runner has ended; complete is it only if that ended well."""
        self._is_stopped.set()
        if self._thread is not None:
            self._thread.join()
        if is_complete:
            self._state.flush()
            self._state.save(self._dump(), is_complete=True)

    def _run(self) -> None:
        waited_s = 0.0
        while not self._is_stopped.wait(LOOK_S):
            waited_s += LOOK_S
            if self.has_news and (waited_s >= SAVE_S or self._state.is_large):
                waited_s = 0.0
                try:
                    self.save()
                except Refused as error:
                    self._state.trouble = str(error)
                except PrecedeError:
                    return  # the runner has stopped, and says why to everyone
