"""Who is on the segment, and when this process tells that it is there (GJLP, see directory.py).

A process that starts asks, and all others tell their names and groups after a random wait. Of a group that another one
has just told of in the same words, a process says no more. Later, each tells now and then that it is there.
"""

from collections.abc import Iterable

from precede.udfs.peers.directory import GROUPS_MAX
from precede.udfs.peers.frames import Chance
from precede.udfs.peers.notes import Announcement, GroupNote, encode
from precede.udfs.peers.streams import Streams

ANSWER_MS = 50.0
"""Who asks is answered within this time."""
ANNOUNCE_MS = (10_000.0, 20_000.0)
"""Every process tells this often that it is there."""
NOTE_BYTES_MAX = 64 * 1024
"""One announcement tells of groups up to this size; of a larger group it does not name the members."""
NAMES_MS = 2_000.0
"""So long after its start a process may not know the names of all that it hears."""


class Announcing:
    """The announcements of one process, and what it learnt from those of others."""

    def __init__(self, name: str, chance: Chance, now_ms: float, *, is_gateway: bool) -> None:
        self.name = name
        self.is_gateway = is_gateway
        self.gateways: set[str] = set()
        """The names of the gateways that were heard."""
        self.due_ms = now_ms
        self._asks = True
        self._names: dict[bytes, str] = {}
        self._told: dict[str, GroupNote] = {}
        """The groups that others have told of since this process last did."""
        self._chance = chance
        self._names_due_ms = now_ms + NAMES_MS

    def ask(self, now_ms: float) -> None:
        """Ask all others what they are in."""
        self._asks = True
        self.due_ms = now_ms

    def tell_soon(self, now_ms: float) -> None:
        """Something is new here."""
        self.due_ms = min(self.due_ms, now_ms + self._chance.uniform(0, ANSWER_MS))

    def take(self, origin: bytes, note: Announcement, streams: Streams, now_ms: float) -> None:
        """Take in what another process tells of itself."""
        if origin not in self._names:
            self._names = {one: name for one, name in self._names.items() if streams.get(one) is not None}
            self.tell_soon(now_ms)
        self._names[origin] = note.name
        if note.is_gateway:
            self.gateways = {note.name, *self.gateways.intersection(self._names.values())}
        if note.asks:
            self._told.clear()
            self.tell_soon(now_ms)
        for one in note.groups:
            self._told[one.group] = one
        if len(self._told) > GROUPS_MAX:
            self._told.clear()

    def write(self, mine: Iterable[GroupNote], now_ms: float) -> list[bytes]:
        """What to tell now, where these are the own groups."""
        mine = [note for note in mine if self._told.get(note.group) != note]
        asks, self._asks = self._asks, False
        self._told.clear()
        self.due_ms = now_ms + self._chance.uniform(*ANNOUNCE_MS)
        return self.tell_of(mine, asks=asks)

    def tell_of(self, notes: Iterable[GroupNote], *, asks: bool = False) -> list[bytes]:
        """The announcements of these groups."""
        parts: list[list[GroupNote]] = [[]]
        size = 0
        for note in notes:
            told = note if len(encode(note)) <= NOTE_BYTES_MAX else GroupNote(note.group, note.create, {}, note.order)
            if parts[-1] and size + len(encode(told)) > NOTE_BYTES_MAX:
                parts.append([])
                size = 0
            parts[-1].append(told)
            size += len(encode(told))
        return [encode(Announcement(self.name, self.is_gateway, asks and part is parts[0], part)) for part in parts]

    def is_gateways(self, origin: bytes) -> bool:
        """Whether a gateway sent this."""
        return bool(self.gateways) and self._names.get(origin) in self.gateways

    def present(self, streams: Streams, now_ms: float) -> set[str] | None:
        """The names of all who are heard; None while some of them are not known."""
        origins = [stream.origin for stream in streams.live(now_ms)]
        names = {self._names[origin] for origin in origins if origin in self._names}
        return None if now_ms < self._names_due_ms and len(names) < len(origins) else names
