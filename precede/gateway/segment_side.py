"""One segment of a gateway: what its peers said goes up by the publish queue, and what the log has goes down to them.

Of several gateways on the segment one tells a record of the log at once; the others wait a little, and mostly hear it.
What somebody said on this segment is not told again there, unless this gateway has not heard it after a while.
"""

from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from heapq import heappop, heappush
from itertools import count
from zlib import crc32

from precede.gateway.history import LogHistory
from precede.gateway.log_kernel import LogKernel, LogRefusal, Took, id_of
from precede.gateway.publish_queue import PublishQueue
from precede.udfs.engine.runs import Runs
from precede.udfs.errors import Refused
from precede.udfs.limits import ANY_SIZE
from precede.udfs.peers import gateway_calls
from precede.udfs.peers.directory import GROUPS_MAX, GroupInfo
from precede.udfs.peers.events import Accepted, Event, JoinHeard, Missed, Offered
from precede.udfs.peers.notes import InLog, JoinAnswer, RefusedByLog, in_notes, newest_members
from precede.udfs.peers.ordering import check_group
from precede.udfs.peers.peer_group import PeerGroup
from precede.udfs.peers.segment import SegmentProtocol
from precede.udfs.records.messages import Create, Heartbeat, Join, Message, Record, Tick, Who
from precede.udfs.records.strict import Malformed
from precede.udfs.records.wire import read

LATER_MS = 150.0
"""How long a gateway waits for each one that comes before it."""
TELL_MS = 100.0
"""So often the peers are told what the log has of what they said."""
TELL_ALL_MS = 10_000.0
"""So often they are told everything, if anything has changed or somebody new is there."""
TELL_NEW_MS = 1_000.0
"""Not sooner than this after the last time."""
ELSEWHERE_MS = 800.0
"""How long after a join, at least, what members of other segments said before they knew of it is in the log."""
RANKS_MS = 500.0
ROOM_BYTES = 64 * 1024
WAITING_MAX = 20_000
"""With more records than this to tell, the log is read no further."""


class SegmentSide:
    """A segment, seen from the log."""

    def __init__(
        self,
        url: str,
        segment: SegmentProtocol,
        log: LogKernel,
        history: LogHistory,
        queue: PublishQueue,
        say: Callable[[str], object],
        broke: Callable[[Exception], object],
    ) -> None:
        """`broke` is told what an event raised; it ends nothing."""
        self.url = url
        self.segment = segment
        self.told = 0
        """How many records of the log were told here."""
        self.heard = 0
        """How many records were heard here that the log did not have."""
        self._log = log
        self._history = history
        self._queue = queue
        self._say = say
        self._broke = broke
        self._home: set[tuple[str, str, int]] = set()
        """Group, sender and epoch of those who speak on this segment."""
        self._ranks: dict[tuple[str, str], int] = {}
        self._gateways: set[str] = set()
        self._ranks_ms = 0.0
        self._down: deque[Took] = deque()
        self._later: list[tuple[float, int, Took]] = []
        self._ties = count()
        self._changed: dict[str, set[Who]] = {}
        self._changed_since_all: set[str] = set()
        self._tell_ms = self._tell_all_ms = 0.0
        self._joins: dict[tuple[str, str], JoinHeard] = {}
        self._answers: dict[tuple[str, str], float] = {}
        """When to answer a join that the log has."""
        self._new: set[str] = set()
        """Groups that take place here and are not in the log yet."""
        self._not_here: set[str] = set()
        """Groups that need the log, and cannot be on a segment."""
        self._others: set[bytes] = set()
        self._seen_in_log: set[str] = set()
        """Groups of the log that are offered here, or cannot be on a segment."""
        self._new_in_log: list[GroupInfo] = []
        """Groups of the log that are not offered yet."""
        gateway_calls.take_limits(segment, log.limits)
        for group in log.groups():
            self._note_new(group)
        segment.advertised.update({note.group: note for note in self._new_in_log})  # the first announcement has them
        self._new_in_log.clear()

    # ── from the segment ──────────────────────────────────────────────────────────────────────────────────────────

    def take_events(self, events: Iterable[Event], now_ms: float) -> None:
        """What happened on the segment."""
        log = self._log
        for event in events:
            try:
                if event.__class__ is Accepted:
                    group, value, record = event.group, event.value, event.record
                    if record.__class__ is not Message or not log.has(group, id_of(record)):
                        self._hear(group, value, record, now_ms)
                elif isinstance(event, Offered):
                    self.attend(event.info.group, now_ms)
                elif isinstance(event, Missed):
                    self.attend(event.group, now_ms)
                elif isinstance(event, JoinHeard) and event.name in gateway_calls.present(self.segment, now_ms):
                    self._joins[event.group, event.name] = event
            except Exception as error:  # noqa: BLE001 (whatever it is, the other events count)
                self._broke(error)

    def _hear(self, group: str, value: bytes, record: Record, now_ms: float) -> None:
        if group in self._new and not isinstance(record, Create):
            self._check_create(group, now_ms)  # it goes up first
        sender = getattr(record, "sender", None)
        name = sender if isinstance(sender, str) else ""
        if self._queue.hear(group, value, record, self._rank(group, name, now_ms), now_ms):
            self.heard += 1
            if isinstance(record, Message):
                self._home.add((group, name, id_of(record)[1]))

    def attend(self, group: str, now_ms: float) -> PeerGroup | None:
        """Take part in a group, with what the log had of it; None if it cannot be on a segment."""
        known = self.segment.groups.get(group)
        if known is not None or group in self._not_here:
            return known
        log, history = self._log, self._history
        create = history.create_of(group)
        if create is None and log.is_created(group):
            self._leave_out(group, "its `create` record is not in the ordered topic any more")
            return None
        try:
            peer = self.segment.attend(group, now_ms, create=create, order=log.default_order)
        except Refused as error:
            self._leave_out(group, str(error).rstrip("."))
            return None
        messages = [*history.messages(group), *log.held_values(group)]
        values = [*history.controls(group), *messages]
        settled = _settled_before(log.settled(group), messages)
        gateway_calls.learn(self.segment, group, values, settled, time=log.time(group), now_ms=now_ms)
        self._tell_group(group, None, now_ms)
        if not log.has_begun(group):
            self._new.add(group)
            self._check_create(group, now_ms)
        return peer

    def _leave_out(self, group: str, why: str) -> None:
        self._not_here.add(group)
        self.segment.advertised.pop(group, None)
        self._say(f"The group {group} is not carried between the log and {self.url}: {why}.")

    def _check_create(self, group: str, now_ms: float) -> None:
        """Hear the `create` record of a group that is not in the log, however it came to be known here."""
        if self._log.has_begun(group):
            self._new.discard(group)
            return
        peer = self.segment.groups.get(group)
        create = None if peer is None else peer.records.create
        if create is not None:
            self._hear(group, create, read(create, ANY_SIZE), now_ms)

    def _rank(self, group: str, name: str, now_ms: float) -> int:
        """How many gateways of this segment come before this one, for this sender."""
        if self._ranks_ms <= now_ms:
            self._ranks_ms = now_ms + RANKS_MS
            gateways = gateway_calls.gateways(self.segment, now_ms)
            if gateways != self._gateways:
                self._gateways = gateways
                self._ranks.clear()
        rank = self._ranks.get((group, name))
        if rank is None:
            mine = _draw(self.segment.name, group, name)
            rank = sum(_draw(one, group, name) < mine for one in self._gateways)
            if len(self._ranks) > 100_000:
                self._ranks.clear()
            self._ranks[group, name] = rank
        return rank

    # ── from the log ──────────────────────────────────────────────────────────────────────────────────────────────

    def _note_new(self, group: str) -> None:
        """A group of the log is to be offered to the peers, if it can be on a segment."""
        count = len(self.segment.advertised) + len(self._new_in_log)
        if group in self._seen_in_log or group in self._not_here or count >= GROUPS_MAX:
            return
        self._seen_in_log.add(group)
        create, order = self._history.create_of(group), self._log.default_order
        if create is None and self._log.is_created(group):
            return
        with suppress(Refused):  # it is said once somebody here is in it
            check_group(create, order)
            self._new_in_log.append(GroupInfo(group, create, {}, order))

    def take(self, took: Took, now_ms: float) -> None:
        """The log has a record."""
        group = took.group
        peer = self.segment.groups.get(group)
        record = took.record
        if peer is None:
            self._note_new(group)
            return
        if isinstance(record, Message):
            name, epoch, _ = id_ = id_of(record)
            if (group, name, epoch) in self._home:
                self._changed.setdefault(group, set()).add((name, epoch))
            if took.is_copy or peer.sync_schedule.kept.has(id_):
                return
            is_home = (group, name, epoch) in self._home
        elif isinstance(record, Create):
            if self._log.creates.get(group) != peer.records.create:
                self._tell_group(group, set(), now_ms)
            return
        elif _comes_first(peer, record):
            self._down.append(took)
            return
        elif isinstance(record, Tick) or _has_control(peer, record, took.value):
            return
        else:
            is_home = isinstance(record, Heartbeat) and (group, record.sender, record.epoch) in self._home
        sender = getattr(record, "sender", None)
        rank = self._rank(group, sender if isinstance(sender, str) else "", now_ms) + is_home
        if rank == 0:
            self._down.append(took)
        else:
            heappush(self._later, (now_ms + rank * LATER_MS, next(self._ties), took))

    def refuse(self, refusal: LogRefusal, now_ms: float) -> None:
        """The log refused something that was said here."""
        if refusal.group in self.segment.groups:
            note = RefusedByLog(refusal.group, refusal.id, refusal.code, refusal.reason)
            self.segment.tell(note, now_ms)

    def is_home_of(self, group: str, sender: str, epoch: int) -> bool:
        """Whether this sender speaks on this segment."""
        return (group, sender, epoch) in self._home

    @property
    def is_full(self) -> bool:
        """Whether the segment cannot take what the log has as fast as that comes."""
        return len(self._down) + len(self._later) > WAITING_MAX

    # ── time ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def step(self, now_ms: float) -> None:
        """Do what is due."""
        while self._later and self._later[0][0] <= now_ms:
            self._down.append(heappop(self._later)[2])
        self._tell_down(now_ms)
        for group, name in [one for one, join in self._joins.items() if self._log.has_join(*one, join.epoch)]:
            answer_ms = self._answers.setdefault((group, name), now_ms + self._settles_in_ms(group, name, now_ms))
            if answer_ms <= now_ms:
                self._answer_join(group, name, now_ms)
        if self._tell_ms <= now_ms:
            self._tell_ms = now_ms + TELL_MS
            for group in list(self._new):
                self._check_create(group, now_ms)
            self._tell_changed(now_ms)
            if self._new_in_log:
                gateway_calls.advertise(self.segment, self._new_in_log, now_ms)
                self._new_in_log.clear()

    def _tell_down(self, now_ms: float) -> None:
        down, segment = self._down, self.segment
        while down and segment.has_room(ROOM_BYTES):
            group, value, record, _ = down.popleft()
            peer = segment.groups.get(group)
            if peer is None:
                continue
            if isinstance(record, Message):
                if peer.sync_schedule.kept.has(id_of(record)):
                    continue
            elif _has_control(peer, record, value):
                continue
            segment.inject(group, value, now_ms)
            self.told += 1

    def _settles_in_ms(self, group: str, name: str, now_ms: float) -> float:
        """When the log has all that members elsewhere said before they knew of a join that it has now."""
        members = set(self._log.members(group)) - {name}
        if not self._log.waits_for_members(group) or members <= gateway_calls.present(self.segment, now_ms):
            return 0.0
        return max(ELSEWHERE_MS, 4 * self._queue.way_ms)

    def _answer_join(self, group: str, name: str, now_ms: float) -> None:
        join = self._joins.pop((group, name))
        del self._answers[group, name]
        if group in self.segment.groups and self._log.waits_for_members(group):
            log = self._log
            named = newest_members(log.members(group), group, len(join.value))
            answer = JoinAnswer(group, name, join.epoch, self.segment.name, log.time(group), named, join.value)
            self.segment.tell(answer, now_ms)

    def _tell_changed(self, now_ms: float) -> None:
        changed, self._changed = self._changed, {}
        for group, whom in changed.items():
            self._changed_since_all.add(group)
            self._tell_group(group, whom, now_ms)
        others = set(self.segment.broadcast.streams.by_origin)
        has_new = not others <= self._others and self._tell_all_ms <= now_ms + TELL_ALL_MS - TELL_NEW_MS
        if has_new or self._tell_all_ms <= now_ms:
            self._tell_all_ms = now_ms + TELL_ALL_MS
            for group in list(self.segment.groups) if has_new else self._changed_since_all:
                self._tell_group(group, None, now_ms)
            self._changed_since_all = set()
            self._others = others if has_new else self._others

    def _tell_group(self, group: str, whom: set[Who] | None, now_ms: float) -> None:
        """Tell what the log has of these senders, or of all."""
        if group not in self.segment.groups:
            return
        have = self._log.have(group, whom)
        create = self._log.creates.get(group) or self._history.create_of(group)
        for some in in_notes(have):
            self.segment.tell(InLog(group, self.segment.name, create, some), now_ms)


def _comes_first(peer: PeerGroup, record: Record) -> bool:
    """Whether nothing that the log has later may overtake a record: by clocks, a join; so each gateway tells of it."""
    return isinstance(record, Join) and peer.order.waits_for_members


def _has_control(peer: PeerGroup, record: Record, value: bytes) -> bool:
    """Whether a segment has a membership record that need not be told again."""
    if isinstance(record, Message | Heartbeat | Tick) or _comes_first(peer, record):
        return False
    return peer.records.has(record, value)


def _draw(gateway: str, group: str, sender: str) -> tuple[int, str]:
    return crc32(f"{gateway}\0{group}\0{sender}".encode()), gateway


def _settled_before(settled: dict[Who, Runs], messages: Iterable[bytes]) -> list[tuple[Who, Runs]]:
    """What is settled, without the messages that are still here."""
    here: dict[Who, Runs] = {}
    for value in messages:
        try:
            record = read(value, ANY_SIZE)
        except Malformed:  # written by a newer version
            continue
        if isinstance(record, Message):
            name, epoch, seq = id_of(record)
            here.setdefault((name, epoch), Runs()).add(seq)
    found: list[tuple[Who, Runs]] = []
    for who, runs in settled.items():
        left = Runs()
        for low, high in runs.runs():
            for first, last in here[who].gaps(low, high) if who in here else [(low, high)]:
                left.add_range(first, last)
        if left.run_count():
            found.append((who, left))
    return found
