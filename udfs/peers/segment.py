"""A peer on a segment: groups are discovered, created, joined and left, and spoken in, without a log (M2MC, chapter 3).

It has the three calls of a process on a broadcast medium, `receive`, `due` and `deadline_ms`, and those of the
application; what happens is told as events (events.py). It does no I/O: bytes and time come in, bytes go out.

Duties of the caller, beside those of the broadcast (broadcast.py):
- `clock_offset_ms` is what the wall clock shows beyond `now_ms`; keep it up to date for groups with physical clocks.
- `dump` is everything. A later start that is given it goes on where this one was, if nothing was said since; otherwise
  it is told so (`is_clean=False`) and takes a new epoch.
- `epoch` is larger than any that this name has used in a group that the state does not know: seconds of the wall clock
  do.
"""

from collections.abc import Iterable
from typing import Any

from precede.udfs.engine.held import Held
from precede.udfs.errors import Congested, Refused
from precede.udfs.limits import Limits
from precede.udfs.peers import notes
from precede.udfs.peers.announcing import Announcing
from precede.udfs.peers.broadcast import Arrival, Broadcast
from precede.udfs.peers.directory import Directory, GroupInfo, GroupsInfo, Offer
from precede.udfs.peers.events import Event, Missed, Offered, RecordRefused
from precede.udfs.peers.fit_for_segment import DEFAULT_ORDER, check_group, check_order
from precede.udfs.peers.fragments import PAYLOAD_BYTES_MAX
from precede.udfs.peers.frames import ANNOUNCEMENT, DATA, PADDING, PAGE, SYNC, Chance, Codec, FrameFault
from precede.udfs.peers.kept_messages import KEPT_BYTES_MAX
from precede.udfs.peers.notes import Announcement, GroupNote, InLog, JoinAnswer, RefusedByLog
from precede.udfs.peers.peer_group import PeerGroup
from precede.udfs.peers.segment_state import dump_group, load_group
from precede.udfs.peers.speaking import Signer
from precede.udfs.peers.sync_messages import PeerFault, read_have
from precede.udfs.peers.views import IN, merge
from precede.udfs.records.messages import Create, Id
from precede.udfs.records.strict import Malformed
from precede.udfs.records.wire import read

LIMITS = Limits()
OFFERED_BYTES_MAX = 64 * 1024 * 1024
"""What the groups that are offered may take in memory."""
REFUSALS_MAX = 1_000
"""So many refusals of the log are remembered, so that each is told once."""


class Segment:
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
        state: dict[str, Any] | None = None,
        is_clean: bool = True,
        kept_bytes_max: int = KEPT_BYTES_MAX,
    ) -> None:
        self.name = name
        self.broadcast = Broadcast(origin, codec, chance, now_ms=now_ms)
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
        self._lost = 0
        self._offered_bytes = 0
        self.is_paused = False
        """As a gateway: whether no records are taken in (for_gateways.py)."""
        self._refusals: dict[RefusedByLog, None] = {}
        self.advertised: dict[str, GroupNote] = {}
        """As a gateway: groups of the log that others may join."""
        if state is not None:
            for group, dumped in state["groups"].items():
                self._restore(group, dumped, now_ms, is_clean=is_clean)

    def _restore(self, group: str, dumped: dict[str, Any], now_ms: float, *, is_clean: bool) -> None:
        peer = self._add(group, dumped.get("default_order", DEFAULT_ORDER))
        load_group(peer, dumped, now_ms, new_epoch=None if is_clean else max(self.epoch, dumped["epoch"] + 1))
        # It may have stopped before its own join was taken in: that comes after the history.
        view = merge(peer.speaking.knowledge.view, {self.name: (dumped["epoch"], IN)})
        self.directory.remember(GroupInfo(group, peer.default_order, view, peer.records.create))
        peer.catching_up.begin(now_ms)
        if not peer.joining.joined and not peer.joining.left:
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
        peer.catching_up.begin_alone(now_ms)
        peer.create(options, now_ms)
        peer.enter(now_ms)
        self._settle(peer, now_ms)
        self.announce([peer.note], now_ms)
        return peer

    def join(self, group: str, now_ms: float) -> PeerGroup:
        """Enter a group that was offered; it may be spoken in once `Joined` is told. Raises Refused if it cannot be."""
        known = self.directory.known.get(group)
        before = self.groups.get(group)
        if known is None or (before is not None and not before.joining.left):
            raise Refused(f"No group {group} is offered on this segment: discover first, or create it.")
        order = known.description or DEFAULT_ORDER
        check_group(known.create, order)
        self.directory.join(group)
        peer = self._add(group, order)
        if known.create is not None:
            peer.take(known.create, now_ms)
        used = max(known.view.get(self.name, (-1, IN))[0], -1 if before is None else before.speaking.epoch)
        if used >= peer.speaking.epoch:
            peer.begin_epoch(used + 1)
        peer.catching_up.begin(now_ms)
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
        self.directory.remember(GroupInfo(group, order, {self.name: (0, IN)}, create))
        peer = self._add(group, order)
        if create is not None:
            peer.take(create, now_ms, is_from_log=True)
        peer.catching_up.begin(now_ms)
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
        self.groups.pop(group, None)
        self._by_key.pop(group.encode(), None)

    def send(
        self,
        group: str,
        data: bytes,
        *,
        now_ms: float,
        after: Iterable[Id] = (),
        to: list[str] | None = None,
        object_: dict[str, Any] | None = None,
    ) -> Id:
        """Say something: `data` is JSON. Raises Refused where that cannot be, and ValueError for a wrong argument.

        Congested, which is a Refused, means that it can be a little later.
        """
        peer = self._peer(group)
        if self._unsent or not self.broadcast.has_room(len(data)):
            raise Congested("The peers of the segment cannot follow: wait, and send it again.")
        id_ = peer.send(data, after=list(after), to=to, object_=object_, clock_ms=self._clock_ms(now_ms), now_ms=now_ms)
        self._settle(peer, now_ms)
        return id_

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
            peer.logged.tell(note.create, {})
            self._meet(peer, note.create, now_ms, is_from_log=True)
        self._settle(peer, now_ms)

    def announce(self, new: Iterable[GroupNote], now_ms: float) -> None:
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
            peer.logged.said((self.name, epoch, seq), len(value))

    def held(self, group: str) -> list[Held]:
        """What waits for its turn in a group, and for what."""
        return self._peer(group).ordering.held()

    def take_events(self) -> list[Event]:
        """What happened since the last call."""
        events = self.events.copy()
        self.events.clear()
        return events

    def is_confirmed(self, now_ms: float) -> bool:
        """Whether all that was said is with every present peer."""
        return not self._unsent and self.broadcast.is_confirmed(now_ms)

    def dump(self) -> dict[str, Any]:
        """Everything that a later start needs, as plain data; groups that were left are not in it."""
        groups = {group: dump_group(peer) for group, peer in self.groups.items() if not peer.joining.left}
        return {"v": 1, "name": self.name, "groups": groups}

    def _peer(self, group: str) -> PeerGroup:
        peer = self.groups.get(group)
        if peer is None:
            raise Refused(f"{self.name} is not in {group}: join it first.")
        return peer

    def _add(self, group: str, order: str = DEFAULT_ORDER) -> PeerGroup:
        keeps, signer = self._kept_bytes_max, self._signer
        peer = PeerGroup(
            group, self.name, self.epoch, self._chance, self.events, order=order, signer=signer, kept_bytes_max=keeps
        )
        peer.is_gateway = self.is_gateway
        self.groups[group] = self._by_key[peer.key] = peer
        return peer

    def _clock_ms(self, now_ms: float) -> int:
        return int(now_ms + self.clock_offset_ms)

    # ── the medium ────────────────────────────────────────────────────────────────────────────────────────────────

    def receive(self, datagram: bytes, now_ms: float) -> None:
        """Take in a datagram."""
        for arrival in self.broadcast.receive(datagram, now_ms):
            try:
                self._dispatch(arrival, now_ms)
            except FrameFault as fault:
                self._count(fault.code)
            except PeerFault:
                self._count("peer_fault")

    def due(self, now_ms: float, *, is_drained: bool = True) -> list[bytes]:
        """The datagrams to send now; `is_drained` says whether all that has arrived was handed over."""
        if self.announcing.due_ms <= now_ms:
            mine = [peer.note for peer in self.groups.values() if not peer.joining.left]
            mine += [note for group, note in self.advertised.items() if group not in self.groups]
            self._unsent += self.announcing.write(mine, now_ms)
        if self.broadcast.lost != self._lost:
            self._lost = self.broadcast.lost
            for peer in self.groups.values():
                peer.catching_up.lacks(now_ms)
        present = self.present(now_ms)
        for peer in self.groups.values():
            peer.due(self._clock_ms(now_ms), now_ms)
            peer.check_join(present, self.announcing.gateways, now_ms)
            self._settle(peer, now_ms)
        self._flush(now_ms)
        return self.broadcast.due(now_ms, is_drained=is_drained)

    def deadline_ms(self) -> float:
        """When to call `due` next, as far as known now."""
        times = [self.broadcast.deadline_ms(), self.announcing.due_ms]
        return min(times + [time for peer in self.groups.values() if (time := peer.deadline_ms()) is not None])

    def _dispatch(self, arrival: Arrival, now_ms: float) -> None:
        origin, kind, payload = arrival
        stream = self.broadcast.streams.by_origin[origin]
        is_from_log = self.announcing.is_gateways(origin)
        peer: PeerGroup | None = None
        if kind in (DATA, PAGE) and self.is_paused:
            self._count("paused")
        elif kind == DATA:
            key, value = notes.read_data(payload)
            peer = self._by_key.get(key)
            if peer is not None:
                peer.take(value, now_ms, is_from_log=is_from_log)
            elif self.is_gateway:
                self._miss(key.decode(errors="replace"))
        elif kind == ANNOUNCEMENT:
            peer = self._take_note(origin, notes.read_note(payload), now_ms)
        elif kind == SYNC:
            request = notes.read_request(payload)
            peer = self.groups.get(request.id.group)
            if peer is not None:
                peer.receive_request(request, stream, self.broadcast.peers, now_ms)
            elif self.is_gateway:
                self._miss(request.id.group)
        else:
            answer = notes.read_answer(payload)
            peer = self.groups.get(answer.id.group)
            if peer is not None:
                peer.receive_answer(answer, len(payload), stream, now_ms, is_from_log=is_from_log)
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
                peer.receive_join_answer(note, now_ms)
                peer.check_join(self.present(now_ms), self.announcing.gateways, now_ms)
            return peer
        if not self.announcing.is_gateways(origin):
            self._count("not_from_log")
            return None
        if isinstance(note, RefusedByLog):
            if note not in self._refusals:  # several gateways may tell of it
                self._refusals[note] = None
                self.events.append(RecordRefused(note.group, note.id, note.code, note.reason))
            if len(self._refusals) > REFUSALS_MAX:
                del self._refusals[next(iter(self._refusals))]
            if peer is not None and note.id is not None:
                peer.logged.drop([note.id])
        elif peer is not None:
            peer.logged.tell(note.create, read_have(note.have, note.name))
            if note.create is not None:
                self._meet(peer, note.create, now_ms, is_from_log=True)
        return peer

    def _take_announcement(self, origin: bytes, note: Announcement, now_ms: float) -> None:
        self.announcing.take(origin, note, self.broadcast.streams, now_ms)
        infos = []
        for one in note.groups:
            peer = self.groups.get(one.group)
            if peer is None or peer.joining.left:
                known = self.directory.known.get(one.group)
                is_known = one.create is None or (known is not None and known.create == one.create)
                if is_known or self._is_create(one.create, one.group):
                    infos.append(GroupInfo(one.group, one.order, one.view, one.create))
                continue
            if one.create is not None and one.create != peer.records.create:
                self._meet(peer, one.create, now_ms, is_from_log=False)
                self._settle(peer, now_ms)
            view = peer.speaking.knowledge.view
            if merge(view, one.view) != view:
                peer.catching_up.lacks(now_ms)  # it began the group by itself, before any heard of the other
        for offer in self.directory.receive(GroupsInfo(note.name, infos)):
            if isinstance(offer, Offer):
                self._offer(offer.info)

    def _offer(self, info: GroupInfo) -> None:
        """Tell the application of a group, unless what is offered already takes too much memory."""
        self._offered_bytes += _size_of(info)
        if self._offered_bytes > OFFERED_BYTES_MAX:
            self._offered_bytes = sum(map(_size_of, self.directory.known.values()))  # some were joined or declined
        if self._offered_bytes > OFFERED_BYTES_MAX:
            self.directory.decline(info.group)
            self._count("offers_crowded_out")
            return
        self.events.append(Offered(info))

    def _meet(self, peer: PeerGroup, create: bytes, now_ms: float, *, is_from_log: bool) -> None:
        """Another `create` of a group: the log's stands, else the one whose bytes are the least."""
        mine = peer.records.create
        if mine == create or (peer.logged.create is not None and create != peer.logged.create):
            return
        if (is_from_log or mine is None or create < mine) and self._is_create(create, peer.group):
            peer.adopt(create, now_ms)

    def _is_create(self, value: bytes | None, group: str) -> bool:
        """Whether this is a record that creates this group; else it is counted."""
        try:
            record = None if value is None else read(value, LIMITS)
        except Malformed:
            record = None
        if isinstance(record, Create) and record.group == group:
            return True
        self._count("bad_create")
        return False

    def present(self, now_ms: float) -> set[str] | None:
        """The names of all others that are heard; None while some of them are not known."""
        return self.announcing.present(self.broadcast.streams, now_ms)

    def _settle(self, peer: PeerGroup, now_ms: float) -> None:
        """Pass on what a group has to send."""
        if peer.out:
            self._unsent += peer.out
            peer.out.clear()
            self._flush(now_ms)

    def _flush(self, now_ms: float) -> None:
        sent = 0
        try:
            for kind, payload in self._unsent:
                if kind == PADDING:
                    self.broadcast.pad(len(payload))
                elif len(payload) <= PAYLOAD_BYTES_MAX:
                    self.broadcast.send(kind, payload, now_ms)
                else:
                    self._count("too_large")
                sent += 1
        except Refused:
            pass  # the rest goes when there is room
        del self._unsent[:sent]

    def _count(self, code: str) -> None:
        self.broadcast.counts[code] = self.broadcast.counts.get(code, 0) + 1


def _size_of(info: GroupInfo) -> int:
    return 200 + len(info.create or b"") + len(info.description) + 100 * len(info.view)
