"""What `precede peer` writes: a line for each event, for a person or as JSON."""

from collections.abc import Iterable
from typing import Protocol

import msgspec

from precede.reading.log_lines import one_line_each
from precede.segments.peer_delivery import as_peer_delivery
from precede.terminal_text import plain
from precede.udfs.peers.events import Delivered, Event, RecordRefused, Synced, ViewChanged
from precede.udfs.peers.frames import REFUSED_CODES
from precede.udfs.records.identifiers import id_text
from precede.udfs.records.messages import Id, Message

SPACES = str.maketrans("\r\n\t", "   ")
MISSING_MAX = 20


class Lines(Protocol):
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
