"""Who is on the segment, and when this process tells that it is there (GJLP, see directory.py).

A process that starts asks, and all others tell their names and groups after a random wait. Of a group that another one
has just told of in the same words, a process says no more. Later, each tells now and then that it is there.

No one can prove who it is, so an answer is paid from what was heard of the one who asks, as a page is
(sync_schedule.py). Who is told that there is more asks again, and says so much beside it as pays for the rest.
"""

from collections.abc import Iterable
from math import inf

from precede.udfs.peers.directory import GROUPS_MAX, GroupInfo
from precede.udfs.peers.frames import ANNOUNCEMENT, PADDING, Chance
from precede.udfs.peers.notes import Announcement, encode
from precede.udfs.peers.streams import AMPLIFICATION, OriginStream, Streams

ANSWER_MS = 50.0
"""Who asks is answered within this time."""
ANNOUNCE_MS = (10_000.0, 20_000.0)
"""Every process tells this often that it is there."""
NOTE_BYTES_MAX = 64 * 1024
"""One announcement tells of groups up to this size; of a larger group it does not name the members."""
NAMES_MS = 2_000.0
"""How long after its start a process may not know the names of all that it hears."""
ASKS_ON_MS = 5_000.0
"""How long a process asks again where there is more."""
PADDING_BYTES = 2 * NOTE_BYTES_MAX // AMPLIFICATION
"""So much is said at most beside such a question."""

Out = tuple[int, bytes]
"""kind and payload."""


class Announcing:
    """The announcements of one process, and what it learnt from those of others."""

    def __init__(self, name: str, chance: Chance, now_ms: float, *, is_gateway: bool) -> None:
        self.name = name
        self.is_gateway = is_gateway
        self.limits: tuple[int, int, int] | None = None
        """As a gateway: how long the lists in the log's records may be."""
        self.gateways: set[str] = set()
        """The names of the gateways that were heard."""
        self._own_ms = now_ms
        """When to tell of all own groups."""
        self._answer_ms = inf
        """When to answer those who asked."""
        self._askers: dict[bytes, OriginStream] = {}
        self._told_last = ""
        """The last group of an answer that had no room for all: the next one goes on behind it."""
        self._asks = True
        self._asks_until_ms = now_ms + ASKS_ON_MS
        self._ask_on_ms = inf
        """When to ask for more."""
        self._padding = 0
        """How much to say beside the next question."""
        self._heard: set[str] = set()
        """The groups that others have told of since this process asked."""
        self._names: dict[bytes, str] = {}
        self._told: dict[str, GroupInfo] = {}
        """The groups that others have told of since this process last did."""
        self._chance = chance
        self._names_due_ms = now_ms + NAMES_MS

    def ask(self, now_ms: float) -> None:
        """Ask all others what they are in."""
        self._asks = True
        self._asks_until_ms = now_ms + ASKS_ON_MS
        self._heard.clear()
        self._own_ms = now_ms

    @property
    def due_ms(self) -> float:
        return min(self._own_ms, self._answer_ms, self._ask_on_ms)

    def take(self, origin: bytes, note: Announcement, streams: Streams, now_ms: float) -> None:
        """Take in what another process tells of itself."""
        stream = streams.of(origin, now_ms)
        if origin not in self._names:
            self._names = {one: name for one, name in self._names.items() if streams.get(one) is not None}
            self._answer_soon(stream, now_ms)
        self._names[origin] = note.name
        if note.is_gateway:
            self.gateways = {note.name, *self.gateways.intersection(self._names.values())}
        if note.asks:
            self._told.clear()
            self._answer_soon(stream, now_ms)
        for one in note.groups:
            self._told[one.group] = one
        if len(self._told) > GROUPS_MAX:
            self._told.clear()
        if now_ms < self._asks_until_ms:
            self._hear(note, stream, now_ms)

    def _answer_soon(self, asker: OriginStream, now_ms: float) -> None:
        self._askers[asker.origin] = asker
        self._answer_ms = min(self._answer_ms, now_ms + self._chance.uniform(0, ANSWER_MS))

    def _hear(self, note: Announcement, teller: OriginStream, now_ms: float) -> None:
        """An answer to the own question: where there is more, and this brought something, ask on."""
        before = len(self._heard)
        self._heard.update(one.group for one in note.groups)
        if note.has_more and len(self._heard) > before and len(self._heard) < GROUPS_MAX:
            padding = int(min(PADDING_BYTES - self._padding, teller.ask_credit))
            teller.ask_credit -= padding
            self._padding += padding
            self._ask_on_ms = min(self._ask_on_ms, now_ms + self._chance.uniform(0, ANSWER_MS))

    def write(self, mine: Iterable[GroupInfo], now_ms: float) -> list[Out]:
        """What to tell now, where these are the own groups."""
        out: list[Out] = []
        if self._ask_on_ms <= now_ms:
            self._ask_on_ms = inf
            out = [(PADDING, bytes(self._padding)), *self.tell_of([], asks=True)]
            self._padding = 0
        if min(self._own_ms, self._answer_ms) > now_ms:
            return out
        notes = [note for note in mine if self._told.get(note.group) != note]
        self._told.clear()
        self._answer_ms = inf
        askers, self._askers = list(self._askers.values()), {}
        if self._own_ms > now_ms:
            return out + self._answer(notes, askers)
        asks, self._asks = self._asks, False
        self._own_ms = now_ms + self._chance.uniform(*ANNOUNCE_MS)
        return out + self.tell_of(notes, asks=asks)

    def _answer(self, notes: list[GroupInfo], askers: list[OriginStream]) -> list[Out]:
        """Tell those who asked as much as they have earned; of the rest the next time."""
        room = max((asker.page_credit for asker in askers), default=0.0)
        first = next((at for at, note in enumerate(notes) if note.group == self._told_last), -1) + 1
        told: list[GroupInfo] = []
        for note in [*notes[first:], *notes[:first]]:
            room -= len(encode(note))
            if room < 0:
                break
            told.append(note)
        has_more = len(told) < len(notes)
        self._told_last = told[-1].group if told and has_more else ""
        out = self.tell_of(told, has_more=has_more)
        for asker in askers:
            asker.page_credit = max(0.0, asker.page_credit - sum(len(payload) for _, payload in out))
        return out

    def tell_of(self, notes: Iterable[GroupInfo], *, asks: bool = False, has_more: bool = False) -> list[Out]:
        """The announcements of these groups."""
        parts: list[list[GroupInfo]] = [[]]
        size = 0
        for note in notes:
            told = note if len(encode(note)) <= NOTE_BYTES_MAX else GroupInfo(note.group, note.create, {}, note.order)
            if parts[-1] and size + len(encode(told)) > NOTE_BYTES_MAX:
                parts.append([])
                size = 0
            parts[-1].append(told)
            size += len(encode(told))
        announcements = [
            Announcement(
                self.name, self.is_gateway, asks and part is parts[0], part, has_more and part is parts[-1], self.limits
            )
            for part in parts
        ]
        return [(ANNOUNCEMENT, encode(one)) for one in announcements]

    def is_gateways(self, origin: bytes) -> bool:
        """Whether a gateway sent this."""
        return bool(self.gateways) and self._names.get(origin) in self.gateways

    def present(self, streams: Streams, now_ms: float) -> set[str] | None:
        """The names of all who are heard; None while some of them are not known."""
        origins = [stream.origin for stream in streams.live(now_ms)]
        names = {self._names[origin] for origin in origins if origin in self._names}
        return None if now_ms < self._names_due_ms and len(names) < len(origins) else names
