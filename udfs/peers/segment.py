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
from typing import Any

from msgspec.structs import replace

from precede.udfs.engine.held import Held
from precede.udfs.errors import Congested, Refused
from precede.udfs.peers import notes
from precede.udfs.peers.broadcast import Broadcast
from precede.udfs.peers.directory import GroupInfo
from precede.udfs.peers.events import Event
from precede.udfs.peers.frames import ANNOUNCEMENT, DATA, FrameFault
from precede.udfs.peers.hearing import Hearing
from precede.udfs.peers.notes import GroupNote, InLog, JoinAnswer, PeerFault, RefusedByLog
from precede.udfs.peers.ordering import DEFAULT_ORDER, check_group, check_order
from precede.udfs.peers.peer_group import PeerGroup
from precede.udfs.peers.views import IN, merge
from precede.udfs.records.messages import Id

REST_MS = 1_000.0
"""How long what has raised an error in its turn waits for its next one."""
SAID_MAX = 64
"""So many messages of one group are said before they are taken in."""


class SegmentProtocol(Hearing):
    """One process on a segment, under one name."""

    def restore(self, state: dict[str, Any], now_ms: float, *, is_clean: bool) -> None:
        """Go on from what `dump` gave, before anything else happens."""
        self.take_limits(self.limits.taking(state.get("limits", self.limits.lists)))
        for group, dumped in state["groups"].items():
            self._restore(group, dumped, now_ms, is_clean=is_clean)

    def _restore(self, group: str, dumped: dict[str, Any], now_ms: float, *, is_clean: bool) -> None:
        peer = self._add(group, dumped.get("default_order", DEFAULT_ORDER))
        peer.load(dumped, now_ms, new_epoch=None if is_clean else max(self.epoch, dumped["epoch"] + 1))
        view = peer.speaking.knowledge.view
        info = GroupInfo(group, peer.default_order, view, peer.records.create)
        if peer.own_join.left:
            self.directory.receive([info])  # it may be joined again
        else:
            # It may have stopped before its own join was taken in: that comes after the history.
            info = replace(info, view=merge(view, {self.name: (dumped["epoch"], IN)}))
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
        self.directory.remember(GroupInfo(group, order, {self.name: (0, IN)}, create))
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
    ) -> tuple[Id, bytes]:
        """Say something: `data` is JSON. Raises Refused where that cannot be, and ValueError for a wrong argument.

        Returns its id and its record. The next call of `due`, or of anything that looks at the group, takes in all that
        was said, as one bundle, and tells of it.
        Congested, which is a Refused, means that it can be a little later.
        """
        peer = self.groups.get(group)
        if peer is None:
            raise _not_in(self.name, group)
        if self._unsent or not self.broadcast.has_room(len(data)):
            raise Congested("The peers of the segment cannot follow: wait, and send it again.")
        clock_ms = self._clock_ms(now_ms)
        said = peer.send(data, after=list(after), to=to, object_=object_, clock_ms=clock_ms, now_ms=now_ms)
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
        """Take in a datagram."""
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
        """When to call `due` next, as far as known now."""
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
