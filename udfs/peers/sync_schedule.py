"""When a peer asks for what it lacks of a group, and when it answers others (synchronising.py says what).

A newcomer asks, takes a page, and asks for the next one, until no one answers: then it is synced. Later, every member
of a group says now and then what it has, unless another one has just said the same. Who hears of something that it
lacks asks a little later: mostly that is on its way.

No one can prove who it is, so a page is paid from what was heard of its requester (streams.py). All who hear the page
charge the requester, and together they send what it has earned. Where there is more, the requester pads its next
question: it pays for the padding from what it heard of the one who told it so.
"""

from collections.abc import Callable, Iterable

from precede.udfs.engine.runs import Runs
from precede.udfs.peers.frames import PADDING, PAGE, SYNC, Chance
from precede.udfs.peers.kept_messages import KEPT_BYTES_MAX, SETTLED_MAX
from precede.udfs.peers.notes import SyncAnswer, SyncRequest, encode, read_have
from precede.udfs.peers.streams import AMPLIFICATION, OriginStream
from precede.udfs.peers.synchronising import PAGE_BYTES_MAX, Synchroniser
from precede.udfs.records.messages import SEQ_MAX, Who

GRACE_MS = 400
"""Messages younger than this are on their way to all."""
ANSWER_MS = (2.0, 40.0)
"""How long an answer waits; with more than PEERS_USUAL peers it takes longer in proportion."""
ANSWER_AGAIN_MS = 2.0
"""The one who sent a requester its last page sends the next one within this time."""
PEERS_USUAL = 16
UNANSWERED_MS = 200.0
"""A newcomer that is not answered within this time asks again; SILENT_MAX such times, and it is synced."""
MORE_MS = 50.0
"""Who has to pay for a page first asks for it after this time."""
SILENT_MAX = 2
LACKING_MS = (450.0, 750.0)
"""How long a peer that lacks something waits before it asks."""
FORGOTTEN_MAX = 10_000
"""For how many senders, and in how many runs of one, it is noted what others have settled and forgotten."""
LOOK_MS = 100.0
"""So often it is looked whether anything is waited for that others have forgotten: with much that is held, it costs."""
PERIOD_MS = (4_000.0, 8_000.0)
"""Every member says what it has this often, if no other one says the same."""

PADDING_BYTES = 2 * PAGE_BYTES_MAX // AMPLIFICATION
"""So much is said beside a question for a page; half of it may be lost."""
ASKERS_MAX = 1_000
ANSWER_BYTES_MIN = 200
"""Less credit than this is not worth an answer."""

Out = tuple[int, bytes]
"""kind and payload."""


class SyncSchedule:
    """One peer's questions and answers in one group."""

    def __init__(self, name: str, epoch: int, group: str, chance: Chance, *, bytes_max: int = KEPT_BYTES_MAX) -> None:
        self.synchroniser = Synchroniser(name, epoch, group, grace_ms=GRACE_MS, bytes_max=bytes_max)
        self.kept = self.synchroniser.kept
        self._chance = chance
        self.ask_ms: float | None = None
        """When to ask next."""
        self.synced = False
        self.knows_joins = False
        """Whether somebody has told what joins there were, or no one can."""
        self._silent = 0
        self._last_answered: str | None = None
        self._askers: dict[str, OriginStream] = {}
        """From whom the questions came that wait to be answered, by the name in them."""
        self._padding = 0
        """How much to say beside the next question."""
        self._forgotten: dict[Who, Runs] = {}
        """What others have settled and forgotten, as they told a newcomer."""
        self._forgotten_since: dict[Who, Runs] = {}
        """The same, as they told it later: it counts only as far as there are such messages."""
        self._look_ms = 0.0
        """When to look again whether any of that is waited for."""
        self.reached_time = 0
        """The linear time that the group has reached, as others say."""
        self.pages_sent = 0

    def begin(self, now_ms: float) -> None:
        """Ask for everything, from now on."""
        self.synced = self.knows_joins = False
        self._silent = 0
        self.ask_ms = now_ms

    def begin_alone(self, now_ms: float) -> None:
        """No one else can have anything of the group."""
        self.synced = self.knows_joins = True
        self.ask_ms = now_ms + self._chance.uniform(*PERIOD_MS)

    def lacks(self, now_ms: float) -> None:
        """Something seems to be missing here."""
        due_ms = now_ms + self._chance.uniform(*LACKING_MS)
        if self.ask_ms is None or self.ask_ms > due_ms:
            self.ask_ms = due_ms

    def deadline_ms(self, *, is_waiting: bool) -> float | None:
        """When to call `due`, and `forgotten` where messages wait for others."""
        look_ms = self._look_ms if is_waiting and self.synced and (self._forgotten or self._forgotten_since) else None
        times = [time for time in (self.ask_ms, self.synchroniser.deadline_ms(), look_ms) if time is not None]
        return min(times, default=None)

    def due(self, now_ms: float) -> tuple[list[Out], bool]:
        """What to send now, and whether this peer has just become synced."""
        out: list[Out] = []
        for answer in self.synchroniser.due(now_ms, self._room_of):
            asker = self._askers.get(answer.id.name)
            if asker is None or asker.page_credit < ANSWER_BYTES_MIN:
                continue
            self._last_answered = answer.id.name
            self.pages_sent += 1
            out.append((PAGE, encode(answer)))
            asker.page_credit -= len(out[-1][1])
        became_synced = False
        if self.ask_ms is not None and self.ask_ms <= now_ms:
            if not self.synced and self._silent == SILENT_MAX:
                self.synced = self.knows_joins = became_synced = True
            self._silent += 1
            pause_ms = self._chance.uniform(*PERIOD_MS) if self.synced else UNANSWERED_MS
            self.ask_ms = now_ms + pause_ms
            if not became_synced:
                if self._padding:
                    out.append((PADDING, bytes(self._padding)))
                    self._padding = 0
                out.append((SYNC, encode(self.synchroniser.ask())))
        return out, became_synced

    def _room_of(self, name: str) -> float:
        """How many bytes of a page a requester may get."""
        asker = self._askers.get(name)
        return 0.0 if asker is None else asker.page_credit

    # ── received ──────────────────────────────────────────────────────────────────────────────────────────────────

    def receive_request(self, request: SyncRequest, asker: OriginStream, peers: int, now_ms: float) -> None:
        """Somebody says what it has. Raises PeerFault."""
        self._askers.pop(request.id.name, None)
        self._askers[request.id.name] = asker
        if len(self._askers) > ASKERS_MAX:
            del self._askers[next(iter(self._askers))]
        low, high = ANSWER_MS
        wait_ms = self._chance.uniform(low, low + (high - low) * max(1.0, peers / PEERS_USUAL))
        if self._last_answered == request.id.name:
            wait_ms = self._chance.uniform(0, ANSWER_AGAIN_MS)
        theirs = {(name, epoch): runs for name, epoch, runs in request.have}
        has_all = theirs == {(name, epoch): runs for name, epoch, runs in self.kept.have()}
        if self.synchroniser.receive_request(request, now_ms=now_ms, wait_ms=wait_ms):
            self.lacks(now_ms)
        elif has_all and self.synced:
            self.ask_ms = now_ms + self._chance.uniform(*PERIOD_MS)  # this peer would have said the same

    def receive_answer(
        self, answer: SyncAnswer, size: int, teller: OriginStream, take: Callable[[bytes], bool], now_ms: float
    ) -> None:
        """A page came: `take` is called for each record, and says whether it is new. Raises PeerFault."""
        told = read_have(answer.settled, answer.name, runs_max=2 * SETTLED_MAX)
        if not self.synchroniser.strike(answer, now_ms=now_ms):
            return
        is_mine = answer.id.name == self.synchroniser.name
        if not is_mine and answer.id.name in self._askers:
            self._askers[answer.id.name].page_credit -= size
        if self._last_answered == answer.id.name:
            self._last_answered = None
        if not self.synced:
            self.reached_time = min(max(self.reached_time, answer.time), SEQ_MAX)
        here = self.synchroniser.known_controls
        news = sum([take(value) for value in answer.controls if value not in here])
        news += sum([take(value) for _, value in answer.messages])
        self.knows_joins |= is_mine and answer.time > 0  # before the first answer, this peer had none of the records
        forgotten = self._forgotten_since if self.synced else self._forgotten
        for who, runs in told.items():
            known = forgotten.get(who) or Runs()
            if len(forgotten) < FORGOTTEN_MAX and known.run_count() < FORGOTTEN_MAX:
                known.add_ranges(runs.runs())
                forgotten[who] = known
        if is_mine and answer.has_more:
            self._padding = int(min(PADDING_BYTES, teller.ask_credit))
            teller.ask_credit -= self._padding
        if is_mine and (news or self._padding):
            self._silent = 0
            if answer.has_more:
                self.ask_ms = now_ms + (0.0 if news else MORE_MS)
            elif not self.synced:
                self.ask_ms = now_ms + UNANSWERED_MS

    def note_forgotten(self, settled: Iterable[tuple[Who, Runs]], time: int) -> None:
        """As a gateway: the log has settled these, and they are passed over once no one has sent them."""
        self.reached_time = min(max(self.reached_time, time), SEQ_MAX)
        for who, runs in settled:
            known = self._forgotten.setdefault(who, Runs())
            known.add_ranges(runs.runs())

    def forgotten(self, waited_for: Callable[[], dict[Who, int]], now_ms: float) -> list[tuple[Who, Runs]]:
        """What others have settled and forgotten, and is not here; `waited_for` tells up to where anything is missing.

        No one can make this peer pass over what no one is known to have said, nor what it says itself.
        """
        if not self.synced or now_ms < self._look_ms:
            return []  # until it is synced, somebody else may still keep it
        self._look_ms = now_ms + LOOK_MS
        lacking: list[tuple[Who, Runs]] = []
        for who, runs in self._forgotten.items():
            if self._lacks(who, runs):
                lacking.append((who, runs))
        later = [(who, runs) for who, runs in self._forgotten_since.items() if self._lacks(who, runs)]
        missing = waited_for() if later else {}
        for who, runs in later:
            clipped = Runs()
            for low, high in runs.runs():
                last = min(high, max(self.kept.highest(who), missing.get(who, 0)))
                if low <= last:
                    clipped.add_range(low, last)
            if self._lacks(who, clipped):
                lacking.append((who, clipped))
        return lacking

    def _lacks(self, who: Who, runs: Runs) -> bool:
        return who != (self.synchroniser.name, self.synchroniser.epoch) and self.kept.lacks_any_of({who: runs})

    def passed(self, passed: list[tuple[Who, int, int]]) -> None:
        """These are not waited for any more."""
        for who, first, last in passed:
            self.kept.note_gone(who, first, last)
