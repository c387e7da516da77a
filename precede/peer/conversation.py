"""What `precede peer` does: says what it reads, and shows what happens, until it is told to stop.

A line of its input is a message; a line of its output is an event, for a person or as JSON.
"""

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from time import monotonic
from typing import Any, Protocol

import msgspec
from msgspec import UNSET, UnsetType

from precede.command_options import parse_id
from precede.peer.handing_over import as_peer_delivery
from precede.peer.peer import Peer
from precede.reading.log_lines import one_line_each
from precede.terminal_text import plain
from precede.udfs.errors import PrecedeError, Unconfirmed
from precede.udfs.peers.events import Delivered, Event, MessageHeld, RecordRefused, Synced, ViewChanged
from precede.udfs.peers.frames import REFUSED_CODES
from precede.udfs.records.identifiers import id_text
from precede.udfs.records.messages import Id, Message

BLOCK_BYTES = 1 << 16
LINE_BYTES_MAX = 1 << 20
"""More than any record may have; the rest of a longer line is passed over."""


class SpokenLine(msgspec.Struct, frozen=True):
    """What a line says."""

    data: Any
    after: Any = None
    to: list[str] | None = None
    object: dict[str, Any] | None = None
    meta: dict[str, Any] | None = None


class BadLine(PrecedeError):
    """A line that says nothing; the text of the error is the reason."""


class _JsonLine(msgspec.Struct, forbid_unknown_fields=True):
    data: msgspec.Raw
    after: list[tuple[str, int, int]] = []
    to: list[str] | UnsetType = UNSET
    object: dict[str, Any] | UnsetType = UNSET
    meta: dict[str, Any] | UnsetType = UNSET


_decode = msgspec.json.Decoder(_JsonLine).decode


def read_lines(file: int) -> Iterator[tuple[int, bytes | None]]:
    """The lines of a file with their numbers from 1, without their ends; None in place of one that is too long."""
    number, parts, size = 1, list[bytes](), 0
    while block := os.read(file, BLOCK_BYTES):
        *ended, rest = block.split(b"\n")
        for end in ended:
            size += len(end)
            yield number, b"".join([*parts, end]).removesuffix(b"\r") if size <= LINE_BYTES_MAX else None
            number, parts, size = number + 1, [], 0
        size += len(rest)
        if size <= LINE_BYTES_MAX:
            parts.append(rest)
        else:
            parts.clear()
    if size:
        yield number, b"".join(parts) if size <= LINE_BYTES_MAX else None


def read_text(line: bytes) -> SpokenLine | None:
    """A line of text, or `> ID text` for an answer; None if it is empty. Raises BadLine."""
    try:
        text = line.decode()
    except UnicodeDecodeError:
        raise BadLine("it is not UTF-8") from None
    if not text.strip():
        return None
    if not text.startswith("> "):
        return SpokenLine(text)
    id_, _, said = text[2:].partition(" ")
    if not said.strip():
        raise BadLine("an answer is written as > ID text")
    try:
        return SpokenLine(said, [parse_id(id_, ">")])
    except PrecedeError as error:
        raise BadLine(str(error).rstrip(".")) from None


def read_json(line: bytes) -> SpokenLine | None:
    """A line of {"data", "after": [id, ...]}; None if it is empty. Raises BadLine."""
    if not line.strip():
        return None
    try:
        line.decode()
        found = _decode(line)
    except UnicodeDecodeError:
        raise BadLine("it is not UTF-8") from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadLine(f'it is not {{"data": ..., "after": [["sender", epoch, seq], ...]}}: {error}') from None
    after: list[Id] = list(found.after)
    to = None if isinstance(found.to, UnsetType) else found.to
    object_ = None if isinstance(found.object, UnsetType) else found.object
    meta = None if isinstance(found.meta, UnsetType) else found.meta
    return SpokenLine(found.data, after, to, object_, meta)


Reader = Callable[[bytes], SpokenLine | None]


SPACES = str.maketrans("\r\n\t", "   ")
MISSING_MAX = 20


class EventLines(Protocol):
    """How events are written."""

    def sent(self, id_: Id, /) -> bytes:
        """An own message is on its way."""

    def refused(self, code: str, reason: str, id_: Id | None = None) -> bytes:
        """Something was refused."""

    def held(self, id_: Id, missing: list[Id]) -> bytes:
        """A message waits for others."""

    def event(self, event: Event) -> bytes | None:
        """What happened, if that is shown."""


class JsonLines:
    """One object a line."""

    def sent(self, id_: Id, /) -> bytes:
        return _encode({"event": "sent", "id": id_})

    def refused(self, code: str, reason: str, id_: Id | None = None) -> bytes:
        named = {} if id_ is None else {"id": id_}
        return _encode({"event": "refused", "code": code, "reason": reason, **named})

    def held(self, id_: Id, missing: list[Id]) -> bytes:
        return _encode({"event": "held", "id": id_, "missing": missing[:MISSING_MAX]})

    def event(self, event: Event) -> bytes | None:
        if isinstance(event, Delivered):
            if not isinstance(event.record, Message):
                return None  # the view says it
            if event.is_abandoned:
                return self.refused("abandoned", ABANDONED, _id_of(event.record))
            record = one_line_each([event.value])[:-1]
            return b'{"event":"delivered","record":%b,"waited_ms":%d}\n' % (record, round(event.waited_ms))
        if isinstance(event, ViewChanged):
            return _encode({"event": "view", "members": list(event.members)})
        if isinstance(event, Synced):
            return _encode({"event": "synced"})
        if isinstance(event, RecordRefused):
            return self.refused(event.code, event.reason, event.id)
        return None


ABANDONED = "The log has given up on this message: what waited for it goes on."


class TextLines:
    """For a person."""

    def __init__(self, order: str, name: str) -> None:
        self._order = order
        self._name = name

    def sent(self, _id: Id, /) -> bytes:
        return b""  # it is delivered here, too

    def refused(self, code: str, reason: str, id_: Id | None = None) -> bytes:
        return _line(f"refused ({code}){'' if id_ is None else ' ' + id_text(id_)}: {reason}")

    def held(self, id_: Id, missing: list[Id]) -> bytes:
        more = f" and {len(missing) - MISSING_MAX} more" if len(missing) > MISSING_MAX else ""
        waits = f", waits for {_ids(missing[:MISSING_MAX])}{more}" if missing else ", waits for a word of other members"
        return _line(f"{id_text(id_)} is held{waits}")

    def event(self, event: Event) -> bytes | None:
        if isinstance(event, Delivered):
            return None if not isinstance(event.record, Message) else self._delivered(event)
        if isinstance(event, ViewChanged):
            return _line(f"members: {', '.join(event.members)}")
        if isinstance(event, Synced):
            return _line("synced: all that the others keep is here")
        if isinstance(event, RecordRefused):
            return self.refused(event.code, event.reason, event.id)
        return None

    def _delivered(self, event: Delivered) -> bytes:
        one = as_peer_delivery(event, self._order, self._name)
        id_ = id_text(_id_of(event.record))  # type: ignore[arg-type]  # only messages come here
        if event.is_abandoned:
            return _line(f"{id_} is abandoned: {ABANDONED}")
        answers = f" after {_ids(one.after)}" if one.after else ""
        waited = f"  (held {event.waited_ms / 1000:.1f} s)" if event.waited_ms >= 50 else ""
        said = bytes(one.raw_data).decode(errors="replace").translate(SPACES)
        return _line(f"{id_}{answers}  {said}{waited}")


def refused_sentence(counts: dict[str, int]) -> str | None:
    """Which datagrams of others were dropped, if any were: then keys, addresses or versions may differ."""
    found = [f"{counts[code]:,} {code}" for code in REFUSED_CODES if counts.get(code)]
    return (
        f"Datagrams that were dropped: {', '.join(found)}. docs/reference/frames.md explains them." if found else None
    )


def _id_of(record: Message) -> Id:
    return record.sender, record.epoch, record.seq  # type: ignore[return-value]  # the reader let only integers through


def _ids(ids: Iterable[Id]) -> str:
    return ", ".join(map(id_text, ids))


def _line(text: str) -> bytes:
    return plain(text).encode() + b"\n"


def _encode(fields: dict[str, object]) -> bytes:
    return msgspec.json.encode(fields) + b"\n"


LOOK_S = 0.1
LOG_S = 30.0
"""How long, at most, a peer that leaves waits for the log, where there is a gateway."""
HELD_S = 0.1
"""A message that is held for this time is shown, with what it waits for."""
MALFORMED, REFUSED = "malformed", "refused"


class PeerConversation:
    """Between one peer and a person or a program."""

    def __init__(self, peer: Peer, lines: EventLines, read: Reader, write: Callable[[bytes], None]) -> None:
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
            id_ = self._peer.send(said.data, after=said.after, to=said.to, object=said.object, meta=said.meta)
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
            if isinstance(event, MessageHeld):
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
