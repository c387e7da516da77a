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
- A member may drop the text of a message and remember its id; it then neither asks for that message nor sends it.
"""

from collections.abc import Iterable, Iterator
from itertools import pairwise

import msgspec

from precede.udfs.engine.runs import Runs
from precede.udfs.records.messages import SEQ_MAX, Id, Who

TIME_TO_LIVE_MS = 60_000
REQUESTERS_MAX = 10_000
"""How many requesters are remembered; beyond that, the one silent for longest is forgotten."""
RUNS_MAX = 100_000
"""How many runs one request may name in all."""
ANSWER_BYTES_MAX = 1024 * 1024
"""Larger answers are split."""


class PeerFault(ValueError):
    """A peer broke the rules; drop what it sent."""


class SyncId(msgspec.Struct, frozen=True, array_like=True):
    """Identifies a request; `number` counts from 1 in each epoch of the requester."""

    name: str
    epoch: int
    group: str
    number: int


class SyncRequest(msgspec.Struct, frozen=True):
    """Who asks, and what it has: [sender, epoch, runs], the runs as `Runs.dump` returns them."""

    id: SyncId
    have: list[tuple[str, int, int | list[int]]]


class SyncAnswer(msgspec.Struct, frozen=True):
    """Messages for the requester, each with its id, in the order in which the answering member has them."""

    name: str
    id: SyncId
    messages: list[tuple[Id, bytes]]


class _Notes(msgspec.Struct):
    """What this member can send for one request, and when: the document's MIR and its counter."""

    id: SyncId
    ids: set[Id]
    due_ms: int | None
    """None while only answers have arrived: the request itself starts the counter."""
    forget_ms: int


class Synchroniser:
    """One member's part of MSP for one group.

    The caller must send every result to all members, call `due` at `deadline_ms`, and draw `wait_ms` at random from a
    range wider than the delay of the medium; otherwise all members answer before they receive the first answer.
    """

    def __init__(self, name: str, epoch: int, group: str, *, time_to_live_ms: int = TIME_TO_LIVE_MS) -> None:
        self.name = name
        self.epoch = epoch
        self.group = group
        self.time_to_live_ms = time_to_live_ms
        self.number = 0
        """The number of the last request sent."""
        self.messages: dict[Id, bytes | None] = {}
        """Received messages in order of arrival; None if the text was dropped."""
        self._have: dict[Who, Runs] = {}
        self._latest: dict[str, SyncId] = {}
        """The latest known request of each member: the document's PSSIT."""
        self._notes: dict[str, _Notes] = {}
        """By name of the requester; no entry once all is done."""

    # ── what this member has ──────────────────────────────────────────────────────────────────────────────────────

    def store(self, id_: Id, value: bytes) -> bool:
        """Store a message of the group; returns whether it is new."""
        if id_ in self.messages:
            return False
        self.messages[id_] = value
        self._have.setdefault(id_[:2], Runs()).add(id_[2])
        return True

    def forget(self, id_: Id) -> None:
        """Drop the text of a message to save memory; its id stays known."""
        if id_ in self.messages:
            self.messages[id_] = None

    def _lacks_any_of(self, have: dict[Who, Runs]) -> bool:
        """Whether these contain any message that is not here."""
        nothing = Runs()
        return any(
            next(self._have.get(who, nothing).missing(low, high), None) is not None
            for who, runs in have.items()
            for low, high in runs.runs()
        )

    def _not_in(self, have: dict[Who, Runs]) -> Iterator[Id]:
        """The messages that are here with their texts, and not among these."""
        nothing = Runs()
        for (name, epoch), runs in self._have.items():
            theirs = have.get((name, epoch), nothing)
            for low, high in runs.runs():
                for seq in theirs.missing(low, high):
                    if self.messages[name, epoch, seq] is not None:
                        yield name, epoch, seq

    # ── asking ────────────────────────────────────────────────────────────────────────────────────────────────────

    def ask(self) -> SyncRequest:
        """Ask everyone for what is not here."""
        self.number += 1
        have = [(name, epoch, runs.dump()) for (name, epoch), runs in self._have.items()]
        return SyncRequest(SyncId(self.name, self.epoch, self.group, self.number), have)

    # ── answering ─────────────────────────────────────────────────────────────────────────────────────────────────

    def receive_request(self, request: SyncRequest, *, now_ms: int, wait_ms: int) -> bool:
        """Note what to send unless others send it within `wait_ms`; returns whether to ask in turn.

        Raises PeerFault if the request is invalid.
        """
        id_ = request.id
        if id_.group != self.group or id_.name == self.name:
            return False
        have = _runs_of(request)
        latest = self._latest.get(id_.name)
        if latest is None or _later(id_, latest):
            self._note(id_, set(self._not_in(have)), now_ms, due_ms=now_ms + wait_ms)
        elif id_ == latest:
            notes = self._notes.get(id_.name)
            if notes is None or notes.due_ms is not None:
                return False  # a copy: its counter is running, or all is done
            notes.ids.intersection_update(self._not_in(have))
            notes.due_ms = now_ms + wait_ms
        else:
            return False
        self._drop_empty(id_.name)
        return self._lacks_any_of(have)

    def receive_answer(self, answer: SyncAnswer, *, now_ms: int) -> list[tuple[Id, bytes]]:
        """Take in an answer of another member; returns the messages that are new here, to be ordered and delivered."""
        id_ = answer.id
        if id_.group != self.group or answer.name == self.name:
            return []
        if id_.name != self.name:
            latest = self._latest.get(id_.name)
            sent = {one for one, _ in answer.messages}
            if latest is None or _later(id_, latest):
                self._note(id_, set(self._not_in({})) - sent, now_ms, due_ms=None)
            elif id_ == latest and id_.name in self._notes:
                self._notes[id_.name].ids -= sent
            self._drop_empty(id_.name)
        return [(one, value) for one, value in answer.messages if self.store(one, value)]

    def due(self, now_ms: int) -> list[SyncAnswer]:
        """The answers that are due now; their requests are then done."""
        answers: list[SyncAnswer] = []
        for notes in sorted(self._notes.values(), key=lambda one: (one.due_ms is None, one.due_ms)):
            if notes.due_ms is not None and notes.due_ms <= now_ms:
                answers += self._answers(notes)
                del self._notes[notes.id.name]
            elif notes.due_ms is None and notes.forget_ms <= now_ms:
                del self._notes[notes.id.name]
                del self._latest[notes.id.name]  # if the request still comes, it is new
        return answers

    def deadline_ms(self) -> int | None:
        """When to call `due` next, as far as known now."""
        times = [one.forget_ms if one.due_ms is None else one.due_ms for one in self._notes.values()]
        return min(times, default=None)

    def to_send(self, name: str) -> set[Id]:
        """The ids noted for the latest request of this member."""
        notes = self._notes.get(name)
        return set() if notes is None else set(notes.ids)

    def _note(self, id_: SyncId, ids: set[Id], now_ms: int, *, due_ms: int | None) -> None:
        """Start notes for a request that is later than all known ones of its sender; earlier notes are void."""
        self._latest.pop(id_.name, None)  # so that the member silent for longest comes first in the dict
        self._latest[id_.name] = id_
        self._notes[id_.name] = _Notes(id_, ids, due_ms, now_ms + self.time_to_live_ms)
        if len(self._latest) > REQUESTERS_MAX:
            silent = next(iter(self._latest))
            del self._latest[silent]
            self._notes.pop(silent, None)

    def _drop_empty(self, name: str) -> None:
        """Drop running notes with nothing left to send."""
        notes = self._notes.get(name)
        if notes is not None and notes.due_ms is not None and not notes.ids:
            del self._notes[name]

    def _answers(self, notes: _Notes) -> Iterator[SyncAnswer]:
        part: list[tuple[Id, bytes]] = []
        size = 0
        for id_, value in self._texts(notes.ids):
            if part and size + len(value) > ANSWER_BYTES_MAX:
                yield SyncAnswer(self.name, notes.id, part)
                part, size = [], 0
            part.append((id_, value))
            size += len(value)
        if part:
            yield SyncAnswer(self.name, notes.id, part)

    def _texts(self, ids: set[Id]) -> Iterator[tuple[Id, bytes]]:
        """These messages in order of arrival, except those whose texts were dropped meanwhile."""
        for id_, value in self.messages.items():
            if id_ in ids and value is not None:
                yield id_, value


def _later(one: SyncId, other: SyncId) -> bool:
    return (one.epoch, one.number) > (other.epoch, other.number)


def _runs_of(request: SyncRequest) -> dict[Who, Runs]:
    """The runs in a request, checked, because another member sent them."""
    found: dict[Who, Runs] = {}
    count = 0
    for name, epoch, dumped in request.have:
        numbers = [dumped] if isinstance(dumped, int) else dumped
        count += 1 + len(numbers) // 2
        if count > RUNS_MAX:
            raise PeerFault(f"The request of {request.id.name!r} names more than {RUNS_MAX} runs.")
        if not _are_runs(numbers):
            raise PeerFault(f"The request of {request.id.name!r} names invalid runs of {name!r} (epoch {epoch}).")
        runs = Runs()
        runs.fill(dumped)
        found[name, epoch] = runs
    return found


def _are_runs(numbers: Iterable[int]) -> bool:
    """A prefix, then growing bounds that do not touch what is before them."""
    prefix, *beyond = list(numbers) or [-1]
    bounds = [prefix + 1, *beyond]
    grow = all(low < high for low, high in pairwise(bounds))
    return 0 <= prefix <= SEQ_MAX and len(beyond) % 2 == 0 and grow and bounds[-1] <= SEQ_MAX + 1
