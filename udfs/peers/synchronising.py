"""How members send each other missing messages: the Member Synchronization Protocol, MSP (M2MC, chapter 6).

A member that is new, or was away, tells everyone what it has. Each other member notes which of the rest it could send
(the document's MIR) and waits for a random time. The member whose time ends first sends all it has noted. The others
receive that and remove it from their notes, so each message is sent about once. A member with empty notes stays silent.

    D has nothing, A and B have M1 M2, C has M1; D asks      notes: A {M1 M2}  B {M1 M2}  C {M1}
    C's time ends first: it sends M1                         notes: A {M2}     B {M2}     C done
    A's time ends next: it sends M2                          notes: A done     B {}, silent;  C takes M2 too

Messages are bytes under their ids. Received messages have no order yet: they go through the same ordering as records
from the log, which drops duplicates. A group's whole log in the order of its positions is such an answer too, and the
best one: precede itself gives it (`follow` from the beginning).

What the printed protocol leaves open or gets wrong, and the solution here:
- A request carries all messages; its list of them is O(history). Here it carries runs of seqs per sender and epoch.
- SyncSeqno begins at 0 after a restart, and everyone discards the request as an old one. Here the sender's epoch and a
  number identify a request, and the larger epoch is the later one.
- A second copy of a request starts a second counter, or finds no MIR: here an answered request is marked as done.
- An answer may arrive before its request, which may never come: such notes expire after a time to live.
- An answer is never sent twice. A member that still lacks something asks again, under the next number.
- A member also takes messages it lacks from answers to others. If a request names messages that a member lacks, the
  member learns so and may ask in turn: only then does "every member has the same messages" hold.
- A member may drop the text of a message and remember its id; it then neither asks for that message nor sends it. Its
  answers name what it has dropped, so that a newcomer does not wait for what no one keeps.
- An answer is a page. A newcomer to a long history asks page by page, and does not drown in all of it at once. A page
  is no larger than the requester has earned (sync_schedule.py); one without messages then says that there are some.
"""

from collections.abc import Callable
from itertools import islice
from math import inf
from zlib import crc32

import msgspec

from precede.udfs.engine.runs import Runs
from precede.udfs.peers.kept_messages import KEPT_BYTES_MAX, KeptMessages
from precede.udfs.peers.notes import SyncAnswer, SyncId, SyncRequest, is_later, read_have
from precede.udfs.records.messages import Id, Who

TIME_TO_LIVE_MS = 60_000
REQUESTERS_MAX = 10_000
"""How many requesters are remembered; beyond that, the one silent for longest is forgotten."""
PAGE_BYTES_MAX = 64 * 1024
"""One answer is a page of this size, or one larger message; the requester asks for the next one."""
PAGE_MESSAGES_MAX = 1_000
ANSWER_COST, RUN_COST = 200, 60
"""What an answer, and the settled runs of a sender in it, take beside the bytes of the records."""
NOTES_MAX = 5_000
"""How many messages are noted for one request."""


def _unlimited(_: str) -> float:
    return inf


class _Notes(msgspec.Struct):
    """What this member can send for one request, and when: the document's MIR and its counter."""

    id: SyncId
    ids: set[Id]
    have: dict[Who, Runs]
    """What the requester has."""
    tells_more: bool
    """Whether the requester also lacks membership records, or should know what is forgotten."""
    due_ms: float | None
    """None while only answers have arrived: the request itself starts the counter."""
    forget_ms: float


class Synchroniser:
    """One member's part of MSP for one group.

    The caller must send every result to all members, call `due` at `deadline_ms`, and draw `wait_ms` at random from a
    range wider than the delay of the medium; otherwise all members answer before they receive the first answer.
    """

    def __init__(
        self,
        name: str,
        epoch: int,
        group: str,
        *,
        time_to_live_ms: int = TIME_TO_LIVE_MS,
        grace_ms: int = 0,
        bytes_max: int = KEPT_BYTES_MAX,
    ) -> None:
        self.kept = KeptMessages(grace_ms=grace_ms, bytes_max=bytes_max)
        self.name = name
        self.epoch = epoch
        self.group = group
        self.time_to_live_ms = time_to_live_ms
        self.number = 0
        """The number of the last request sent."""
        self.controls: list[bytes] = []
        self.known_controls: frozenset[bytes] = frozenset()
        self._checksum = crc32(b"")
        """What every answer carries beside messages; the caller keeps it up to date."""
        self._heartbeats: dict[str, tuple[tuple[int, int, int], bytes]] = {}
        self.time = 0
        """The linear time that the group has reached."""
        self._latest: dict[str, SyncId] = {}
        """The latest known request of each member: the document's PSSIT."""
        self._notes: dict[str, _Notes] = {}
        """By name of the requester; no entry once all is done."""

    def begin_epoch(self, epoch: int) -> None:
        """Ask in a larger epoch from here on."""
        self.epoch, self.number = epoch, 0

    def set_controls(self, controls: list[bytes]) -> None:
        """These are the membership records that every answer carries from here on."""
        self.controls = controls
        self.known_controls = frozenset(controls)
        self._checksum = crc32(b"\n".join(sorted(controls)))

    def note_heartbeat(self, name: str, rank: tuple[int, int, int], value: bytes) -> None:
        """Keep the latest heartbeat of a member, by epoch, seq and time, for those who come later."""
        if name not in self._heartbeats or self._heartbeats[name][0] < rank:
            self._heartbeats[name] = rank, value

    # ── asking ────────────────────────────────────────────────────────────────────────────────────────────────────

    def ask(self) -> SyncRequest:
        """Ask everyone for what is not here."""
        self.number += 1
        id_ = SyncId(self.name, self.epoch, self.group, self.number)
        return SyncRequest(id_, self.kept.have(), self._checksum)

    # ── answering ─────────────────────────────────────────────────────────────────────────────────────────────────

    def receive_request(self, request: SyncRequest, *, now_ms: float, wait_ms: float) -> bool:
        """Note what to send unless others send it within `wait_ms`; returns whether to ask in turn.

        Raises PeerFault if the request is invalid.
        """
        id_ = request.id
        if id_.group != self.group or id_.name == self.name:
            return False
        have = read_have(request.have, id_.name)
        self.kept.grow_old(now_ms)
        latest = self._latest.get(id_.name)
        if latest is None or is_later(id_, latest):
            self._note(id_, set(islice(self.kept.not_in(have), NOTES_MAX)), have, now_ms, due_ms=now_ms + wait_ms)
        elif id_ == latest:
            notes = self._notes.get(id_.name)
            if notes is None or notes.due_ms is not None:
                return False  # a copy: its counter is running, or all is done
            notes.ids.intersection_update(self.kept.not_in(have))
            notes.have = have
            notes.due_ms = now_ms + wait_ms
        else:
            return False
        if id_.name in self._notes:
            differs = bool(self.controls) and request.controls != self._checksum
            self._notes[id_.name].tells_more = differs or bool(self.kept.gone_and_not_in(have))
        self._drop_empty(id_.name)
        return self.kept.lacks_any_of(have)

    def receive_answer(self, answer: SyncAnswer, *, now_ms: float) -> list[tuple[Id, bytes]]:
        """Take in an answer of another member; returns the messages that are new here, to be ordered and delivered."""
        if not self.strike(answer, now_ms=now_ms):
            return []
        return [(one, value) for one, value in answer.messages if self.kept.store(one, value, now_ms=now_ms)]

    def strike(self, answer: SyncAnswer, *, now_ms: float) -> bool:
        """Strike what another member sent from the own notes; returns whether the answer is one of this group."""
        id_ = answer.id
        if id_.group != self.group or answer.name == self.name:
            return False
        if id_.name != self.name:
            latest = self._latest.get(id_.name)
            sent = {one for one, _ in answer.messages}
            if latest is None or is_later(id_, latest):
                self._note(id_, set(islice(self.kept.not_in({}), NOTES_MAX)) - sent, {}, now_ms, due_ms=None)
            elif id_ == latest and id_.name in self._notes:
                self._notes[id_.name].ids -= sent
                if self.known_controls <= frozenset(answer.controls):
                    self._notes[id_.name].tells_more = False
            self._drop_empty(id_.name)
        return True

    def due(self, now_ms: float, room: Callable[[str], float] = _unlimited) -> list[SyncAnswer]:
        """The answers that are due now; their requests are then done. `room` is how many bytes a requester may get."""
        answers: list[SyncAnswer] = []
        for notes in sorted(self._notes.values(), key=lambda one: (one.due_ms is None, one.due_ms)):
            if notes.due_ms is not None and notes.due_ms <= now_ms:
                answers += self._answers(notes, room(notes.id.name))
                del self._notes[notes.id.name]
            elif notes.due_ms is None and notes.forget_ms <= now_ms:
                del self._notes[notes.id.name]
                del self._latest[notes.id.name]  # if the request still comes, it is new
        return answers

    def deadline_ms(self) -> float | None:
        times = [one.forget_ms if one.due_ms is None else one.due_ms for one in self._notes.values()]
        return min(times, default=None)

    def to_send(self, name: str) -> set[Id]:
        """The ids noted for the latest request of this member."""
        notes = self._notes.get(name)
        return set() if notes is None else set(notes.ids)

    def _note(self, id_: SyncId, ids: set[Id], have: dict[Who, Runs], now_ms: float, *, due_ms: float | None) -> None:
        """Start notes for a request that is later than all known ones of its sender; earlier notes are void."""
        self._latest.pop(id_.name, None)  # so that the member silent for longest comes first in the dict
        self._latest[id_.name] = id_
        self._notes[id_.name] = _Notes(id_, ids, have, False, due_ms, now_ms + self.time_to_live_ms)
        if len(self._latest) > REQUESTERS_MAX:
            silent = next(iter(self._latest))
            del self._latest[silent]
            self._notes.pop(silent, None)

    def _drop_empty(self, name: str) -> None:
        """Drop running notes with nothing left to send."""
        notes = self._notes.get(name)
        if notes is not None and notes.due_ms is not None and not notes.ids and not notes.tells_more:
            del self._notes[name]

    def _answers(self, notes: _Notes, room: float) -> list[SyncAnswer]:
        settled = self.kept.gone_and_not_in(notes.have)
        controls = self.controls + [value for _, value in self._heartbeats.values()]
        room -= ANSWER_COST + sum(map(len, controls)) + RUN_COST * len(settled)
        if room < 0:
            return [SyncAnswer(self.name, notes.id, [], has_more=True)]
        page: list[tuple[Id, bytes]] = []
        has_more = len(notes.ids) == NOTES_MAX
        left = min(room, PAGE_BYTES_MAX)
        for id_, value in self.kept.messages.items():
            if id_ not in notes.ids:
                continue
            if len(value) > (left if page else room) or len(page) >= PAGE_MESSAGES_MAX:
                has_more = True
                break
            page.append((id_, value))
            left -= len(value)
        *others, last = _pages_of(controls)
        answers = [SyncAnswer(self.name, notes.id, [], has_more, [], controls) for controls in others]
        if left < 0:  # one large message, which leaves no room for anything beside it
            beside = SyncAnswer(self.name, notes.id, [], has_more, settled, last, self.time)
            return [*answers, beside, SyncAnswer(self.name, notes.id, page, has_more)]
        return [*answers, SyncAnswer(self.name, notes.id, page, has_more, settled, last, self.time)]


def _pages_of(controls: list[bytes]) -> list[list[bytes]]:
    """Membership records in parts of which each fits into a page; one part at least."""
    pages: list[list[bytes]] = [[]]
    size = 0
    for value in controls:
        if size + len(value) > PAGE_BYTES_MAX and pages[-1]:
            pages.append([])
            size = 0
        pages[-1].append(value)
        size += len(value)
    return pages
