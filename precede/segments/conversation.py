"""What `precede peer` does: says what it reads, and shows what happens, until it is told to stop."""

import threading
from collections.abc import Callable
from time import monotonic

from precede.segments.input_lines import BadLine, Reader, read_lines
from precede.segments.output_lines import Lines
from precede.segments.peer import Peer
from precede.udfs.errors import PrecedeError, Unconfirmed
from precede.udfs.peers.events import Delivered, Event, Held
from precede.udfs.records.identifiers import id_text
from precede.udfs.records.messages import Id, Message

LOOK_S = 0.1
LOG_S = 30.0
"""How long, at most, a peer that leaves waits for the log, where there is a gateway."""
HELD_S = 0.1
"""A message that is held for this time is shown, with what it waits for."""
MALFORMED, REFUSED = "malformed", "refused"


class Conversation:
    """Between one peer and a person or a program."""

    def __init__(self, peer: Peer, lines: Lines, read: Reader, write: Callable[[bytes], None]) -> None:
        self._peer = peer
        self._lines = lines
        self._read = read
        self._write = write
        self._writing = threading.Lock()
        self._held: dict[Id, float] = {}
        """What was told to be held and is not shown yet, with the time."""
        self.said_all = threading.Event()
        """The input has ended."""
        self._waits_until_s: float | None = None
        """How long the log has time to take all."""
        self._failure: BaseException | None = None

    def listen_to(self, file: int) -> None:
        """Say what a file says, in a thread of its own."""
        threading.Thread(target=self._say_all, args=(file,), name="precede input", daemon=True).start()

    def run(self, *, leave: bool) -> None:
        """Show what happens until Ctrl-C; with `leave`, leave after the end of input, once everyone has it all.

        Raises Unconfirmed if the log has not taken all by then; that is kept for the next start.
        """
        while not (leave and self.said_all.is_set() and self._may_leave()):
            self._show(self._peer.next_events(LOOK_S))
            self._check()
        self._show(self._peer.next_events(0))
        self._peer.leave()
        self._show(self._peer.next_events(0))
        unlogged = self._peer.unlogged()
        if unlogged:
            raise Unconfirmed(
                f"The log has not taken {len(unlogged):,} messages that {self._peer.name} said, from"
                f" {id_text(unlogged[0])} to {id_text(unlogged[-1])}: a gateway or Kafka is away. They are kept in the"
                f" state of {self._peer.name}: start it again when the gateway is back."
            )

    def _may_leave(self) -> bool:
        """Whether all peers have what was said, and the log as well, unless it does not take it for long."""
        if not self._peer.has_everyone_all():
            return False
        if not self._peer.unlogged():
            return True
        if self._waits_until_s is None:
            self._waits_until_s = monotonic() + LOG_S
        return monotonic() >= self._waits_until_s

    # ── saying ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _say_all(self, file: int) -> None:
        try:
            for number, line in read_lines(file):
                self._say(number, line)
        except BaseException as error:  # noqa: BLE001 (the thread that shows things must be told)
            self._failure = error
        self.said_all.set()

    def _say(self, number: int, line: bytes | None) -> None:
        try:
            if line is None:
                raise BadLine("it is longer than any message may be")
            said = self._read(line)
        except BadLine as error:
            self._put(self._lines.refused(MALFORMED, f"Line {number} was not sent: {error}."))
            return
        if said is None:
            return
        try:
            id_ = self._peer.send(said.data, after=said.after, to=said.to, object=said.object)
        except (ValueError, PrecedeError) as error:
            self._peer.check()
            self._put(self._lines.refused(REFUSED, f"Line {number} was not sent: {str(error).rstrip('.')}."))
        else:
            self._put(self._lines.sent(id_))

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    # ── showing ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _show(self, events: list[Event]) -> None:
        shown = []
        for event in events:
            if isinstance(event, Held):
                self._held[event.id] = monotonic()
                continue
            if isinstance(event, Delivered) and self._held and isinstance(event.record, Message):
                record = event.record
                self._held.pop((record.sender, record.epoch, record.seq), None)  # type: ignore[arg-type]
            line = self._lines.event(event)
            if line:
                shown.append(line)
        if self._held and min(self._held.values()) <= monotonic() - HELD_S:
            shown += self._show_held()
        if shown:
            self._put(b"".join(shown))

    def _show_held(self) -> list[bytes]:
        told, self._held = self._held, {}
        held = {(one.sender, one.epoch, one.seq): one.missing for one in self._peer.held()}
        return [self._lines.held(id_, held[id_]) for id_ in told if id_ in held]

    def _put(self, text: bytes) -> None:
        if text:
            with self._writing:
                self._write(text)
