"""A peer on a segment: groups are discovered, created, joined and left, and spoken in, without a log (M2MC, chapter 3).

It has the three calls of a process on a broadcast medium, `receive`, `due` and `deadline_ms`, and those of the
application; what happens is told as events (events.py). It does no I/O: bytes and time come in, bytes go out.

Duties of the caller, beside those of the broadcast (broadcast.py):
- `clock_offset_ms` is what the wall clock shows beyond `now_ms`; keep it up to date for groups with physical clocks.
- `dump` is everything. A later start that is given it (`restore`) goes on where this one was, if nothing was said
  since; otherwise it is told so (`is_clean=False`) and takes a new epoch.
- `epoch` is larger than any that this name has used in a group that the state does not know: seconds of the wall clock
  do.
"""

from collections.abc import Iterable
from itertools import islice
from typing import Any

from msgspec.structs import replace

from precede.udfs.engine.held import Held
from precede.udfs.errors import Congested, Refused
from precede.udfs.limits import Limits
from precede.udfs.peers import notes
from precede.udfs.peers.announcing import Announcing
from precede.udfs.peers.broadcast import Broadcast
from precede.udfs.peers.directory import DEFAULT_ORDER, Directory, GroupInfo
from precede.udfs.peers.events import Event, Missed, Offered, RecordRefused
from precede.udfs.peers.fragments import PAYLOAD_BYTES_MAX
from precede.udfs.peers.frames import ANNOUNCEMENT, DATA, PADDING, PAGE, SYNC, Chance, Codec, FrameFault
from precede.udfs.peers.kept_messages import KEPT_BYTES_MAX
from precede.udfs.peers.notes import Announcement, InLog, JoinAnswer, PeerFault, RefusedByLog, read_have
from precede.udfs.peers.ordering import begins, check_group, check_order
from precede.udfs.peers.origin_order import Arrival
from precede.udfs.peers.peer_group import PeerGroup
from precede.udfs.peers.speaking import Signer
from precede.udfs.peers.views import IN, merge
from precede.udfs.records.messages import Create, Id
from precede.udfs.records.strict import Malformed
from precede.udfs.records.wire import read

REST_MS = 1_000.0
"""How long what has raised an error in its turn waits for its next one."""
SAID_MAX = 64
"""So many messages of one group are said before they are taken in."""
OFFERED_BYTES_MAX = 64 * 1024 * 1024
"""What the groups that are offered may take in memory."""
REFUSALS_MAX = 1_000
"""So many refusals of the log are remembered, so that each is told once."""


class SegmentProtocol:
    """One process on a segment, under one name."""

    def __init__(
        self,
        name: str,
        origin: bytes,
        codec: Codec,
        chance: Chance,
        *,
        now_ms: float,
        epoch: int,
        clock_offset_ms: float = 0,
        signer: Signer | None = None,
        is_gateway: bool = False,
        kept_bytes_max: int = KEPT_BYTES_MAX,
    ) -> None:
        self.name = name
        self.broadcast = Broadcast(origin, codec, chance, now_ms=now_ms, keeps_turn=self._keeps_turn)
        self.counts = self.broadcast.counts
        self.epoch = epoch
        self.clock_offset_ms = clock_offset_ms
        self.is_gateway = is_gateway
        self.groups: dict[str, PeerGroup] = {}
        self._by_key: dict[bytes, PeerGroup] = {}
        self.events: list[Event] = []
        self.directory = Directory(name, epoch=epoch)
        self.announcing = Announcing(name, chance, now_ms, is_gateway=is_gateway)
        self._chance = chance
        self._signer = signer
        self._kept_bytes_max = kept_bytes_max
        self._unsent: list[tuple[int, bytes]] = []
        self._speakers: list[PeerGroup] = []
        """The groups in which something was said that is neither taken in nor sent yet."""
        self._said_ms = now_ms
        self._lost = 0
        self._now_ms = now_ms
        """The time that was told last."""
        self._rests: dict[PeerGroup | Broadcast, float] = {}
        """What has raised an error in its turn, and when it has its next one."""
        self._offered_bytes = 0
        self.is_paused = False
        """As a gateway: whether no records are taken in (gateway_calls.py)."""
        self._refusals: dict[RefusedByLog, None] = {}
        self.limits = Limits()
        """What records may have; as a gateway: in its log; else with lists as long as in the log of a gateway here."""
        self.advertised: dict[str, GroupInfo] = {}
        """As a gateway: groups of the log that others may join."""

    def take_limits(self, limits: Limits) -> None:
        """Take records by these limits from now on, in all groups."""
        if limits != self.limits:
            self.limits = limits
            for peer in self.groups.values():
                peer.take_limits(limits)

    def restore(self, state: dict[str, Any], now_ms: float, *, is_clean: bool) -> None:
        """Go on from what `dump` gave, before anything else happens."""
        self.take_limits(self.limits.taking(state.get("limits", self.limits.lists)))
        for group, dumped in state["groups"].items():
            self._restore(group, dumped, now_ms, is_clean=is_clean)

    def _restore(self, group: str, dumped: dict[str, Any], now_ms: float, *, is_clean: bool) -> None:
        peer = self._add(group, dumped.get("default_order", DEFAULT_ORDER))
        peer.load(dumped, now_ms, new_epoch=None if is_clean else max(self.epoch, dumped["epoch"] + 1))
        info = peer.note
        if peer.own_join.left:
            self.directory.receive([info])  # it may be joined again
        else:
            # It may have stopped before its own join was taken in: that comes after the history.
            info = replace(info, view=merge(info.view, {self.name: (dumped["epoch"], IN)}))
            self.directory.remember(info)
        peer.sync_schedule.begin(now_ms)
        if not peer.own_join.joined and not peer.own_join.left:
            peer.enter(now_ms)

    # ── calls of the application ──────────────────────────────────────────────────────────────────────────────────

    def discover(self, now_ms: float) -> None:
        """Ask everyone what they are in; what is offered comes as events."""
        self.directory.advertise()
        self.announcing.ask(now_ms)

    def create(self, group: str, options: dict[str, Any], now_ms: float) -> PeerGroup:
        """Create a group and enter it. Raises Refused if it cannot be."""
        if group in self.groups or group in self.directory.rows:
            raise Refused(f"There is a group {group} on this segment: join it, or choose another name.")
        options = {"order": DEFAULT_ORDER} | options  # a log may have another default
        check_order(options["order"], options.get("conflicts"))
        self.directory.create(group)
        peer = self._add(group)
        peer.sync_schedule.begin_alone(now_ms)
        peer.create(options, now_ms)
        peer.enter(now_ms)
        self._settle(peer, now_ms)
        self.announce([peer.note], now_ms)
        return peer

    def join(self, group: str, now_ms: float) -> PeerGroup:
        """Enter a group that was offered; it may be spoken in once `Joined` is told. Raises Refused if it cannot be."""
        known = self.directory.known.get(group)
        before = self.groups.get(group)
        if known is None or (before is not None and not before.own_join.left):
            raise Refused(f"No group {group} is offered on this segment: discover first, or create it.")
        order = known.order or DEFAULT_ORDER
        check_group(known.create, order)
        self.directory.join(group)
        peer = self._add(group, order)
        if known.create is not None:
            peer.take(known.create, now_ms)
        used = max(known.view.get(self.name, (-1, IN))[0], -1 if before is None else before.speaking.epoch)
        if used >= peer.speaking.epoch:
            peer.begin_epoch(used + 1)
        peer.sync_schedule.begin(now_ms)
        if before is not None:
            _hand_over(before, peer, now_ms)
        peer.enter(now_ms)
        self._settle(peer, now_ms)
        return peer

    def attend(
        self, group: str, now_ms: float, *, create: bytes | None = None, order: str = DEFAULT_ORDER
    ) -> PeerGroup:
        """As a gateway: take part in a group without being a member; `create` is its record in the log, if it has one.

        `order` is the log's default. Raises Refused if the group needs the log and cannot be on a segment.
        """
        if group in self.groups:
            return self.groups[group]
        known = self.directory.known.get(group)
        create = create or (None if known is None else known.create)
        check_group(create, order)
        self.directory.remember(GroupInfo(group, create, {self.name: (0, IN)}, order))
        peer = self._add(group, order)
        if create is not None:
            peer.take(create, now_ms, is_from_log=True)
        peer.sync_schedule.begin(now_ms)
        self.announce([peer.note], now_ms)
        return peer

    def decline(self, group: str) -> None:
        """Say no to an offer; it is made again after the next `discover`."""
        self.directory.decline(group)

    def leave(self, group: str, now_ms: float) -> None:
        """Leave a group; this process goes on answering for it until it is `forget`-ed."""
        peer = self._peer(group)
        self.directory.leave(group)
        peer.leave(now_ms)
        self._settle(peer, now_ms)

    def forget(self, group: str) -> None:
        """Have nothing to do with a group any more."""
        self._take_said()
        self.groups.pop(group, None)
        self._by_key.pop(group.encode(), None)

    def send(self, group: str, data: bytes, *, now_ms: float, **more: Any) -> Id:
        """Say something, as by `say`; returns its id."""
        return self.say(group, data, now_ms=now_ms, **more)[0]

    def say(
        self,
        group: str,
        data: bytes,
        *,
        now_ms: float,
        after: Iterable[Id] = (),
        to: list[str] | None = None,
        object_: dict[str, Any] | None = None,
        meta: bytes | None = None,
    ) -> tuple[Id, bytes]:
        """Say something: `data` is JSON, and `meta` an object as JSON. Returns its id and its record.

        The next call of `due`, or of anything that looks at the group, takes in all that was said, as one bundle, and
        tells of it. Raises ValueError for a wrong argument, and Refused where it cannot be said: Congested, which is a
        Refused, means that it can be a little later.
        """
        peer = self.groups.get(group)
        if peer is None:
            raise _not_in(self.name, group)
        if self._unsent or not self.broadcast.has_room(len(data)):
            raise Congested("The peers of the segment cannot follow: wait, and send it again.")
        clock_ms = self._clock_ms(now_ms)
        said = peer.send(data, after=list(after), to=to, object_=object_, meta=meta, clock_ms=clock_ms, now_ms=now_ms)
        if not peer.said:
            self._settle(peer, now_ms)
        elif len(peer.said) == 1:
            self._speakers.append(peer)
            self._said_ms = now_ms
        elif len(peer.said) == SAID_MAX:
            self._take_said()
        return said

    def inject(self, group: str, value: bytes, now_ms: float) -> None:
        """As a gateway: tell all a record that the log has."""
        peer = self._peer(group)
        peer.take(value, now_ms, is_from_log=True)
        peer.out.append((DATA, notes.write_data(peer.key, value)))
        self._settle(peer, now_ms)

    def tell(self, note: InLog | RefusedByLog | JoinAnswer, now_ms: float) -> None:
        """As a gateway: tell all what the log has, what it refused, or that it has a join."""
        peer = self._peer(note.group)
        peer.out.append((ANNOUNCEMENT, notes.encode(note)))
        if isinstance(note, InLog) and note.create is not None:
            peer.log_coverage.tell(note.create, {})
            self._meet(peer, note.create, now_ms, is_from_log=True)
        self._settle(peer, now_ms)

    def announce(self, new: Iterable[GroupInfo], now_ms: float) -> None:
        """Tell all at once of groups that are new."""
        self._unsent += self.announcing.tell_of(new)
        self._flush(now_ms)

    def has_room(self, size: int) -> bool:
        """Whether `inject` of a record of this size would go out soon."""
        return not self._unsent and self.broadcast.has_room(size)

    def restore_said(self, group: str, epoch: int, seq: int, value: bytes, now_ms: float) -> None:
        """After an end that was not clean: an own message that was said after the state was written."""
        peer = self.groups.get(group)
        if peer is not None and peer.take(value, now_ms):
            peer.log_coverage.said((self.name, epoch, seq), len(value))

    def record_of(self, group: str, id_: Id) -> bytes | None:
        """The raw record of a message, if it is kept here."""
        return self._peer(group).sync_schedule.kept.messages.get(id_)

    def held(self, group: str) -> list[Held]:
        """What waits for its turn in a group, and for what."""
        return self._peer(group).ordering.held()

    def take_events(self, *, with_said: bool = True) -> list[Event]:
        """What happened since the last call; `with_said` takes in what was said first, which then shares no bundle."""
        if with_said:
            self._take_said()
        events = self.events.copy()
        self.events.clear()
        return events

    def take_faults(self) -> list[Exception]:
        """What was raised here though nothing should raise anything, each kind once; `counts` has how often."""
        return self.counts.take_faults()

    def owed(self, group: str) -> list[Id]:
        """The own messages that a gateway's log is not known to have; none where no gateway is known."""
        return self._peer(group).log_coverage.owed

    def is_confirmed(self, now_ms: float) -> bool:
        """Whether all that was said is with every present peer."""
        return not self._speakers and not self._unsent and self.broadcast.is_confirmed(now_ms)

    def dump(self) -> dict[str, Any]:
        """Everything that a later start needs, as plain data.

        A group that was left is in it only while the log lacks what was said there.
        """
        self._take_said()
        groups = {group: peer.dump() for group, peer in self.groups.items() if _is_needed(peer)}
        return {"v": 1, "name": self.name, "limits": self.limits.lists, "groups": groups}

    def _peer(self, group: str) -> PeerGroup:
        self._take_said()
        peer = self.groups.get(group)
        if peer is None:
            raise _not_in(self.name, group)
        return peer

    def _add(self, group: str, order: str = DEFAULT_ORDER) -> PeerGroup:
        keeps, signer = self._kept_bytes_max, self._signer
        peer = PeerGroup(
            group, self.name, self.epoch, self._chance, self.events, order=order, signer=signer, kept_bytes_max=keeps
        )
        peer.is_gateway = self.is_gateway
        peer.take_limits(self.limits)
        self.groups[group] = self._by_key[peer.key] = peer
        return peer

    def _clock_ms(self, now_ms: float) -> int:
        return int(now_ms + self.clock_offset_ms)

    # ── the medium ────────────────────────────────────────────────────────────────────────────────────────────────

    def receive(self, datagram: bytes, now_ms: float) -> None:
        self._now_ms = now_ms
        self._take_said()
        try:
            arrivals = self.broadcast.receive(datagram, now_ms)
        except Exception as error:  # noqa: BLE001 (frames.py)
            self.counts.fault(error)
            return
        at = 0
        while at < len(arrivals):
            taken = 1
            try:
                if arrivals[at][1] == DATA:
                    taken = self._take_data(arrivals, at, now_ms)
                else:
                    self._dispatch(arrivals[at], now_ms)
            except FrameFault as fault:
                self.counts.add(fault.code)
            except PeerFault:
                self.counts.add("peer_fault")
            except Exception as error:  # noqa: BLE001 (frames.py)
                self.counts.fault(error)
            at += taken

    def due(self, now_ms: float, *, is_drained: bool = True) -> list[bytes]:
        """The datagrams to send now; `is_drained` says whether all that has arrived was handed over."""
        self._now_ms = now_ms
        self._take_said()
        if self._rests:
            self._rests = {one: until_ms for one, until_ms in self._rests.items() if until_ms > now_ms}
        if self.announcing.due_ms <= now_ms:
            mine = [peer.note for peer in self.groups.values() if _is_needed(peer)]
            mine += [note for group, note in self.advertised.items() if group not in self.groups]
            self._unsent += self.announcing.write(mine, now_ms)
        if self.broadcast.lost != self._lost:
            self._lost = self.broadcast.lost
            for peer in self.groups.values():
                peer.sync_schedule.lacks(now_ms)
        for peer in self.groups.values():
            if peer in self._rests:
                continue
            try:
                peer.due(self._clock_ms(now_ms), now_ms)
                if peer.own_join.waits:
                    peer.check_join(self.present(now_ms), self.announcing.gateways, now_ms)
                self._settle(peer, now_ms)
            except Exception as error:  # noqa: BLE001 (frames.py)
                self._rest(peer, error)
        if self.broadcast in self._rests:
            return []
        try:
            self._flush(now_ms)
            return self.broadcast.due(now_ms, is_drained=is_drained)
        except Exception as error:  # noqa: BLE001 (frames.py)
            self._rest(self.broadcast, error)
            return []

    def deadline_ms(self) -> float:
        if self._speakers:
            return self._said_ms
        times = [self.announcing.due_ms]
        timed: list[PeerGroup | Broadcast] = [self.broadcast, *self.groups.values()]
        for one in timed:
            try:
                time = self._rests.get(one) or one.deadline_ms()
            except Exception as error:  # noqa: BLE001 (frames.py)
                time = self._rest(one, error)
            if time is not None:
                times.append(time)
        return min(times)

    def _rest(self, one: PeerGroup | Broadcast, error: Exception) -> float:
        """It has raised an error in its turn, and gets its next one when this time has come."""
        self.counts.fault(error)
        self._rests[one] = until_ms = self._now_ms + REST_MS
        return until_ms

    def _take_said(self) -> None:
        """Take in what the application has said since the last call, and send it: one bundle costs less."""
        if self._speakers:
            speakers, self._speakers = self._speakers, []
            for peer in speakers:
                try:
                    peer.take_said(self._said_ms)
                except Exception as error:  # noqa: BLE001 (frames.py)
                    self.counts.fault(error)
                self._settle(peer, self._said_ms)

    def _settle(self, peer: PeerGroup, now_ms: float) -> None:
        """Pass on what a group has to send."""
        if peer.out:
            self._unsent += peer.out
            peer.out.clear()
            self._flush(now_ms)

    def _flush(self, now_ms: float) -> None:
        if not self._unsent:
            return
        sent = 0
        try:
            for kind, payload in self._unsent:
                if kind == PADDING:
                    self.broadcast.pad(len(payload))
                elif len(payload) <= PAYLOAD_BYTES_MAX:
                    self.broadcast.send(kind, payload, now_ms)
                else:
                    self.counts.add("too_large")
                sent += 1
        except Refused:
            pass  # the rest goes when there is room
        del self._unsent[:sent]

    # ── what is heard ─────────────────────────────────────────────────────────────────────────────────────────────

    def _take_data(self, arrivals: list[Arrival], at: int, now_ms: float) -> int:
        """Take in the records from here on that are of one origin and one group; returns how many."""
        origin, _, payload = arrivals[at]
        key, value = notes.read_data(payload)
        head = payload[: -len(value)]
        values = [value]
        for other, kind, payload in islice(arrivals, at + 1, None):
            if kind != DATA or other != origin or not payload.startswith(head) or len(payload) == len(head):
                break
            values.append(payload[len(head) :])
        peer = self._by_key.get(key)
        if self.is_paused:
            self.counts.add("paused")
        elif peer is not None:
            peer.hear(values, now_ms, is_from_log=self.announcing.is_gateways(origin))
            self._settle(peer, now_ms)
        elif self.is_gateway:
            self._miss(key.decode(errors="replace"))
        return len(values)

    def _keeps_turn(self, kind: int, payload: bytes) -> bool:
        """Whether a payload is of a group by clocks, and may not overtake earlier ones of its origin."""
        if kind == DATA:
            peer = self._by_key.get(notes.read_data(payload)[0])
        elif kind == ANNOUNCEMENT:
            note = notes.read_note(payload)
            peer = self.groups.get(note.group) if isinstance(note, JoinAnswer) else None
        elif kind == PAGE:
            peer = self.groups.get(notes.read_answer(payload).id.group)
        else:
            return False
        return peer is not None and peer.order.waits_for_members

    def _dispatch(self, arrival: Arrival, now_ms: float) -> None:
        origin, kind, payload = arrival
        streams = self.broadcast.streams
        peer: PeerGroup | None = None
        if kind == PAGE and self.is_paused:
            self.counts.add("paused")
        elif kind == ANNOUNCEMENT:
            peer = self._take_note(origin, notes.read_note(payload), now_ms)
        elif kind == SYNC:
            request = notes.read_request(payload)
            peer = self.groups.get(request.id.group)
            if peer is not None:
                peer.receive_request(request, streams.of(origin, now_ms), self.broadcast.peers, now_ms)
            elif self.is_gateway:
                self._miss(request.id.group)
        else:
            answer = notes.read_answer(payload)
            peer = self.groups.get(answer.id.group)
            if peer is not None:
                is_from_log = self.announcing.is_gateways(origin)
                peer.receive_answer(answer, len(payload), streams.of(origin, now_ms), now_ms, is_from_log=is_from_log)
        if peer is not None:
            self._settle(peer, now_ms)

    def _miss(self, group: str) -> None:
        """Tell of a group of the log that somebody here is in."""
        if group in self.advertised:
            self.events.append(Missed(group))

    def _take_note(self, origin: bytes, note: notes.Note, now_ms: float) -> PeerGroup | None:
        if isinstance(note, Announcement):
            self._take_announcement(origin, note, now_ms)
            return None
        peer = self.groups.get(note.group)
        if isinstance(note, JoinAnswer):
            if peer is not None:
                if not self.is_paused:
                    peer.take_join_of(note, now_ms)
                peer.receive_join_answer(note, now_ms)
                peer.check_join(self.present(now_ms), self.announcing.gateways, now_ms)
            return peer
        if not self.announcing.is_gateways(origin):
            self.counts.add("not_from_log")
            return None
        if isinstance(note, RefusedByLog):
            if note not in self._refusals:  # several gateways may tell of it
                self._refusals[note] = None
                self.events.append(RecordRefused(note.group, note.id, note.code, note.reason))
            if len(self._refusals) > REFUSALS_MAX:
                del self._refusals[next(iter(self._refusals))]
            if peer is not None and note.id is not None:
                peer.log_coverage.drop([note.id])
        elif peer is not None:
            peer.log_coverage.tell(note.create, read_have(note.have, note.name))
            if note.create is not None:
                self._meet(peer, note.create, now_ms, is_from_log=True)
        return peer

    def _take_announcement(self, origin: bytes, note: Announcement, now_ms: float) -> None:
        self.announcing.take(origin, note, self.broadcast.streams, now_ms)
        if note.is_gateway and note.limits is not None and not self.is_gateway:
            self.take_limits(self.limits.taking(note.limits))
        infos = []
        for one in note.groups:
            peer = self.groups.get(one.group)
            if peer is None or peer.own_join.left:
                known = self.directory.known.get(one.group)
                is_known = one.create is None or (known is not None and known.create == one.create)
                if is_known or self._is_create(one.create, one.group):
                    infos.append(one)
                continue
            if one.create is not None and one.create != peer.records.create:
                self._meet(peer, one.create, now_ms, is_from_log=False)
                self._settle(peer, now_ms)
            view = peer.speaking.knowledge.view
            if merge(view, one.view) != view:
                peer.sync_schedule.lacks(now_ms)  # it began the group by itself, before any heard of the other
        for info in self.directory.receive(infos):
            self._offer(info)

    def _offer(self, info: GroupInfo) -> None:
        """Tell the application of a group, unless what is offered already takes too much memory."""
        self._offered_bytes += _size_of(info)
        if self._offered_bytes > OFFERED_BYTES_MAX:
            self._offered_bytes = sum(map(_size_of, self.directory.known.values()))  # some were joined or declined
        if self._offered_bytes > OFFERED_BYTES_MAX:
            self.directory.decline(info.group)
            self.counts.add("offers_crowded_out")
            return
        self.events.append(Offered(info))

    def _meet(self, peer: PeerGroup, create: bytes, now_ms: float, *, is_from_log: bool) -> None:
        """Another `create` of a group: the log's stands, else the one whose bytes are the least."""
        mine = peer.records.create
        if mine == create or (peer.log_coverage.create is not None and create != peer.log_coverage.create):
            return
        if (is_from_log or mine is None or create < mine) and self._is_create(create, peer.group):
            peer.adopt(create, now_ms)

    def _is_create(self, value: bytes | None, group: str) -> bool:
        """Whether this is a record that creates this group, and one the kernel takes; else it is counted."""
        try:
            record = None if value is None else read(value, self.limits)
        except Malformed:
            record = None
        if value is not None and isinstance(record, Create) and record.group == group and begins(group, value):
            return True
        self.counts.add("bad_create")
        return False

    def present(self, now_ms: float) -> set[str] | None:
        """The names of all others that are heard; None while some of them are not known."""
        return self.announcing.present(self.broadcast.streams, now_ms)


def _is_needed(peer: PeerGroup) -> bool:
    """Whether this peer is in the group, or has left and the log lacks what it said."""
    return not peer.own_join.left or bool(peer.log_coverage.owed)


def _hand_over(before: PeerGroup, peer: PeerGroup, now_ms: float) -> None:
    """Who comes back still keeps what it said before and the log lacks, and the records by which that counts."""
    if not before.log_coverage.owed:
        return
    for record in before.records.all():
        peer.take(record, now_ms, is_from_log=True, is_page=True)
    peer.log_coverage.is_known = True
    for id_ in before.log_coverage.owed:
        value = before.sync_schedule.kept.messages.get(id_)
        if value is not None and peer.take(value, now_ms):
            peer.log_coverage.said(id_, len(value))


def _not_in(name: str, group: str) -> Refused:
    return Refused(f"{name} is not in {group}: join it first.")


def _size_of(info: GroupInfo) -> int:
    return 200 + len(info.create or b"") + len(info.order) + 100 * len(info.view)
